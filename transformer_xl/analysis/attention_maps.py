"""Attention of the heads by distance (paper, appendix D); `--mode=attention`.

Reads a text, or the start of a split, with the longest memory of
`config.eval.mem_len`, and writes the paper's figures:

attention_distance.png  each head's mean attention by distance (figure 5)
attention_widest.png    attention to memory of the widest heads (figure 6)
attention_terms.png     the terms of the scores of one head (figure 7)

Their numbers are in `attention.npz`, a summary in `attention.json`.

Keys are tokens: compressed slots, which `compressive` layers attend to as well,
count in the share of memory alone. What `memorizing` layers retrieve is left
out.

Shapes: N layers, H heads, T queries of the last segment, K = M + T keys.
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
TOP_SHARE = 0.2  # Share of memory that the summary lists for a target.


class Maps(NamedTuple):
  """Measurements; distances are from 0 to M."""

  by_distance: jt.Float[np.ndarray, "N H M+1"]  # Mean over queries.
  memory_mass: jt.Float[np.ndarray, "N"]  # Share of attention.
  nll: float  # Mean nats per token.
  nll_without_memory: float  # Of the same tokens.
  num_tokens: int
  weights: jt.Float[np.ndarray, "N H T K"]  # Of the last segment.
  terms: jt.Float[np.ndarray, "4 N H T K"]
  context: np.ndarray  # Tokens [K] of memory and last segment.


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if the memory is empty, or the text is too short."""
  del workdir
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
    UserError: the memory is empty, or the text is too short.
  """
  config, vocabulary = run_vocabulary.load_for(config, workdir)
  config = load.replaced(config, {"data.targets": "all"})
  mem_len, segment_len = _lengths(config.eval)
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
  chosen = widest(maps.by_distance)
  given = config.analysis.text
  result = {
    "made_by": plotting.made_by(),
    "dataset": "" if given else config.data.name,
    "split": "" if given else config.eval.split,
    "given_text": given,
    **settings.of_data(
      config.scoring, segment_len=segment_len, mem_len=mem_len
    ),
    **_summary(maps, chosen, vocabulary),
    "checkpoint_step": model.step,
  }
  layers, heads = zip(*chosen, strict=True)
  words = [vocabulary.symbol(int(token)) for token in maps.context]
  weights = maps.weights[layers, heads]
  terms = maps.terms[:, layers, heads]
  plotting.write(
    workdir,
    "attention",
    result,
    {
      "attention_distance": attention_plots.distances(maps.by_distance),
      "attention_widest": attention_plots.memories(weights, chosen, words),
      "attention_terms": attention_plots.terms(terms[:, 0], chosen[0]),
    },
    by_distance=maps.by_distance,
    memory_mass=maps.memory_mass,
    widest=chosen,
    weights_of_widest=weights,
    terms_of_widest=terms,
    context=maps.context,
  )
  return result


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
  read = jax.jit(functools.partial(attention_use.read_segment, model=model))
  score = jax.jit(functools.partial(model.apply, method="nll"))
  start_with = functools.partial(
    network.empty_state, model.config, batch_size=1, step_len=segment_len
  )
  memory = start_with(mem_len=mem_len)
  no_memory = start_with(mem_len=0)

  def of_tokens(array: jax.Array) -> jax.Array:
    """The only lane, without compressed slots, which are the first keys.

    Where no layer attends as far as the memory reaches, zeros come first.
    """
    num_keys = mem_len + segment_len
    missing = max(num_keys - array.shape[-1], 0)
    padding = [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, [*padding, (missing, 0)])[:, 0, ..., -num_keys:]

  measured = []
  starts = range(0, len(file.tokens) - segment_len, segment_len)
  for start, segment in zip(starts, segments, strict=False):  # Not the padded.
    found = read(params, memory, segment)
    memory = found.memory
    if start >= mem_len:
      without, _ = score(
        {"params": params},
        segment.inputs,
        segment.targets,
        no_memory,
        segment.resets,
      )
      profile = by_distance(of_tokens(found.weights))
      mass = attention_use.memory_mass(found.weights)
      results = (profile, mass, found.nll, without)
      measured.append(exchange.fetch(results))
      last = start
  profiles, masses, nll, nll_without_memory = zip(*measured, strict=True)
  terms = [of_tokens(term) for term in found.terms]
  return Maps(
    by_distance=np.mean(profiles, axis=0),
    memory_mass=np.mean(masses, axis=0),
    nll=float(np.mean(nll)),
    nll_without_memory=float(np.mean(nll_without_memory)),
    num_tokens=len(measured) * segment_len,
    weights=exchange.fetch(of_tokens(found.weights)),
    terms=np.stack(exchange.fetch(terms)),
    context=np.asarray(file.tokens[last - mem_len : last + segment_len]),
  )


@jax.jit
def by_distance(
  weights: jt.Float[shapes.Array, "N H T K"],
) -> jt.Float[shapes.Array, "N H M+1"]:
  """Mean attention of the queries at distances 0 to M."""
  segment_len, context_len = weights.shape[-2:]
  mem_len = context_len - segment_len
  query = jnp.arange(segment_len)[:, None]
  distance = jnp.arange(mem_len + 1)[None]
  key = mem_len + query - distance
  chosen = jnp.take_along_axis(weights, key[None, None], axis=-1)
  return jnp.mean(chosen, axis=-2)


def mean_distance(profile: jt.Float[np.ndarray, "N H R"]) -> np.ndarray:
  """Mean distance that each head attends to, [N, H]."""
  distance = np.arange(profile.shape[-1])
  return (profile * distance).sum(-1) / profile.sum(-1)


def widest(profile: jt.Float[np.ndarray, "N H R"]) -> list[tuple[int, int]]:
  """Layer and head of the heads with the largest mean distances."""
  reach = mean_distance(profile)
  order = np.argsort(-reach, axis=None, kind="stable")[:NUM_WIDEST]
  layers, heads = np.unravel_index(order, reach.shape)
  return [(int(n), int(h)) for n, h in zip(layers, heads, strict=True)]


def _summary(
  maps: Maps,
  chosen: list[tuple[int, int]],
  vocabulary: vocabulary_lib.Vocabulary,
) -> metrics_log.Json:
  """What `attention.json` has of the maps; `chosen` are layers and heads."""
  reach = mean_distance(maps.by_distance)
  logging.info(
    "nll %.4f, %.4f without memory; attention to memory by layer: %s",
    maps.nll,
    maps.nll_without_memory,
    ", ".join(f"{share:.1%}" for share in maps.memory_mass),
  )
  return {
    "num_tokens": maps.num_tokens,
    "memory_share_by_layer": maps.memory_mass.tolist(),
    "nll": maps.nll,
    "nll_without_memory": maps.nll_without_memory,
    "mean_distance": reach.tolist(),
    "widest": [
      {
        "layer": layer + 1,  # Counted from 1, as in the pictures.
        "head": head + 1,
        "mean_distance": float(reach[layer, head]),
        "targets": _top_of_memory(maps.weights[layer, head], maps, vocabulary),
      }
      for layer, head in chosen
    ],
  }


def _top_of_memory(
  weights: jt.Float[np.ndarray, "T K"],
  maps: Maps,
  vocabulary: vocabulary_lib.Vocabulary,
) -> list[metrics_log.Json]:
  """For each of the last queries, the tokens in memory it attends to most."""
  mem_len = weights.shape[1] - weights.shape[0]
  count = max(1, round(TOP_SHARE * mem_len))
  result = []
  for row in range(max(len(weights) - 5, 0), len(weights)):
    best = np.sort(np.argsort(-weights[row, :mem_len])[:count])
    known = vocabulary.decode(maps.context[mem_len : mem_len + row + 1])
    tokens = [vocabulary.symbol(int(maps.context[at])) for at in best]
    result.append({"after": known[-60:], "top_of_memory": tokens})
  return result
