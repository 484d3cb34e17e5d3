"""What all processes of a run must have in common, checked before it starts."""

import dataclasses
import importlib.metadata
from collections.abc import Mapping

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import extensions
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.processes import others
from transformer_xl.processes import switchboard
from transformer_xl.workdir import checksums

_PACKAGES = ("jax", "jaxlib", "transformer-xl")


def require_same_command(
  config: schema.ExperimentConfig, workdir: str, mode: str
) -> None:
  """Compares mode, workdir, configuration and versions of all processes.

  Raises:
    UserError: they differ; in all processes.
  """
  fields = dataclasses.asdict(config)
  del fields["data"]["dir"]  # Copies of the data are compared by their content.
  source = config.train.init_from
  if source:
    fields["train"]["init_from"] = storage.absolute(source)
  needed = extensions.needed(config.model, config.train)
  _require_same(
    {
      "--mode": mode,
      "--workdir": storage.absolute(workdir),
      "--config": fields,
      "--extensions": [one._asdict() for one in needed],
      "versions of packages": [_version(name) for name in _PACKAGES],
    }
  )


def require_same_data(dataset_dir: str) -> None:
  """Compares the prepared dataset that each process finds.

  Data that no process finds is left to the mode, which may not read any.

  Raises:
    UserError: they differ; in all processes.
  """
  try:
    meta = token_file.read_meta(dataset_dir)
  except errors.UserError:
    meta = {}
  hashes = [meta.get("vocabulary"), meta.get("splits")]
  _require_same({"data in config.data.dir": hashes})


def _version(package: str) -> str:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "none"  # A checkout that is not installed.


def _require_same(values: Mapping[str, object]) -> None:
  """Compares the hashes of named JSON values."""
  mine = {name: checksums.of_json(values[name]) for name in values}
  everyone = others.gather(mine)
  first = everyone[0]
  unlike = [number for number, one in enumerate(everyone) if one != first]
  if not unlike:
    return
  names = [n for n in values if any(one[n] != first[n] for one in everyone)]
  verb = "differ" if len(unlike) > 1 else "differs"
  raise errors.UserError(
    f"the processes of a run were started with different {' and '.join(names)}:"
    f" {switchboard.named(unlike)} {verb} from process 0; give all the same "
    "command, data and packages, or --multihost=false to separate runs."
  )
