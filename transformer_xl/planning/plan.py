"""Compiles training and evaluation for a TPU slice or GPUs, from any machine.

`--mode=plan --topology=v5e:4x4` lowers the same functions that a run uses, with
the shardings of its mesh, and reports the memory and work per chip according to
the compiler. It needs no TPU, only the `tpu` extra (libtpu); and for
`--topology=h100:8` no GPU, only the `cuda` extra.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import protocol
from transformer_xl.model import network
from transformer_xl.planning import generation
from transformer_xl.planning import gpus
from transformer_xl.planning import hlo_cost
from transformer_xl.planning import plan_log
from transformer_xl.planning import prices
from transformer_xl.planning import topology as topology_lib
from transformer_xl.training import programs
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model

Plan = plan_log.Plan


def run(config: schema.ExperimentConfig, workdir: str, topology: str) -> Plan:
  """Plans training and evaluation, and writes `results/plan.json`.

  Raises:
    UserError: the topology, or the size of the vocabulary, is unknown.
  """
  if not config.model.vocab_size:
    meta = token_file.read_meta(config.data.dataset_dir)
    config = load.with_vocab_size(config, meta)
  devices = topology_lib.slice_devices(topology)
  mesh = programs.make_mesh(config.recipe, config.mesh, devices=devices)
  logging.info("%s", programs.describe_mesh(config.train, mesh))
  groups = network.abstract_params(config.model).items()
  parameters = {n: network.num_parameters(tree) for n, tree in groups}
  result = {
    "topology": topology,
    "config": dataclasses.asdict(config),
    "num_chips": len(devices),
    "parameters": parameters,
    "num_parameters": sum(parameters.values()),
    "mesh": dict(mesh.shape),
  }
  result["train"] = train = train_plan(
    config.recipe, config.data, mesh, count=config.updates_per_call
  )
  chosen = train if train["fits"] else _nearest(config, devices)
  if not train["fits"]:
    train["nearest_that_fits"] = chosen
  eval_mesh = trained_model.make_mesh(
    config.model, config.mesh, devices=devices
  )
  result["eval"] = evaluation = eval_plan(config.scoring, eval_mesh)
  held = _bytes_while_evaluating(
    config.recipe, config.scoring, mesh, evaluation
  )
  evaluation["hbm_bytes_while_evaluating"] = held
  result["generate"] = generation_plan(
    config.model, config.eval, config.generate, devices[0]
  )
  result["num_steps"] = config.train.num_steps
  result["hours"] = result["chip_hours"] = result["cost"] = None
  if chosen:  # Of the whole run, without collectives.
    hours = chosen["estimated_step_seconds"] * config.train.num_steps / 3600
    chip_hours = hours * result["num_chips"]
    result |= {"hours": hours, "chip_hours": chip_hours}
    result["cost"] = _cost(topology, chip_hours)
  plan_log.log(result)
  metrics_log.write_json(workdir, "results/plan.json", result)
  return result


def _cost(topology: str, chip_hours: float) -> Plan | None:
  """US dollars by list prices; None for chips whose price is not known."""
  price = prices.PRICES.get(topology.partition(":")[0])
  if price is None:
    return None
  return {
    "dollars_on_demand": price.on_demand * chip_hours,
    "dollars_spot": price.spot * chip_hours,
    "dollars_per_chip_hour": price._asdict(),
    "source": prices.SOURCE,
    "date": prices.DATE,
  }


@contextlib.contextmanager
def _announced(program: str) -> Iterator[None]:
  """Logs that a program is being compiled, and then how long it took."""
  logging.info("Compiling %s ...", program)
  start = time.perf_counter()
  yield
  seconds = time.perf_counter() - start
  logging.info("Compiled %s in %.0f s.", program, seconds)


def train_plan(
  recipe: schema.Recipe,
  data: schema.DataConfig,
  mesh: jax.sharding.Mesh,
  *,
  count: int,
) -> Plan:
  """Plans calls of `count` updates, with segments of the longest length.

  Padding is neither useful work nor a token that is read.
  """
  train = recipe.train
  length = round(segment_lengths.of(train).mean)
  useful = 3 * network.forward_flops_per_token(
    recipe.model,
    segment_len=length,
    mem_len=train.mem_len,
    context_len=train.context_len,
    same_length=train.same_length,
  )
  tokens = train.batch_size * train.gradient_segments * length
  with _announced("training"):
    lowered = lower_updates(recipe, data, mesh, count=count)
    return _plan(lowered, mesh, count=count, tokens=tokens, useful=useful)


def lower_updates(
  recipe: schema.Recipe,
  data: schema.DataConfig,
  mesh: jax.sharding.Mesh,
  *,
  count: int,
) -> jax.stages.Lowered:
  """Lowers `count` updates in one call, for a mesh."""
  train = recipe.train
  with jax.set_mesh(mesh):
    lengths = segment_lengths.of(train)
    segments = segment.abstract_segments(
      mesh,
      count * train.gradient_segments,
      train,
      lengths.longest,
      parts=train.accumulation_steps,
      has_weights=lengths.is_padded or data.targets == "answers",
    )
    state = programs.sharded_abstract_state(recipe, mesh)
    numbers = programs.numbers(recipe)
    return programs.update(recipe, mesh).lower(numbers, *state, segments)


def held_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns the bytes of arguments, results and temporaries on a device.

  Donated arguments become results in place.
  """
  memory = compiled.memory_analysis()
  assert memory is not None
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )


def eval_plan(scoring: schema.Scoring, mesh: jax.sharding.Mesh) -> Plan:
  """Plans evaluation with the longest memory."""
  evaluation = scoring.eval
  mem_len = max(evaluation.mem_len)
  useful = network.forward_flops_per_token(
    scoring.model,
    segment_len=evaluation.segment_len,
    mem_len=mem_len,
    context_len=evaluation.context_len,
    same_length=evaluation.same_length,
  )
  tokens = evaluation.batch_size * evaluation.segment_len
  with _announced(f"evaluation with a memory of {mem_len}"):
    lowered = lower_evaluation(scoring, mesh)
    plan = _plan(
      lowered,
      mesh,
      count=evaluator.SEGMENTS_PER_CALL,
      tokens=tokens,
      useful=useful,
    )
  return {**plan, "mem_len": mem_len, "mesh": dict(mesh.shape)}


def lower_evaluation(
  scoring: schema.Scoring, mesh: jax.sharding.Mesh
) -> jax.stages.Lowered:
  """Lowers one call of evaluation with the longest memory, for a mesh."""
  evaluation = scoring.eval
  with jax.set_mesh(mesh):
    segments = segment.abstract_segments(
      mesh,
      evaluator.SEGMENTS_PER_CALL,
      evaluation,
      evaluation.segment_len,
      has_weights=True,
    )
    scorer = evaluator.Evaluator(scoring, mesh, mem_len=max(evaluation.mem_len))
    return scorer.lower(segments)


def generation_plan(
  model: schema.ModelConfig,
  evaluation: schema.EvalConfig,
  generate: schema.GenerateConfig,
  device: jax.Device,
) -> Plan:
  """Plans one token of each sample, on one device; times are per token."""
  useful = network.forward_flops_per_token(
    model,
    segment_len=generate.segment_len,
    mem_len=generate.mem_len,
    same_length=evaluation.same_length,
    step_len=1,
  )
  tokens = generate.num_samples
  mesh = mesh_lib.of_one_device(device)
  with _announced("generation"):
    lowered = generation.lower(model, evaluation, generate, mesh)
    plan = _plan(lowered, mesh, count=1, tokens=tokens, useful=useful)
  return {**plan, "mem_len": generate.mem_len, "num_samples": tokens}


def _bytes_while_evaluating(
  recipe: schema.Recipe,
  scoring: schema.Scoring,
  mesh: jax.sharding.Mesh,
  evaluation: Plan,
) -> int | None:
  """Bytes per chip during a validation, where the training state stays.

  None if training never validates, or if evaluation does not fit by itself.

  Args:
    recipe: of training.
    scoring: how the run is evaluated after training.
    mesh: of training.
    evaluation: the plan of `scoring`.
  """
  if not recipe.train.eval_every_steps:
    return None
  mem_len = recipe.train.mem_len
  validation = programs.validation(scoring, mem_len)
  planned = (evaluation["mem_len"], evaluation["mesh"])
  if planned != (mem_len, dict(mesh.shape)):
    evaluation = eval_plan(validation, mesh)
  held = evaluation.get("hbm_bytes_per_chip")
  if held is None:
    return None
  state, memory = programs.sharded_abstract_state(recipe, mesh)
  if not protocol.caches_keys(
    validation.model, validation.eval, mesh, mem_len=mem_len
  ):
    # Evaluation has counted the parameters.
    state = state._replace(params=None)
  sizes = [
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves((state, memory))
  ]
  return held + sum(sizes)


def _plan(
  lowered: jax.stages.Lowered,
  mesh: jax.sharding.Mesh,
  *,
  count: int,
  tokens: int,
  useful: float,
) -> Plan:
  """Compiles a program and describes one step; bytes are per chip.

  A conditional counts as on average over all updates, and as its most expensive
  branch in `estimated_step_seconds_at_most`. The compiler gives no
  cycles for our kernels: `kernel_cycles` is the minimum that the matrix units
  need, and is part of `estimated_cycles`.
  """
  platform = mesh.devices.flat[0].platform
  options = gpus.COMPILER_OPTIONS if platform == "gpu" else None
  start = time.perf_counter()
  try:
    compiled = lowered.compile(options)
  except jax.errors.JaxRuntimeError as error:
    # A chip that is not there says it in other words than one that is.
    text = str(error)
    if "exceeds" not in text and not errors.is_shortage(error):
      raise
    line = next(part for part in text.splitlines() if part.strip())
    return {"fits": False, "reason": line[:300]}
  seconds = time.perf_counter() - start
  kind = mesh.devices.flat[0].device_kind
  program = compiled.as_text()
  memory = compiled.memory_analysis()
  assert program is not None
  assert memory is not None
  held = held_bytes(compiled)
  chip = hardware.CHIPS[kind]
  peak = hardware.PEAK_FLOPS[kind]

  def cycles(cost: hlo_cost.Cost) -> float:
    return (cost.cycles + cost.kernel_flops * chip.clock / peak) / count

  cost = hlo_cost.program_cost(program, is_expected=True)
  step_seconds = cycles(cost) / chip.clock
  at_most = cycles(hlo_cost.program_cost(program)) / chip.clock
  traffic = cost.traffic() / count
  executed = (cost.flops + cost.kernel_flops) / count * mesh.size
  useful_flops = useful * tokens
  return {
    "fits": held <= chip.hbm_bytes,
    "hbm_bytes_per_chip": held,
    "hbm_capacity_bytes": chip.hbm_bytes,
    "argument_bytes": memory.argument_size_in_bytes,
    "output_bytes": memory.output_size_in_bytes,
    "temp_bytes": memory.temp_size_in_bytes,
    "flops_per_step": useful_flops,
    "executed_flops_per_step": executed,
    "executed_over_useful": executed / useful_flops,
    "estimated_cycles": cycles(cost),
    "kernel_cycles": cost.kernel_flops * chip.clock / peak / count,
    "cycles_by_part": cost.by_part(steps=count),
    "estimated_step_seconds": step_seconds,
    "estimated_step_seconds_at_most": at_most,
    "estimated_mfu": useful_flops / (step_seconds * peak * mesh.size),
    "estimated_tokens_per_second_per_chip": tokens / step_seconds / mesh.size,
    "collective_bytes": {
      name: size / count for name, size in cost.collective_bytes.items()
    },
    "collective_seconds": traffic / chip.link_bytes,
    "compile_seconds": seconds,
  }


def smaller(
  config: schema.ExperimentConfig, *, num_devices: int, num_slices: int = 1
) -> Iterator[tuple[str, schema.ExperimentConfig]]:
  """Yields flags and the configuration that they give, smallest change first.

  Rematerialisation, sharded parameters and gradient accumulation leave every
  update the same up to rounding; a smaller batch does not.
  """
  # According to the plans in docs/tpu.md, recomputing attention halves the
  # memory of wt103_large at half the cost of recomputing everything.
  remat: dict[str, object] = {"model.remat": "full"}
  # The number of shards must divide the model's width, and a slice.
  num_shards = math.gcd(num_devices // num_slices, config.model.model_dim)
  split: dict[str, object] = {}
  if num_shards > 1:
    split = {"mesh.data": -1, "mesh.fsdp": num_shards, "mesh.tensor": 1}
  both: dict[str, object] = {**remat, **split}
  tries: list[dict[str, object]] = [split, both]
  if config.model.remat != "full":
    tries = [{"model.remat": "attention"}, remat, *tries]
  lanes = config.train.batch_size
  for factor in (2, 4, 8):
    steps = factor * config.train.accumulation_steps
    if lanes % (steps * num_devices) == 0:
      tries.append({**both, "train.accumulation_steps": steps})
  for divisor in (2, 4, 8):
    if lanes % (divisor * num_devices) == 0:
      fewer = {"train.batch_size": lanes // divisor}
      # One lane per device at a time.
      steps = lanes // divisor // num_devices
      tries.append({**both, **fewer, "train.accumulation_steps": steps})
  seen = {config}
  for fields in tries:
    changed = load.replaced(config, fields)
    if changed not in seen:
      seen.add(changed)
      flags = [f"--config.{name}={value}" for name, value in fields.items()]
      yield " ".join(flags), changed


def _nearest(
  config: schema.ExperimentConfig, devices: list[jax.Device]
) -> Plan | None:
  """The first smaller configuration that fits, with its plan, or None."""
  tries = smaller(
    config,
    num_devices=len(devices),
    num_slices=mesh_lib.num_slices(devices),
  )
  for change, changed in tries:
    logging.info("The configuration does not fit; trying %s.", change)
    mesh = programs.make_mesh(changed.recipe, changed.mesh, devices=devices)
    plan = train_plan(
      changed.recipe, changed.data, mesh, count=changed.updates_per_call
    )
    if plan["fits"]:
      return {"change": change, **plan}
  return None
