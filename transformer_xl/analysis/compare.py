"""Draws the curves of several runs, and their loss by memory length.

    python -m transformer_xl.analysis.compare runs/a runs/b

writes `compare.json`, `.md` and `.png` to `results/` in the first run's folder,
or in --workdir. The JSON also names the settings in which the runs differ. It
reads logs and evaluation cards only, also while the runs continue.
"""

import os

from absl import flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.analysis import curves

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder for the results; that of the first run by default."
)


def main(argv: list[str]) -> None:
  """Compares the runs that are named."""
  if len(argv) < 2:
    raise errors.UserError(
      "name the workdirs of the runs: python -m "
      "transformer_xl.analysis.compare runs/a runs/b"
    )
  workdir = _WORKDIR.value or argv[1]
  curves.compare(argv[1:], os.path.expanduser(workdir))


if __name__ == "__main__":
  command_line.run(main, quiet=False, takes_words=True)
