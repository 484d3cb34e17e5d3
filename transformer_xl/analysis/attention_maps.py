"""Attention of the heads by distance (paper, appendix D); `--mode=attention`.

Reads a text, or the start of a split, with the longest memory of
`config.eval.mem_len`, and writes the paper's figures:

attention_distance.png  each head's mean attention by distance (figure 5)
attention_heads.png     attention of some heads to memory (figure 6)
attention_terms.png     the terms of the scores by distance (figure 7)

Their numbers are in `attention.npz`, a summary in `attention.json`.

Heads are counted through all layers, from 1: with ten in a layer, head 78 is in
layer 8. The heads of figure 6 are those of `config.analysis.heads`; by default
the paper's three for a model of its size, and otherwise the three that attend
farthest.

Keys are tokens: compressed slots, which `compressive` layers attend to as well,
count in the share of memory alone. What `memorizing` layers retrieve is left
out.

Shapes: N layers that attend, H heads, T queries of the last segment, K = M + T
keys, R = M + 1 distances.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np
from absl import logging

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.analysis import attention_plots
from transformer_xl.analysis import plotting
from transformer_xl.analysis import score_terms
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import protocol
from transformer_xl.evaluation import settings
from transformer_xl.model import network
from transformer_xl.processes import exchange
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

NUM_WIDEST = 3  # As in the paper.
TOP_SHARE = 0.2  # Share of memory that is marked for a target.
# The heads of figure 6, and the layers and heads of the paper's model.
PAPER_HEADS = (8, 78, 158)
PAPER_SIZES = (16, 10)


class Head(NamedTuple):
  """A head of a layer that attends."""

  place: int  # Of the layer among those that attend, from 0.
  in_layer: int  # Among the heads of its layer, from 0.
  layer: int  # Among all layers, from 1.
  number: int  # Among the heads of all layers, from 1.

  @property
  def name(self) -> str:
    """What pictures and errors call it."""
    return f"head {self.number} (layer {self.layer})"


class Maps(NamedTuple):
  """Measurements; distances are from 0 to M."""

  by_distance: jt.Float[np.ndarray, "N H R"]  # Mean over queries.
  memory_mass: jt.Float[np.ndarray, "N"]  # Share of attention.
  nll: float  # Mean nats per token.
  nll_without_memory: float  # Of the same tokens.
  num_tokens: int
  weights: jt.Float[np.ndarray, "N H T K"]  # Of the last segment.
  terms: jt.Float[np.ndarray, "4 N H R"]  # Mean over queries.
  context: np.ndarray  # Tokens [K] of memory and last segment.


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError for no memory, a short text, or heads not there."""
  del workdir
  _given_heads(config.model, config.analysis.heads)
  vocabulary = vocabulary_lib.load(config.data.dataset_dir)
  _text(config.data, config.eval, config.analysis, vocabulary)


def _lengths(evaluation: schema.EvalConfig) -> tuple[int, int]:
  """The lengths of memory and segment, M and T."""
  mem_len = max(evaluation.mem_len)
  if not mem_len:
    raise errors.UserError(
      "there is no memory to pay attention to: eval.mem_len is 0; set "
      "--config.eval.mem_len to the memory of training."
    )
  return mem_len, min(evaluation.segment_len, mem_len)


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Measures and draws; returns the content of `attention.json`.

  Raises:
    UserError: the memory is empty, the text is too short, or the model does not
      have the heads that are asked for.
  """
  config, vocabulary = run_vocabulary.load_for(config, workdir)
  config = load.replaced(config, {"data.targets": "all"})
  mem_len, segment_len = _lengths(config.eval)
  given_heads = _given_heads(config.model, config.analysis.heads)
  text = _text(config.data, config.eval, config.analysis, vocabulary)
  model = trained_model.load(config, workdir)
  with jax.set_mesh(model.mesh):
    trained_model.require_numbers(
      model.params, f"checkpoint {model.step} of {workdir}"
    )
    resets = streams.reset_rule(config.data, config.model)
    segments = attention_use.segments(text, resets, segment_len)
    net = protocol.make_network(config.model, config.eval, inspects=True)
    maps = _measure(
      net,
      model.params,
      text,
      segments,
      mem_len=mem_len,
      segment_len=segment_len,
    )
  layers = attention_use.attending(config.model)
  heads = given_heads or widest(maps.by_distance, layers)
  weights = _of_heads(maps.weights, heads)
  marked = top_of_memory(weights)
  given = config.analysis.text
  result = {
    "made_by": plotting.made_by(),
    "dataset": "" if given else config.data.name,
    "split": "" if given else config.eval.split,
    "given_text": given,
    "given_heads": [*config.analysis.heads],
    **settings.of_data(
      config.scoring, segment_len=segment_len, mem_len=mem_len
    ),
    **_summary(maps, layers),
    "heads": _entries(heads, maps, marked, vocabulary),
    "terms": score_terms.findings(maps.terms),
    "checkpoint_step": model.step,
  }
  logging.info("%s", result["terms"]["sentence"])
  words = [vocabulary.symbol(int(token)) for token in maps.context]
  names = [head.name for head in heads]
  plotting.write(
    workdir,
    "attention",
    result,
    {
      "attention_distance": attention_plots.distances(maps.by_distance, layers),
      "attention_heads": attention_plots.memories(
        weights, marked, names, words
      ),
      "attention_terms": attention_plots.terms(maps.terms),
    },
    by_distance=maps.by_distance,
    memory_mass=maps.memory_mass,
    attending_layers=layers,
    heads=[head.number for head in heads],
    weights_of_heads=weights,
    terms_by_distance=maps.terms,
    context=maps.context,
  )
  return result


def _of_heads(values: np.ndarray, heads: list[Head]) -> np.ndarray:
  """Picks some heads out of the values of all, [N, H, ...]."""
  places = [head.place for head in heads]
  indices = [head.in_layer for head in heads]
  return values[places, indices]


def _entries(
  heads: list[Head],
  maps: Maps,
  marked: np.ndarray,
  vocabulary: vocabulary_lib.Vocabulary,
) -> list[metrics_log.Json]:
  """What the result says of each head; `marked` are its keys in pictures."""
  distances = _of_heads(mean_distance(maps.by_distance), heads).tolist()
  return [
    {
      "number": head.number,
      "layer": head.layer,
      "head": head.in_layer + 1,  # Counted in its layer.
      "mean_distance": distance,
      "targets": _targets(marks, maps.context, vocabulary),
    }
    for head, distance, marks in zip(heads, distances, marked, strict=True)
  ]


def _given_heads(
  model: schema.ModelConfig, numbers: tuple[int, ...]
) -> list[Head]:
  """The heads of these numbers; the paper's if none are given.

  The result is empty if none are given and the model has other sizes than the
  paper's.

  Raises:
    UserError: a number is beyond the last head, or of a layer that does not
      attend.
  """
  attending = attention_use.attending(model)
  if not numbers:
    sizes = (model.num_layers, model.num_heads)
    if sizes != PAPER_SIZES or len(attending) < model.num_layers:
      return []
    numbers = PAPER_HEADS
  last = model.num_layers * model.num_heads
  heads = []
  for number in numbers:
    layer, index = divmod(number - 1, model.num_heads)
    layer += 1
    if number > last:
      raise errors.UserError(
        f"analysis.heads must be from 1 to {last}, in {model.num_layers} layers"
        f" of {model.num_heads} heads: there is {number}; set "
        "--config.analysis.heads."
      )
    if layer not in attending:
      raise errors.UserError(
        f"analysis.heads must be of layers that attend, which are "
        f"{', '.join(map(str, attending))}: head {number} is of layer {layer}; "
        "set --config.analysis.heads."
      )
    heads.append(Head(attending.index(layer), index, layer, number))
  return heads


def _text(
  data: schema.DataConfig,
  evaluation: schema.EvalConfig,
  analysis: schema.AnalysisConfig,
  vocabulary: vocabulary_lib.Vocabulary,
) -> token_file.TokenFile:
  """The given text, or the start of the split."""
  mem_len, segment_len = _lengths(evaluation)
  at_least = mem_len + 2 * segment_len + 1
  if analysis.text:
    source = "analysis.text"
    tokens = np.asarray(vocabulary.encode(analysis.text))
    file = token_file.TokenFile(tokens, np.zeros(1, int), "", {})
  else:
    source = "the text"
    file = token_file.open_split(data.dataset_dir, evaluation.split)
    tokens = file.tokens[: analysis.num_tokens + 1]
    file = dataclasses.replace(file, tokens=tokens)
  if len(tokens) < at_least:
    raise errors.UserError(
      f"{source} has {len(tokens)} tokens, but filling the memory and reading "
      f"a segment takes {at_least}; give more (analysis.num_tokens) or "
      "lower --config.eval.mem_len or --config.eval.segment_len."
    )
  return file


def _measure(
  model: network.Network,
  params: shapes.PyTree,
  file: token_file.TokenFile,
  segments: Iterable[segment_lib.Segment[np.ndarray]],
  *,
  mem_len: int,
  segment_len: int,
) -> Maps:
  """Reads a text and measures whole segments behind its first `mem_len`."""
  read = jax.jit(
    functools.partial(_read, model=model, num_keys=mem_len + segment_len)
  )
  score = jax.jit(functools.partial(model.apply, method="nll"))
  start_with = functools.partial(
    network.empty_state, model.config, batch_size=1, step_len=segment_len
  )
  memory = start_with(mem_len=mem_len)
  no_memory = start_with(mem_len=0)

  measured = []
  starts = range(0, len(file.tokens) - segment_len, segment_len)
  for start, segment in zip(starts, segments, strict=False):  # Not the padded.
    memory, found, weights = read(params, memory, segment)
    if start >= mem_len:
      without, _ = score(
        {"params": params},
        segment.inputs,
        segment.targets,
        no_memory,
        segment.resets,
      )
      measured.append(exchange.fetch((found, without)))
      last = start
  parts, nll_without_memory = zip(*measured, strict=True)
  return Maps(
    by_distance=np.mean([part.by_distance for part in parts], axis=0),
    memory_mass=np.mean([part.memory_mass for part in parts], axis=0),
    nll=float(np.mean([part.nll for part in parts])),
    nll_without_memory=float(np.mean(nll_without_memory)),
    num_tokens=len(measured) * segment_len,
    weights=exchange.fetch(weights),
    terms=score_terms.mean_terms([part.terms for part in parts]),
    context=np.asarray(file.tokens[last - mem_len : last + segment_len]),
  )


class _Segment(NamedTuple):
  """Measurements of one segment."""

  by_distance: jt.Float[shapes.Array, "N H R"]
  memory_mass: jt.Float[shapes.Array, "N"]
  nll: shapes.Losses
  terms: score_terms.Sums


def _read(
  params: shapes.PyTree,
  memory: network.State,
  segment: segment_lib.Segment[jax.Array],
  *,
  model: network.Network,
  num_keys: int,
) -> tuple[network.State, _Segment, jt.Float[shapes.Array, "N H T K"]]:
  """Reads a segment; returns the memory, measurements and attention weights."""
  found = attention_use.read_segment(params, memory, segment, model=model)

  def of_tokens(array: jax.Array) -> jax.Array:
    """The only lane, without compressed slots, which are the first keys.

    Where no layer attends as far as the memory reaches, zeros come first.
    """
    missing = max(num_keys - array.shape[-1], 0)
    padding = [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, [*padding, (missing, 0)])[:, 0, ..., -num_keys:]

  weights = of_tokens(found.weights)
  terms = jnp.stack([of_tokens(term) for term in found.terms])
  measurements = _Segment(
    by_distance=by_distance(weights),
    memory_mass=attention_use.memory_mass(found.weights),
    nll=found.nll,
    terms=score_terms.add_up(terms, of_tokens(found.visible)),
  )
  return found.memory, measurements, weights


def by_distance(
  weights: jt.Float[shapes.Array, "N H T K"],
) -> jt.Float[shapes.Array, "N H R"]:
  """Mean attention of the queries at distances 0 to M."""
  return jnp.mean(score_terms.at_distances(weights), axis=-2)


def mean_distance(profile: jt.Float[np.ndarray, "N H R"]) -> np.ndarray:
  """Mean distance that each head attends to, [N, H]."""
  distance = np.arange(profile.shape[-1])
  return (profile * distance).sum(-1) / profile.sum(-1)


def widest(
  profile: jt.Float[np.ndarray, "N H R"], layers: list[int]
) -> list[Head]:
  """The heads with the largest mean distances; `layers` are their numbers."""
  reach = mean_distance(profile)
  order = np.argsort(-reach, axis=None, kind="stable")[:NUM_WIDEST]
  heads = []
  for place, index in zip(*np.unravel_index(order, reach.shape), strict=True):
    layer = layers[place]
    number = (layer - 1) * reach.shape[1] + int(index) + 1
    heads.append(Head(int(place), int(index), layer, number))
  return heads


def top_of_memory(
  weights: jt.Float[np.ndarray, "C T K"],
) -> jt.Bool[np.ndarray, "C T M"]:
  """True for the fifth of memory that each query attends to most.

  Keys without any attention are never among them.
  """
  mem_len = weights.shape[-1] - weights.shape[-2]
  memory = weights[..., :mem_len]
  count = max(1, round(TOP_SHARE * mem_len))
  best = np.argsort(-memory, axis=-1, kind="stable")[..., :count]
  marked = np.zeros(memory.shape, bool)
  np.put_along_axis(marked, best, True, axis=-1)
  return marked & (memory > 0)


def _summary(maps: Maps, layers: list[int]) -> metrics_log.Json:
  """What `attention.json` has of all heads."""
  logging.info(
    "nll %.4f, %.4f without memory; attention to memory by layer: %s",
    maps.nll,
    maps.nll_without_memory,
    ", ".join(f"{share:.1%}" for share in maps.memory_mass),
  )
  return {
    "num_tokens": maps.num_tokens,
    "attending_layers": layers,
    "memory_share_by_layer": maps.memory_mass.tolist(),
    "nll": maps.nll,
    "nll_without_memory": maps.nll_without_memory,
    "mean_distance": mean_distance(maps.by_distance).tolist(),
  }


def _targets(
  marked: jt.Bool[np.ndarray, "T M"],
  context: np.ndarray,
  vocabulary: vocabulary_lib.Vocabulary,
) -> list[metrics_log.Json]:
  """For each of the last queries, the tokens in memory it attends to most."""
  segment_len, mem_len = marked.shape
  result = []
  for row in range(max(segment_len - 5, 0), segment_len):
    known = vocabulary.decode(context[mem_len : mem_len + row + 1])
    best = context[:mem_len][marked[row]]
    tokens = [vocabulary.symbol(int(token)) for token in best]
    result.append({"after": known[-60:], "top_of_memory": tokens})
  return result
