"""Command line: a foreign checkpoint becomes a run that every mode reads.

    python -m transformer_xl.importers.main --format=tensorflow \
      --source=pretrained_xl/tf_wt103 --published=wt103 --workdir=runs/wt103
"""

from absl import flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.importers import import_run
from transformer_xl.importers import report

_FORMAT = flags.DEFINE_enum(
  "format", None, import_run.FORMATS, "Whose files.", required=True
)
_SOURCE = flags.DEFINE_string(
  "source",
  None,
  "huggingface: the folder; pytorch: model.pt or a state dict; tensorflow: the "
  "prefix model.ckpt-N or the folder it is in.",
  required=True,
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run to make.", required=True
)
_PUBLISHED = flags.DEFINE_enum(
  "published",
  None,
  import_run.PUBLISHED,
  "Which published model it is: checks that, and evaluates as published.",
)
_VOCABULARY = flags.DEFINE_string(
  "vocabulary",
  None,
  "Where it is not beside the weights: vocab.pkl, vocab.bin, vocab.txt, "
  "cache.pkl, cache.pt or a prepared dataset's folder.",
)
_CUTOFFS = flags.DEFINE_list(
  "cutoffs", [], "For a PyTorch state dict with div_val=1: 20000,40000,200000."
)
_PRE_NORM = flags.DEFINE_bool(
  "pre_norm", False, "For a PyTorch state dict: it was trained so."
)


def main(argv: list[str]) -> None:
  """Imports, and prints the certificate."""
  del argv
  made = import_run.make(
    format_name=_FORMAT.value,
    source=_SOURCE.value,
    workdir=_WORKDIR.value,
    published=_PUBLISHED.value,
    vocabulary=_VOCABULARY.value,
    cutoffs=_parse_cutoffs(_CUTOFFS.value),
    pre_norm=_PRE_NORM.value,
  )
  print(report.render(made))
  print(
    f"{_WORKDIR.value} is ready: python -m transformer_xl.main --mode=eval "
    f"--config=experiments/saved.py:{_WORKDIR.value}"
  )


def _parse_cutoffs(items: list[str]) -> tuple[int, ...]:
  if not all(item.isdecimal() for item in items):
    raise errors.UserError(
      f"--cutoffs={','.join(items)} must be numbers, such as "
      "20000,40000,200000."
    )
  return tuple(map(int, items))


if __name__ == "__main__":
  command_line.run(main)
