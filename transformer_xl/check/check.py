"""Whether these devices compute the right numbers; `--mode=check`.

It needs no data. It is short on a CPU, and complete on accelerators. Writes
`results/check.json`, which an issue report can carry.
"""

import math
import time

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.check import environment
from transformer_xl.check import finding
from transformer_xl.check import memory
from transformer_xl.check import numbers
from transformer_xl.check import on_mesh
from transformer_xl.check import small_run
from transformer_xl.check import speed
from transformer_xl.config import schema
from transformer_xl.workdir import metrics_log


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Checks all devices of all processes, and writes `results/check.json`.

  Args:
    config: whose mixers and encoding are tried, in small models. The rest of
      it has no effect: the check has models of its own.
    workdir: where the result goes.

  Raises:
    WrongResultError: a device computes something else than it should.
  """
  start = time.perf_counter()
  short = jax.devices()[0].platform == "cpu"
  found = environment.describe()
  logging.info(
    "Checking %d x %s in %s form.",
    found["num_devices"],
    found["device_kind"],
    "short" if short else "complete",
  )
  meshes = make_meshes()
  findings = numbers.run(meshes, short=short)
  findings += memory.run(config.model, short=short)
  findings += small_run.run(meshes, workdir)
  findings = finding.largest_of_processes(findings)
  finding.log(findings)
  wrong = [one for one in findings if not one.passed]
  verdict = _verdict(findings)
  result = {
    "verdict": verdict,
    "passed": not wrong,
    "environment": found,
    "is_short": short,
    "meshes": [on_mesh.describe(mesh) for mesh in meshes],
    "findings": [_recorded(one) for one in findings],
    "speed": [],
    "seconds": time.perf_counter() - start,
  }
  # Timing takes longer, and may be stopped.
  metrics_log.write_json(workdir, "results/check.json", result)
  if wrong:
    raise errors.WrongResultError(verdict)

  result["speed"] = speed.run(short=short)
  result["seconds"] = time.perf_counter() - start
  metrics_log.write_json(workdir, "results/check.json", result)
  logging.info("%s", verdict)
  return result


def make_meshes() -> list[jax.sharding.Mesh]:
  """Meshes of all devices: each axis by itself, and all of them together.

  `fsdp` and `tensor` stay inside a slice.
  """
  count = jax.device_count()
  inside = count // mesh_lib.num_slices(jax.devices())
  tensor = math.gcd(inside, 4)
  both = math.gcd(inside, 4) // 2 or 1
  axes = [
    (count, 1, 1),
    (count // inside, inside, 1),
    (count // tensor, 1, tensor),
    (count // (both * both), both, both),
  ]
  return [
    mesh_lib.make_mesh(schema.MeshConfig(data=data, fsdp=fsdp, tensor=split))
    for data, fsdp, split in dict.fromkeys(axes)
  ]


def _verdict(findings: list[finding.Finding]) -> str:
  """One line for people."""
  kind = jax.devices()[0].device_kind
  devices = f"{jax.device_count()} x {kind}"
  count = len(findings)
  wrong = [one for one in findings if not one.passed]
  unknown = [one for one in findings if not one.is_compared]
  left_out = f"; not compared: {_parts(unknown)}" if unknown else ""
  if wrong:
    return (
      f"{devices} computed {len(wrong)} of {count} cases wrongly "
      f"({_parts(wrong)}){left_out}: do not trust results of these devices; "
      "report it with results/check.json."
    )
  right = f"{count - len(unknown)} of {count}" if unknown else f"all {count}"
  return f"{devices} computed {right} cases correctly{left_out}."


def _parts(findings: list[finding.Finding]) -> str:
  return ", ".join(dict.fromkeys(one.part for one in findings))


def _recorded(one: finding.Finding) -> metrics_log.Json:
  """A finding as JSON, where an infinite limit is null."""
  states = {"passed": one.passed, "is_compared": one.is_compared}
  return one._asdict() | states
