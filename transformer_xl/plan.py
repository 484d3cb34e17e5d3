"""Compiles training and evaluation for a TPU slice, from any machine.

`--mode=plan --topology=v5e:4x4` lowers the very functions that a run would
use, with the shardings of its mesh, and asks the TPU compiler what a chip
would hold and do. No TPU is needed, only the `tpu` extra (libtpu).
"""

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import numpy as np
from absl import logging
from jax.experimental import topologies

from transformer_xl import config as config_lib
from transformer_xl import data
from transformer_xl import errors
from transformer_xl import hlo_cost
from transformer_xl import metrics
from transformer_xl import scorer
from transformer_xl import sharding
from transformer_xl import step as step_lib
from transformer_xl import train as train_lib
from transformer_xl import writer


class Chip(NamedTuple):
  """A kind of TPU, per JAX device."""

  devices: int  # Per chip; a v4 topology shows its two cores.
  hbm_bytes: float  # That the compiler lets a program use.
  clock: float  # Hz, of the compiler's cycles.


CHIPS = {
  "TPU v4": Chip(2, 15.25 * 2**30, 1.05e9),
  "TPU v5 lite": Chip(1, 15.75 * 2**30, 1.5e9),
  "TPU v5": Chip(1, 95.73 * 2**30, 1.75e9),
  "TPU v6 lite": Chip(1, 31.24 * 2**30, 1.75e9),
}


class DoesNotFitError(Exception):
  """The compiler found more than a chip's memory; the text is its own."""


def run(
  config: config_lib.ExperimentConfig, workdir: str, topology: str
) -> dict[str, Any]:
  """Plans both programs and writes `results/plan.json`.

  Raises:
    UserError: the topology is unknown or the data's vocabulary is.
  """
  if not config.model.vocab_size:
    directory = os.path.join(config.data.dir, config.data.name)
    config = data.with_vocab_size(config, data.read_meta(directory))
  devices = _devices(topology)
  chip = CHIPS[devices[0].device_kind]
  result: dict[str, Any] = {
    "topology": topology,
    "num_chips": len(devices) // chip.devices,
    "parameters": _parameters(config),
  }
  result["num_parameters"] = sum(result["parameters"].values())
  result["train"] = _train_plan(config, devices)
  if not result["train"]["fits"]:
    result["train"]["nearest_that_fits"] = _nearest(config, devices)
  result["eval"] = _eval_plan(config, devices)
  result["hours"], result["chip_hours"] = _cost(config, result)
  _log(result)
  path = os.path.join(workdir, "results", "plan.json")
  writer.write_json(path, result)
  return result


def _devices(topology: str) -> list[Any]:
  """The devices of a slice, by its name."""
  try:
    found: list[Any] = topologies.get_topology_desc(
      platform="tpu", topology_name=topology
    ).devices
  except Exception as error:  # JAX passes on whatever libtpu says.
    raise errors.UserError(
      f"no TPU slice {topology!r} is known to libtpu ({error}); names are like "
      "v4:2x2x1, v5e:4x4, v5p:2x2x1, v6e:4x4, and need pip install '.[tpu]'."
    ) from None
  if found[0].device_kind not in CHIPS:
    raise errors.UserError(
      f"{topology} has chips of the kind {found[0].device_kind!r}; known are "
      f"{', '.join(CHIPS)}."
    )
  return found


def _parameters(config: config_lib.ExperimentConfig) -> dict[str, int]:
  """How many there are in each group."""
  state, _ = train_lib.abstract_state(config)
  return {
    name: sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(group))
    for name, group in state.params.items()
  }


def _train_plan(config, devices) -> dict[str, Any]:
  lanes = config.train.batch_size // config.train.accumulation_steps
  mesh = sharding.make_mesh(config.mesh, lanes=(lanes,), devices=devices)
  count = config.train.segments_per_call
  with jax.set_mesh(mesh):
    segments = _segments(
      mesh, count, config.train.batch_size, config.train.segment_len
    )
    arguments = (*train_lib.placed_state(config, mesh), segments)
    lowered = train_lib.compiled_update(config, mesh).lower(*arguments)
  useful = 3 * metrics.forward_flops_per_token(
    config.model,
    segment_len=config.train.segment_len,
    mem_len=config.train.mem_len,
  )
  tokens = config.train.batch_size * config.train.segment_len
  return _plan(lowered, devices, count=count, tokens=tokens, useful=useful)


def _eval_plan(config, devices) -> dict[str, Any]:
  evaluation, mem_len = config.eval, max(config.eval.mem_len)
  mesh = sharding.make_mesh(
    config.mesh, lanes=(evaluation.batch_size,), devices=devices
  )
  count = evaluation.segments_per_call
  with jax.set_mesh(mesh):
    segments = _segments(
      mesh, count, evaluation.batch_size, evaluation.segment_len
    )
    lowered = scorer.Scorer(config, mesh, mem_len=mem_len).lower(segments)
  useful = metrics.forward_flops_per_token(
    config.model, segment_len=evaluation.segment_len, mem_len=mem_len
  )
  tokens = evaluation.batch_size * evaluation.segment_len
  plan = _plan(lowered, devices, count=count, tokens=tokens, useful=useful)
  return {**plan, "mem_len": mem_len}


def _segments(mesh, count, lanes, segment_len) -> step_lib.Segment:
  place, shape = sharding.segments(mesh), (count, lanes, segment_len)
  types = (np.int32, np.int32, np.float32, np.bool_)
  fields: list[Any] = [
    jax.ShapeDtypeStruct(shape, dtype, sharding=place) for dtype in types
  ]
  return step_lib.Segment(*fields)


def _plan(lowered, devices, *, count, tokens, useful) -> dict[str, Any]:
  """What the compiler says, for one step; bytes are per chip.

  It says nothing of the cycles in our kernels: `kernel_cycles` are what the
  matrix units need at the least, and part of `estimated_cycles`.
  """
  chip = CHIPS[devices[0].device_kind]
  chips = len(devices) // chip.devices
  start = time.perf_counter()
  try:
    compiled = _compile(lowered)
  except DoesNotFitError as error:
    return {"fits": False, "reason": str(error)}
  memory = compiled.memory_analysis()
  held = (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )
  cost = hlo_cost.program_cost(compiled.as_text())
  peak = metrics.PEAK_FLOPS[devices[0].device_kind] / chip.devices
  kernels = cost.kernel_flops * chip.clock / peak
  cycles = (cost.cycles + kernels) / count
  seconds = cycles / chip.clock
  return {
    "fits": held <= chip.hbm_bytes,
    "hbm_bytes_per_chip": held * chip.devices,
    "hbm_capacity_bytes": chip.hbm_bytes * chip.devices,
    "argument_bytes": memory.argument_size_in_bytes * chip.devices,
    "output_bytes": memory.output_size_in_bytes * chip.devices,
    "temp_bytes": memory.temp_size_in_bytes * chip.devices,
    "flops_per_step": useful * tokens,
    "estimated_cycles": cycles,
    "kernel_cycles": kernels / count,
    "estimated_step_seconds": seconds,
    "estimated_tokens_per_second_per_chip": tokens / seconds / chips,
    "collective_bytes": {
      kind: size / count * chip.devices
      for kind, size in cost.collective_bytes.items()
    },
    "compile_seconds": time.perf_counter() - start,
  }


def _compile(lowered: Any) -> Any:
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    text = str(error)
    if "exceeds" not in text and "RESOURCE_EXHAUSTED" not in text:
      raise
    line = next(part for part in text.splitlines() if part.strip())
    raise DoesNotFitError(line[:300]) from None


def _nearest(config, devices) -> dict[str, Any] | None:
  """The first of some smaller settings that fits, with its plan."""
  for change, smaller in _smaller(config, len(devices)):
    logging.info("It does not fit; trying %s.", change)
    plan = _train_plan(smaller, devices)
    if plan["fits"]:
      return {"change": change, **plan}
  return None


def _smaller(config, count) -> Iterator[tuple[str, Any]]:
  """Settings that need less memory, the least change first."""
  remat = dataclasses.replace(config.model, remat="full")
  sharded = dataclasses.replace(config.mesh, data=-1, fsdp=count, tensor=1)
  tries = [
    ("--config.model.remat=full", {"model": remat}),
    (f"--config.mesh.fsdp={count}", {"mesh": sharded}),
    (
      f"--config.model.remat=full --config.mesh.fsdp={count}",
      {"model": remat, "mesh": sharded},
    ),
  ]
  for parts in (2, 4, 8):
    if config.train.batch_size % (parts * count) == 0:
      train = dataclasses.replace(config.train, accumulation_steps=parts)
      change = f"{tries[2][0]} --config.train.accumulation_steps={parts}"
      tries.append((change, {**tries[2][1], "train": train}))
  for change, fields in tries:
    yield change, dataclasses.replace(config, **fields)


def _cost(config, result) -> tuple[float | None, float | None]:
  """Hours of the whole run and of all its chips, collectives left out."""
  plan = result["train"]
  plan = plan if plan["fits"] else plan["nearest_that_fits"]
  if plan is None:
    return None, None
  hours = plan["estimated_step_seconds"] * config.train.num_steps / 3600
  return hours, hours * result["num_chips"]


def _log(result: dict[str, Any]) -> None:
  """Prints the plan for people."""
  logging.info(
    "%s, %d chips; %d parameters: %s",
    result["topology"],
    result["num_chips"],
    result["num_parameters"],
    result["parameters"],
  )
  for kind in ("train", "eval"):
    plan = result[kind]
    if "hbm_bytes_per_chip" not in plan:
      logging.info("%s does not fit: %s", kind, plan["reason"])
      continue
    logging.info(
      "%s: %s, %.2f of %.2f GiB a chip (arguments %.2f, temporaries %.2f); "
      "by the compiler's estimate, without collectives, %.1f M cycles, "
      "%.1f ms and %.0f tokens/s/chip a step",
      kind,
      "fits" if plan["fits"] else "does not fit",
      plan["hbm_bytes_per_chip"] / 2**30,
      plan["hbm_capacity_bytes"] / 2**30,
      plan["argument_bytes"] / 2**30,
      plan["temp_bytes"] / 2**30,
      plan["estimated_cycles"] / 1e6,
      plan["estimated_step_seconds"] * 1e3,
      plan["estimated_tokens_per_second_per_chip"],
    )
