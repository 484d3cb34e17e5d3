r"""Command line: exports a run's checkpoint as a HuggingFace folder.

    python -m transformer_xl.importers.export --workdir=runs/wt103 \
      --target=wt103_huggingface

The folder loads with `transformer_xl.load`, also after an upload to the Hub,
and with `TransfoXLLMHeadModel.from_pretrained`.
"""

from transformer_xl import command_line

if __name__ == "__main__":  # Before the imports that take long.
  early = command_line.end_at_signals()

import os

from absl import flags

from transformer_xl.importers import export_run

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
_TARGET = flags.DEFINE_string("target", None, "Folder to make.", required=True)


def main(argv: list[str]) -> None:
  """Exports the run that the flags name."""
  del argv
  target = os.path.expanduser(_TARGET.value)
  export_run.export(os.path.expanduser(_WORKDIR.value), target)
  print(
    f"{target} is ready for transformer_xl.load and "
    "TransfoXLLMHeadModel.from_pretrained"
  )


if __name__ == "__main__":
  early.close()  # From here on what was begun is cleaned up.
  command_line.run(main)
