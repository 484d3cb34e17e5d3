"""Compares a run's losses with reference runs of the same configuration.

    python -m transformer_xl.analysis.reference_curves.check_run \
      --workdir=runs/quickstart \
      --reference=experiments/reference_curves/quickstart.json

compares each logged loss with the band of the reference's seeds, also while
the run continues. The exit status is 0 if it is on track, 1 if it is off track
and 2 if it cannot be compared.

    python -m transformer_xl.analysis.reference_curves.check_run --write \
      --workdir=runs/a,runs/b,runs/c \
      --reference=experiments/reference_curves/NAME.json

writes a reference from runs that differ only in --config.seed.
"""

import datetime
import platform
import sys

from absl import flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis.reference_curves import curve as curve_lib
from transformer_xl.analysis.reference_curves import logged_run

_WORKDIR = flags.DEFINE_list(
  "workdir", None, "Folder of the run; with --write, of each.", required=True
)
_REFERENCE = flags.DEFINE_string(
  "reference", None, "The reference's file.", required=True
)
_WRITE = flags.DEFINE_bool("write", False, "Make the reference of these runs.")


def main(argv: list[str]) -> None:
  """Prints the comparison and exits with its status, or writes a reference."""
  del argv
  workdirs = [storage.expanded(workdir) for workdir in _WORKDIR.value]
  runs = [logged_run.read(workdir) for workdir in workdirs]
  path = storage.expanded(_REFERENCE.value)
  if _WRITE.value:
    curve = curve_lib.make(runs)
    curve_lib.save(
      curve,
      path,
      recorded=datetime.date.today().isoformat(),
      versions=runs[0].versions,
      machine=f"{platform.machine()}, Python {platform.python_version()}",
    )
    print(
      f"{path}: losses of training ({len(curve.steps)}) and of validation "
      f"({len(curve.validation_steps)}) of {len(curve.seeds)} seeds, to step "
      f"{curve.steps[-1]} of {curve.config.train.num_steps}."
    )
    return
  if len(runs) > 1:
    raise errors.UserError(
      "compare one --workdir at a time; --write takes more."
    )
  status, text = curve_lib.compare(runs[0], curve_lib.load(path))
  print(text)
  sys.exit(status)


if __name__ == "__main__":
  command_line.run(main)
