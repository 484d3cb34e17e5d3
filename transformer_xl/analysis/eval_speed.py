"""Evaluation speed against a sliding window (paper, table 9).

`--mode=eval_speed` times, for each attention length, one predicted token of

vanilla     the vanilla twin, which reads a window of that length again for
            every token it predicts
recomputed  this model without memory, read in the same way
hidden      a memory of hidden states of that length, as in the paper
key_value   a memory of cached keys and values

with one lane, alternating between them. Parameters are random: times do not
depend on them, so no checkpoint is needed.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np
from absl import logging
from matplotlib import axes as axes_lib
from matplotlib import figure as figure_lib

from transformer_xl import shapes
from transformer_xl.analysis import context_windows
from transformer_xl.analysis import costs
from transformer_xl.analysis import plotting
from transformer_xl.analysis import vanilla
from transformer_xl.config import layer_rules
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.evaluation import protocol
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.workdir import metrics_log

PAPER = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}  # Times faster.
REPEATS = 5  # Windows, or segments, that are timed.
LABELS = {
  "vanilla": "sliding window, vanilla",
  "recomputed": "sliding window, this model",
  "hidden": "memory of hidden states",
  "key_value": "cached keys and values",
}


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Times each method at each length; returns `results/eval_speed.json`."""
  check(config, workdir)
  directory = config.data.dataset_dir
  config = load.with_vocab_size(config, token_file.read_meta(directory))
  tokens = token_file.open_split(directory, config.eval.split).tokens
  twin = dataclasses.replace(config.model, **vanilla.changes(config.model))
  rows = []
  for length in config.analysis.speed_lens:
    text = np.resize(tokens, length + config.eval.segment_len * (REPEATS + 2))
    hidden = protocol.make_network_reader(config.model, config.eval, length)
    keys = protocol.make_reader(config.model, config.eval, length)
    methods = _methods(
      hidden, keys, twin, text.astype(np.int32), config.eval.segment_len
    )
    row = _row(length, _timed(methods))
    _log(row)
    rows.append(row)
  result = {
    "made_by": plotting.made_by(),
    "device": jax.devices()[0].device_kind,
    "config": dataclasses.asdict(config),
    "num_parameters": _count(config.model),
    "vanilla_parameters": _count(twin),
    "segment_len": config.eval.segment_len,
    "num_windows_timed": REPEATS,
    "num_segments_timed": REPEATS,
    "lengths": rows,
  }
  plotting.write(workdir, "eval_speed", result, {"eval_speed": draw(result)})
  return result


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if there is no such split, or nothing can be timed."""
  del workdir
  layer_rules.require_full_memory(config.model, "--mode=eval_speed")
  token_file.open_split(config.data.dataset_dir, config.eval.split)
  longest = max(*config.analysis.speed_lens, config.eval.segment_len)
  encodings.of(config.model).check_segment_len(config.model, longest)


class _Method(NamedTuple):
  """A way to evaluate.

  Attributes:
    call: what is timed; takes the number of the call.
    num_tokens: the tokens that a call predicts.
  """

  call: Callable[[int], jax.Array]
  num_tokens: int


def _methods(
  hidden: reader_lib.NetworkReader,
  keys: reader_lib.Reader,
  twin: schema.ModelConfig,
  text: jt.Int[np.ndarray, "N"],
  segment_len: int,
) -> dict[str, _Method]:
  """The methods by name; `twin` is the vanilla model."""
  model = hidden.config
  length = hidden.mem_len
  params = costs.random_params(model)
  # Not compiled, since the identity would copy every array.
  of_hidden = _segments(hidden, params, text, segment_len)
  frozen = jax.jit(keys.freeze)(params)
  of_keys = _segments(keys, frozen, text, segment_len)
  vanilla_params = costs.random_params(twin)
  return {
    "vanilla": _Method(_window(twin, vanilla_params, text, length), 1),
    "recomputed": _Method(_window(model, params, text, length), 1),
    "hidden": _Method(of_hidden, segment_len),
    "key_value": _Method(of_keys, segment_len),
  }


def _window(
  model_config: schema.ModelConfig,
  params: shapes.PyTree,
  text: jt.Int[np.ndarray, "N"],
  length: int,
) -> Callable[[int], jax.Array]:
  """Predicts one token from a window, read without memory."""
  model = network.Network(model_config)
  last = np.array([length - 1])
  read = jax.jit(
    functools.partial(context_windows.read_window, model=model, wanted=last)
  )
  return lambda index: read(params, text[None, index : index + length + 1])


def _segments(
  reader: reader_lib.NetworkReader | reader_lib.Reader,
  frozen: shapes.PyTree,
  text: jt.Int[np.ndarray, "N"],
  segment_len: int,
) -> Callable[[int], jax.Array]:
  """Predicts the segment of an index, with the memory of the call before."""
  score = jax.jit(reader.nll, donate_argnums=1)
  start = functools.partial(reader.start, batch_size=1)
  carry = [jax.jit(start)(frozen)]

  def call(index: int) -> jax.Array:
    start = index * segment_len
    part = jnp.asarray(text[None, start : start + segment_len + 1])
    # Without resets: emptying a memory may touch every slot of it.
    nll, carry[0] = score(frozen, carry[0], part[:, :-1], part[:, 1:])
    return nll

  return call


def _timed(methods: dict[str, _Method]) -> dict[str, float]:
  """Median seconds per predicted token; the methods alternate."""
  for method in methods.values():
    jax.block_until_ready(method.call(0))  # Compiles.
  seconds: dict[str, list[float]] = {name: [] for name in methods}
  for index in range(REPEATS):
    for name, method in methods.items():
      start = time.perf_counter()
      jax.block_until_ready(method.call(1 + index))
      duration = time.perf_counter() - start
      seconds[name].append(duration / method.num_tokens)
  return {name: statistics.median(values) for name, values in seconds.items()}


def _row(length: int, seconds: dict[str, float]) -> metrics_log.Json:
  def times_faster(base: str) -> dict[str, float]:
    return {name: seconds[base] / seconds[name] for name in LABELS}

  return {
    "attention_len": length,
    "milliseconds_per_token": {name: 1e3 * x for name, x in seconds.items()},
    "times_faster_than_vanilla": times_faster("vanilla"),
    "times_faster_than_recomputed": times_faster("recomputed"),
    "paper_times_faster": PAPER.get(length),
  }


def _log(row: metrics_log.Json) -> None:
  times = row["milliseconds_per_token"]
  faster = row["times_faster_than_vanilla"]
  logging.info(
    "attention %d: vanilla %.1f ms a token, hidden states %.3f (%.0f times "
    "faster), keys and values %.3f (%.0f times; paper: %s)",
    row["attention_len"],
    times["vanilla"],
    times["hidden"],
    faster["hidden"],
    times["key_value"],
    faster["key_value"],
    row["paper_times_faster"] or "-",
  )


def _count(model: schema.ModelConfig) -> int:
  return network.num_parameters(network.abstract_params(model))


@plotting.in_style
def draw(result: metrics_log.Json) -> figure_lib.Figure:
  """Plots time per token and speed-up by attention length."""
  figure, (left, right) = plotting.subplots(1, 2, figsize=(7.0, 2.9))
  lengths = [row["attention_len"] for row in result["lengths"]]

  def line(axes: axes_lib.Axes, field: str, name: str) -> None:
    axes.plot(
      lengths,
      [row[field][name] for row in result["lengths"]],
      "o-",
      markersize=4,
      color=f"C{list(LABELS).index(name)}",
      label=LABELS[name],
    )

  for name in LABELS:
    line(left, "milliseconds_per_token", name)
  tokens = "attention length (tokens)"
  left.set(yscale="log", ylabel="milliseconds a token", xlabel=tokens)
  left.legend(fontsize=7, loc="center right")
  for name in ("hidden", "key_value"):
    line(right, "times_faster_than_vanilla", name)
  known = [one for one in lengths if one in PAPER]
  label = "paper (hidden states, GPU)"
  right.plot(known, [PAPER[one] for one in known], "kx--", label=label)
  right.set(ylabel="times faster than vanilla", xlabel=tokens)
  right.set_ylim(bottom=0)
  right.legend(fontsize=7)
  return figure
