"""How fast the devices are: plain products and copies, and published models.

A share of the peak is of the figure that the maker publishes
(`hardware.py`); a share of what was measured is of the fastest product, or
traffic, that this machine reached. What `--mode=plan` estimates for an update
of the same chip stands beside the measured time.

Shapes: n rows and columns of a matrix.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from transformer_xl import errors
from transformer_xl import hardware
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.evaluation import evaluator
from transformer_xl.experiments import enwik8_base
from transformer_xl.experiments import enwik8_large
from transformer_xl.experiments import quickstart
from transformer_xl.experiments import wt103_base
from transformer_xl.experiments import wt103_large
from transformer_xl.model import network
from transformer_xl.planning import gpus
from transformer_xl.planning import plan
from transformer_xl.text import decoding
from transformer_xl.text import language_model
from transformer_xl.training import programs
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model

# Experiments, and the lanes of a device in training.
_PUBLISHED = {
  "wt103_large": (wt103_large, 8),
  "enwik8_large": (enwik8_large, 4),
  "wt103_base": (wt103_base, 15),
  "enwik8_base": (enwik8_base, 4),
}
_SHORT = {"quickstart": (quickstart, 8)}
_ROUNDS = 5  # Timed calls, of which the fastest counts: others only wait.
_UPDATES = 2  # In a call.
_NUM_TOKENS = 64


class Timing(NamedTuple):
  """The time of one kind of work.

  Attributes:
    part: product, memory, update, segment or token.
    case: sizes, or the experiment and how many of its layers.
    seconds: of one of them.
    tokens: that it reads; 0 for products and memory.
    work: useful operations, or bytes that have to be moved.
    unit: "FLOP" or "byte".
    peak: published work per second of all devices that share it; None if it is
      not known.
    planned_seconds: of an update, as `--mode=plan` estimates it for the same
      TPU or GPU; None where it knows none.
  """

  part: str
  case: str
  seconds: float
  tokens: int
  work: float
  unit: str
  peak: float | None
  planned_seconds: float | None = None

  @property
  def rate(self) -> float:
    """Work per second."""
    return self.work / self.seconds

  def record(self, measured: float) -> metrics_log.Json:
    """The timing as JSON; `measured` is the fastest rate of plain work."""
    return self._asdict() | {
      "rate": self.rate,
      "tokens_per_second": self.tokens / self.seconds,
      "share_of_peak": self.peak and self.rate / self.peak,
      "share_of_measured": self.rate / measured,
    }


def run(*, short: bool) -> list[metrics_log.Json]:
  """Times everything, and logs a line for each as soon as it is known."""
  products = [
    time_product(dtype, 1024 if short else 8192)
    for dtype in ("float32", "bfloat16")
  ]
  memory = time_memory(num_bytes=2**27 if short else 2**30)
  measured = {
    "FLOP": max(timing.rate for timing in products),
    "byte": memory.rate,
  }
  count = jax.device_count()
  records = []
  for timing in itertools.chain(products, [memory], _time_models(short=short)):
    shared = count if timing.part in ("update", "segment") else 1
    record = timing.record(measured[timing.unit] * shared)
    _log(record)
    records.append(record)
  return records


def _time_models(*, short: bool) -> Iterator[Timing]:
  """The updates, segments and tokens of all experiments."""
  for name, (experiment, lanes) in (_SHORT if short else _PUBLISHED).items():
    config = _prepared(experiment.get_config(), lanes * jax.device_count())
    yield from _time_model(name, config)


def time_product(dtype: str, size: int) -> Timing:
  """The fastest product of two matrices [n, n], on the slowest local device."""
  repeats = 8
  draw = np.random.default_rng(0)
  left = np.asarray(draw.standard_normal((size, size)), dtype)
  right = np.asarray(left / size**0.5, dtype)  # Products stay finite.

  @jax.jit
  def multiply(left: jax.Array, right: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, repeats, lambda _, rows: rows @ right, left)

  seconds = []
  for device in jax.local_devices():
    arrays = jax.device_put((left, right), device)
    call = functools.partial(multiply, *arrays)
    seconds.append(_seconds(call) / repeats)
  kind = jax.devices()[0].device_kind
  return Timing(
    part="product",
    case=f"{dtype} {size} x {size} x {size}",
    seconds=max(seconds),
    tokens=0,
    work=2.0 * size**3,
    unit="FLOP",
    # Published for products of bfloat16.
    peak=hardware.PEAK_FLOPS.get(kind) if dtype == "bfloat16" else None,
  )


def time_memory(*, num_bytes: int) -> Timing:
  """Reading and writing a large array, on the slowest local device."""
  repeats = 8
  array = np.ones((num_bytes // 4,), np.float32)

  @jax.jit
  def scale(array: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, repeats, lambda _, rows: rows * 0.5, array)

  seconds = []
  for device in jax.local_devices():
    call = functools.partial(scale, jax.device_put(array, device))
    seconds.append(_seconds(call) / repeats)
  kind = jax.devices()[0].device_kind
  return Timing(
    part="memory",
    case=f"{num_bytes >> 20} MiB read and written",
    seconds=max(seconds),
    tokens=0,
    work=2.0 * num_bytes,
    unit="byte",
    peak=hardware.PEAK_BANDWIDTH.get(kind),
  )


def _time_model(name: str, config: schema.ExperimentConfig) -> Iterator[Timing]:
  """An update, an evaluation segment and a token, with the layers that fit."""
  layers = config.model.num_layers
  while layers:
    fewer = load.replaced(config, {"model.num_layers": layers})
    case = f"{name}, {layers} of {config.model.num_layers} layers"
    try:
      timings = [
        time_update(case, fewer.recipe, fewer.data, fewer.mesh),
        time_segment(case, fewer.scoring, fewer.mesh),
        time_token(case, fewer),
      ]
    except jax.errors.JaxRuntimeError as error:
      if not errors.is_shortage(error):
        logging.exception("%s could not be timed.", case)
        return
      logging.info("%s does not fit.", case)
      layers //= 2
    else:
      yield from timings
      return


def time_update(
  case: str,
  recipe: schema.Recipe,
  data: schema.DataConfig,
  axes: schema.MeshConfig,
) -> Timing:
  """An update of all lanes, on the mesh that a run would choose."""
  mesh = programs.make_mesh(recipe, axes)
  train = recipe.train
  stream = streams.TrainStream(
    _text(recipe.model, train.batch_size * train.segment_len * 4),
    num_lanes=train.batch_size,
    segment_len=train.segment_len,
    resets="never",
  )
  with jax.set_mesh(mesh):
    create_state, create_memory = programs.creators(recipe, mesh)
    carry = create_state(), create_memory()
    update = programs.update(recipe, mesh)
    numbers = programs.numbers(recipe)
    segments = streams.device_segments(
      stream, 0, _UPDATES, mesh_lib.segments(mesh)
    )

    def call() -> shapes.PyTree:
      nonlocal carry
      state, memory, metrics = update(numbers, *carry, segments)
      carry = state, memory
      return metrics

    seconds = _seconds(call) / _UPDATES
  tokens = train.batch_size * train.segment_len
  useful = 3 * network.forward_flops_per_token(
    recipe.model,
    segment_len=train.segment_len,
    mem_len=train.mem_len,
    same_length=train.same_length,
  )
  return Timing(
    part="update",
    case=f"{case}, {train.batch_size} lanes of {train.segment_len}",
    seconds=seconds,
    tokens=tokens,
    work=useful * tokens,
    unit="FLOP",
    peak=_peak_of_all(),
    planned_seconds=_planned_seconds(recipe, data, axes),
  )


def _planned_seconds(
  recipe: schema.Recipe, data: schema.DataConfig, axes: schema.MeshConfig
) -> float | None:
  """What `--mode=plan` estimates for an update; None where it cannot."""
  devices = jax.devices()
  if devices[0].device_kind not in hardware.CHIPS:
    return None
  try:
    if hardware.is_gpu():
      devices = gpus.described(devices)
    mesh = programs.make_mesh(recipe, axes, devices=devices)
    planned = plan.train_plan(recipe, data, mesh, count=_UPDATES)
    return planned.get("estimated_step_seconds")
  except Exception:  # Compilers and drivers have no common type.
    logging.exception("The update could not be planned.")
    return None


def time_segment(
  case: str, scoring: schema.Scoring, axes: schema.MeshConfig
) -> Timing:
  """A segment of evaluation in all lanes, after a full memory."""
  mem_len = max(scoring.eval.mem_len)
  segment_len = scoring.eval.segment_len
  lanes = scoring.eval.batch_size
  mesh = mesh_lib.make_mesh(axes)
  stream = streams.EvalStream(
    _text(scoring.model, lanes * segment_len * 5),
    num_lanes=lanes,
    segment_len=segment_len,
    warmup_len=0,
    resets="never",
  )
  with jax.set_mesh(mesh):
    made = evaluator.Evaluator(scoring, mesh, mem_len=mem_len)
    frozen = made.mesh_reader.freeze(_parameters(scoring.model, mesh))
    state = made.mesh_reader.start(frozen)
    segments = streams.device_segments(stream, 0, 4, mesh_lib.segments(mesh))

    def call() -> shapes.PyTree:
      nonlocal state
      state, sums = made.score_segments(frozen, state, segments)
      return sums

    seconds = _seconds(call) / 4
  tokens = lanes * segment_len
  useful = network.forward_flops_per_token(
    scoring.model,
    segment_len=segment_len,
    mem_len=mem_len,
    same_length=scoring.eval.same_length,
  )
  return Timing(
    part="segment",
    case=f"{case}, {lanes} lanes of {segment_len}, memory {mem_len}",
    seconds=seconds,
    tokens=tokens,
    work=useful * tokens,
    unit="FLOP",
    peak=_peak_of_all(),
  )


def time_token(case: str, config: schema.ExperimentConfig) -> Timing:
  """A token of one sample, on one device, as `--mode=generate` draws it."""
  mem_len = max(config.eval.mem_len)
  device = jax.local_devices()[0]
  mesh = mesh_lib.of_one_device(device)
  symbols = tuple(map(str, range(config.model.vocab_size)))
  settings = load.replaced(
    config,
    {
      "generate.num_tokens": _NUM_TOKENS,
      "generate.tokens_per_call": _NUM_TOKENS,
    },
  ).generate
  with jax.set_mesh(mesh):
    params = _parameters(config.model, mesh)
    model = language_model.make(
      trained_model.TrainedModel(config, mesh, params, step=0),
      vocabulary.WordVocabulary(
        symbols, lower_case=False, end_of_line=None, unk="0"
      ),
      mem_len=mem_len,
      segment_len=config.eval.segment_len,
      source="check",
    )
    prompt = np.ones(config.eval.segment_len, model.vocabulary.dtype)
    parts = decoding.stream(
      model,
      decoding.empty_state(model).extended(prompt),
      config=settings,
      keys=decoding.sample_keys(0, 1),
    )
    *_, samples = parts
    num_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(model.frozen))
  return Timing(
    part="token",
    case=f"{case}, memory {mem_len}",
    seconds=samples.seconds / _NUM_TOKENS,
    tokens=1,
    work=num_bytes,
    unit="byte",
    peak=hardware.PEAK_BANDWIDTH.get(device.device_kind),
  )


def _prepared(
  config_dict: shapes.PyTree, lanes: int
) -> schema.ExperimentConfig:
  """An experiment with a vocabulary, and lanes for all devices."""
  config = load.from_config_dict(config_dict)
  values = {
    "model.vocab_size": config.model.vocab_size or 256,
    "train.batch_size": lanes,
    "train.segments_per_call": _UPDATES,
    "mesh": schema.MeshConfig(data=-1, fsdp=-1, tensor=-1),
  }
  return load.replaced(config, values)


def _text(model: schema.ModelConfig, num_tokens: int) -> token_file.TokenFile:
  """Random tokens, of which one in 50 is in a tail cluster, as in a text."""
  draw = np.random.default_rng(0)
  size = model.vocab_size
  first = min((*model.cutoffs, size))
  frequent = draw.integers(first, size=num_tokens)
  rare = draw.integers(size, size=num_tokens)
  tokens = np.where(draw.random(num_tokens) < 0.02, rare, frequent)
  return token_file.TokenFile(
    tokens.astype(np.int32), np.zeros(1, np.int64), "", {}
  )


def _parameters(
  model: schema.ModelConfig, mesh: jax.sharding.Mesh
) -> shapes.PyTree:
  """New parameters on a mesh."""
  params = network.abstract_params(model)
  at = mesh_lib.shardings(mesh, params, network.splits(model))

  def draw() -> shapes.PyTree:
    return network.init_params(model, jax.random.key(0))

  return jax.jit(draw, out_shardings=at)()


def _seconds(call: Callable[[], shapes.PyTree]) -> float:
  """The shortest time of a call, once it is compiled and has run."""
  jax.block_until_ready(call())
  seconds = []
  for _ in range(_ROUNDS):
    start = time.perf_counter()
    jax.block_until_ready(call())
    seconds.append(time.perf_counter() - start)
  return min(seconds)


def _peak_of_all() -> float | None:
  """Published operations per second of all devices."""
  peak = hardware.PEAK_FLOPS.get(jax.devices()[0].device_kind)
  return peak and peak * jax.device_count()


def _log(record: metrics_log.Json) -> None:
  """Logs a timing in one line."""
  is_bytes = record["unit"] == "byte"
  text = f"{record['part']}: {record['case']}: {record['seconds'] * 1e3:.3g} ms"
  if record["tokens"]:
    text += f", {record['tokens_per_second']:.0f} tokens/s"
  text += f", {record['rate'] / 1e9:.1f} {'GB/s' if is_bytes else 'GFLOP/s'}"
  if record["share_of_peak"] is not None:
    text += f", {record['share_of_peak']:.0%} of the published peak"
  if record["part"] in ("update", "segment", "token"):
    text += f", {record['share_of_measured']:.0%} of what was measured"
  if record["planned_seconds"] is not None:
    text += f", planned {record['planned_seconds'] * 1e3:.3g} ms"
  logging.info("%s.", text)
