"""What all processes of a run must have in common, checked before it starts."""

import dataclasses
import importlib.metadata
import json
import socket
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.workdir import run_record

_PACKAGES = ("jax", "jaxlib", "transformer-xl")
# Copies of the data are compared by their content.
_LOCAL = "config.data.dir"
_MOST_DIFFERENCES = 5
_MOST_PROCESSES = 8  # That are named one by one.
_MOST_CHARACTERS = 80  # In a value.


def require_same_command(
  config: schema.ExperimentConfig, workdir: str, mode: str
) -> None:
  """Compares mode, workdir, configuration and versions of all processes.

  Raises:
    UserError: they differ; in all processes.
  """
  if jax.process_count() == 1:
    return
  fields = run_record.flat(dataclasses.asdict(config))
  folder = storage.absolute(workdir)
  _require_same(
    {"--mode": mode, "--workdir": folder}
    | {name: str(fields[name]) for name in fields if name != _LOCAL}
    | {f"version of {name}": _version(name) for name in _PACKAGES}
  )


def require_same_data(dataset_dir: str) -> None:
  """Compares the hashes of the prepared dataset that each process finds.

  Data that no process finds is left to the mode, which may not read any.

  Raises:
    UserError: they differ; in all processes.
  """
  if jax.process_count() == 1:
    return
  try:
    meta = token_file.read_meta(dataset_dir)
  except errors.UserError:
    meta = {}
  parts = {f"{name}.npy": one for name, one in meta.get("splits", {}).items()}
  parts |= {name: meta[name] for name in ("vocabulary",) if name in meta}
  _require_same(
    {
      f"SHA-256 of {name} in {_LOCAL}": str(part.get("sha256"))
      for name, part in parts.items()
    }
  )


def _version(package: str) -> str:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "none"  # A checkout that is not installed.


def _require_same(mine: dict[str, str]) -> None:
  everyone = _gather([socket.gethostname(), mine])
  values = [own for _, own in everyone]
  names = dict.fromkeys(name for own in values for name in own)
  differences = []
  for name in names:
    groups: dict[str, list[str]] = {}
    for index, (host, own) in enumerate(everyone):
      value = own.get(name, "missing")
      groups.setdefault(value, []).append(f"process {index} ({host})")
    if len(groups) > 1:
      differences.append(f"{name} is {_described(groups)}")
  if differences:
    more = len(differences) - _MOST_DIFFERENCES
    shown = differences[:_MOST_DIFFERENCES] + [f"and {more} more"] * (more > 0)
    raise errors.UserError(
      f"the processes of a run must agree, but {'; '.join(shown)}: give all "
      "the same command, data and packages, or --multihost=false to separate "
      "runs."
    )


def _described(groups: dict[str, list[str]]) -> str:
  texts = []
  for value, processes in groups.items():
    short = value[:_MOST_CHARACTERS] + "..." * (len(value) > _MOST_CHARACTERS)
    named = ", ".join(processes)
    if len(processes) > _MOST_PROCESSES:
      named = f"{len(processes)} of them"
    texts.append(f"{short or 'empty'} in {named}")
  return " and ".join(texts)


def _gather(value: Any) -> list[Any]:
  """The JSON value of each process, in all of them."""
  mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
  lengths = multihost_utils.process_allgather(np.asarray(len(mine)))
  padded = np.pad(mine, (0, int(lengths.max()) - len(mine)))
  rows = multihost_utils.process_allgather(padded)
  return [
    json.loads(bytes(row[:length]))
    for row, length in zip(rows, lengths, strict=True)
  ]
