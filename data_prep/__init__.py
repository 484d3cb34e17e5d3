"""Turns corpora into token files."""

from transformer_xl import command_line


def command() -> None:
  """The console script `transformer-xl-data`."""
  command_line.start("transformer_xl.data_prep.main")
