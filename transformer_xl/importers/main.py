r"""Command line: converts a foreign checkpoint to a run.

    python -m transformer_xl.importers.main --format=tensorflow \
      --source=pretrained_xl/tf_wt103 --published=wt103 --workdir=runs/wt103

The run evaluates, generates and scores like one that was trained here.
"""

from transformer_xl import command_line
from transformer_xl import signals

if __name__ == "__main__":  # Before the imports that take long.
  early = signals.end_at_signals()

import shlex

from absl import flags

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import name_parser
from transformer_xl.importers import import_run

_FORMAT = flags.DEFINE(
  name_parser.NameParser(
    list(import_run.FORMATS),
    others={"hf": "huggingface", "torch": "pytorch", "tf": "tensorflow"},
  ),
  "format",
  None,
  "Format of the source: huggingface, pytorch or tensorflow.",
  required=True,
)
_SOURCE = flags.DEFINE_string(
  "source",
  None,
  "huggingface: the folder, or hf://OWNER/NAME; pytorch: model.pt or a state "
  "dict; tensorflow: the prefix model.ckpt-N or its folder.",
  required=True,
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run to make; gs:// too.", required=True
)
_PUBLISHED = flags.DEFINE_enum(
  "published",
  None,
  import_run.PUBLISHED,
  "The published model that the source is: checks it, and sets its evaluation.",
)
_VOCABULARY = flags.DEFINE_string(
  "vocabulary",
  None,
  "If it is not beside the weights: vocab.pkl, vocab.bin, vocab.txt, "
  "cache.pkl, cache.pt or a prepared dataset's folder.",
)
_CUTOFFS = flags.DEFINE_list(
  "cutoffs", [], "For a PyTorch state dict with div_val=1: 20000,40000,200000."
)
_PRE_NORM = flags.DEFINE_bool(
  "pre_norm", False, "For a PyTorch state dict that was trained with pre_lnorm."
)


def main(argv: list[str]) -> None:
  """Imports the checkpoint and prints the report."""
  del argv
  cutoffs = _CUTOFFS.value
  if not all(cutoff.isdecimal() for cutoff in cutoffs):
    raise errors.UserError(
      f"--cutoffs={','.join(cutoffs)} must be numbers, such as "
      "20000,40000,200000."
    )
  workdir = storage.expanded(_WORKDIR.value)
  with errors.writing_to(workdir):
    request = import_run.Request(
      format_name=_FORMAT.value,
      source=storage.expanded(_SOURCE.value),
      published=_PUBLISHED.value,
      vocabulary=storage.expanded(_VOCABULARY.value or "") or None,
      cutoffs=tuple(map(int, cutoffs)),
      pre_norm=_PRE_NORM.value,
    )
    report = import_run.make(request, workdir)
  print(import_run.render(report))
  saved = shlex.quote(f"--config=saved:{workdir}")
  print(
    f"{workdir} is ready: python -m transformer_xl.main --mode=generate {saved}"
  )


if __name__ == "__main__":
  early.close()  # From here on what was begun is cleaned up.
  command_line.run(main)
