"""A text as the model reads it: surprisal, alternatives and attention.

Shapes: T tokens of a segment, A alternatives, S predicted tokens of the text.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import layer_rules
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.data import segment as segment_lib
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.evaluation import attention_use
from transformer_xl.evaluation import protocol
from transformer_xl.evaluation import settings
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.report import attention as attention_lib
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

NUM_TOKENS = 512  # So many tokens of the text are shown.
NUM_ALTERNATIVES = 8


class Segment(NamedTuple):
  """The tokens that a segment predicts, as a page shows them."""

  nll: jt.Float[shapes.Array, "T"]
  top_log_probs: jt.Float[shapes.Array, "T A"]
  top_tokens: jt.Int[shapes.Array, "T A"]
  attention: attention_lib.Attention


def read(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Reads the start of `eval.split`; returns what the page embeds as JSON.

  The model reads as in evaluation, from an empty memory, with the longest
  memory of `eval.mem_len`.

  Raises:
    UserError: the data or the checkpoint are missing, or do not fit.
  """
  _require_shown(config.model, context_len=config.eval.context_len)
  data_dir = config.data.dataset_dir
  split = config.eval.split
  run_record.check_vocabulary(data_dir, workdir)
  config, vocabulary = run_vocabulary.load_for(config, workdir)
  values = {"eval.temperature": (1.0,), "data.targets": "all"}
  config = load.replaced(config, values)
  file = token_file.open_split(data_dir, split)
  tokens = np.asarray(file.tokens[: NUM_TOKENS + 1], np.int32)
  file = dataclasses.replace(file, tokens=tokens)
  if len(tokens) < 2:
    raise errors.UserError(
      f"{split} of {config.data.name} has no token to predict; name another "
      "split: --config.eval.split."
    )
  mem_len = max(config.eval.mem_len)
  segment_len = min(config.eval.segment_len, len(tokens) - 1)
  num_keys = mem_len + segment_len
  if config.model.memory_start == "masked":
    # What is before the text takes room, and no attention.
    mem_len = min(mem_len, len(tokens) - 1)
    num_keys = min(num_keys, len(tokens) - 1)
  bins = tuple(attention_lib.bins(num_keys - 1))
  model = trained_model.load(config, workdir)
  with jax.set_mesh(model.mesh):
    resets = streams.reset_rule(config.data, config.model)
    segments = attention_use.segments(file, resets, segment_len)
    memory = network.empty_state(
      config.model, batch_size=1, mem_len=mem_len, step_len=segment_len
    )
    read_segment = jax.jit(
      functools.partial(
        _read_segment,
        model=protocol.make_network(config.model, config.eval, inspects=True),
        bins=bins,
        num_alternatives=min(NUM_ALTERNATIVES, config.model.vocab_size),
      ),
      # The first process writes.
      out_shardings=mesh_lib.replicated(model.mesh),
    )
    parts = []
    for segment in segments:
      memory, part = read_segment(model.params, memory, segment)
      parts.append(jax.device_get(part))
  count = len(tokens) - 1  # The last segment is padded.
  found = jax.tree.map(lambda *arrays: np.concatenate(arrays)[:count], *parts)
  if not np.isfinite(found.nll).all():
    raise errors.UserError(
      f"the model of checkpoint {model.step} has diverged, and its losses are "
      "no numbers; name an older one: --config.eval.checkpoint=STEP."
    )
  return {
    "dataset": config.data.name,
    "split": split,
    "unit": vocabulary.unit,
    "checkpoint_step": model.step,
    "mem_len": mem_len,
    "segment_len": segment_len,
    "settings": settings.of_data(
      config.scoring, segment_len=segment_len, mem_len=mem_len
    ),
    "num_tokens": len(found.nll),
    "mean_nll": float(found.nll.mean()),
    "tokens": [piece(vocabulary, token) for token in tokens],
    "nll": found.nll.round(4).tolist(),
    **_alternatives(vocabulary, found),
    "attention": attention_lib.packed(found.attention, bins),
  }


def _require_shown(model: schema.ModelConfig, *, context_len: int) -> None:
  """Raises a UserError for a model whose attention cannot be shown."""
  what = "showing a text with its attention"
  layer_rules.require_attention(model, what)
  for name in sorted(model.mixers):
    if not registry.mixers[name].keys_are_tokens:
      raise errors.UserError(
        f"{what} needs keys that are tokens, and model.layers has {name} "
        "layers, whose keys are several tokens each."
      )
  if context_len:
    raise errors.UserError(
      f"{what} reads segments without context, and eval.context_len is "
      f"{context_len}; set --config.eval.context_len=0."
    )


def _read_segment(
  params: shapes.PyTree,
  memory: network.State,
  segment: segment_lib.Segment[jax.Array],
  *,
  model: network.Network,
  bins: tuple[int, ...],
  num_alternatives: int,
) -> tuple[network.State, Segment]:
  """Reads a segment; returns the next memory, and what a page shows."""
  found = attention_use.read_segment(params, memory, segment, model=model)
  bound = model.bind({"params": params})
  # A second pass through the same layers; XLA computes them once.
  hidden, _ = bound(segment.inputs, memory, segment.resets)
  best = adaptive_softmax.top_k(hidden, bound.head(), num_alternatives)
  log_probs, top = (array[0] for array in best)
  summary = attention_lib.summary(found, bins)
  return found.memory, Segment(found.nll[0], log_probs, top, summary)


def _alternatives(
  vocabulary: vocabulary_lib.Vocabulary, found: Segment
) -> metrics_log.Json:
  used = np.unique(found.top_tokens)
  return {
    "symbols": {int(token): piece(vocabulary, token) for token in used},
    "top_tokens": found.top_tokens.tolist(),
    "top_log_probs": found.top_log_probs.round(3).tolist(),
  }


def piece(vocabulary: vocabulary_lib.Vocabulary, token: int) -> str:
  """The text of one token; escaped unless it is printable or white space."""
  text = vocabulary.decode([token])
  if vocabulary.unit == "word":
    # A line's end decodes to a newline; words are set apart from each other.
    return text if text == "\n" else f"{vocabulary.symbol(token)} "
  is_plain = all(c.isprintable() or c in "\n\t" for c in text)
  has_all = text and "\ufffd" not in text
  return text if is_plain and has_all else vocabulary.symbol(token)
