"""Losses of tokens as a function of the length of their context.

A context of c tokens has two meanings (`config.analysis.context`):

"tokens"     No layer sees anything before the last c tokens. Every token needs
             windows of its own. A window that starts at s gives the losses of
             the tokens s+1, s+2, ..., each with all contexts up to its length,
             so one pass over all starts covers every c. A model with absolute
             positions reads at most its training segment, even where the
             context is longer.
"attention"  Each layer attends to the last c tokens through a full memory: one
             evaluation of the split per c. Keys of the second layer have seen c
             tokens themselves, and so on: N layers see N (c - 1) + 1 tokens.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.analysis import context_windows
from transformer_xl.config import load
from transformer_xl.config import saved
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import sums
from transformer_xl.model import transformer_xl
from transformer_xl.model.encodings import table
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model


class ContextLosses(NamedTuple):
  """Losses of one model."""

  losses: jt.Float[np.ndarray, "C T"]  # Nats.
  first_token: int  # Position in the split of the first loss.
  step: int
  num_parameters: int


def group(
  config: schema.ExperimentConfig,
) -> Iterator[tuple[str, schema.ExperimentConfig]]:
  """Yields the group's other runs, as saved, on the same data and split."""
  for workdir in config.analysis.group:
    other = load.from_config_dict(saved.get_config(workdir))
    evaluation = dataclasses.replace(
      other.eval,
      split=config.eval.split,
      batch_size=config.eval.batch_size,
      checkpoint=config.eval.checkpoint,
    )
    yield (
      workdir,
      dataclasses.replace(
        other,
        data=config.data,
        eval=evaluation,
        analysis=config.analysis,
        mesh=config.mesh,
      ),
    )


def run_losses(
  config: schema.ExperimentConfig, workdir: str, *, contexts: list[int]
) -> ContextLosses:
  """Losses of a run's checkpoint at each context length, in rising order.

  Raises:
    UserError: the split is too short, the model does not support the kind of
      context, or it was trained with another vocabulary.
  """
  run_record.check_vocabulary(config.data.dataset_dir, workdir)
  config = load.with_vocab_size(
    config, token_file.read_meta(config.data.dataset_dir)
  )
  model = trained_model.load(config, workdir, lanes=(config.eval.batch_size,))
  mesh, params, step = model
  read = by_tokens if config.analysis.context == "tokens" else by_attention
  with jax.set_mesh(mesh):
    losses = read(params, config, mesh, contexts=contexts)
  count = transformer_xl.num_parameters(params)
  return ContextLosses(losses, contexts[-1], step, count)


def by_tokens(
  params: shapes.PyTree,
  config: schema.ExperimentConfig,
  mesh: jax.sharding.Mesh,
  *,
  contexts: list[int],
) -> np.ndarray:
  """Losses [C, T] from the longest context on, in separate windows."""
  file = _split(config)
  longest, count = contexts[-1], config.analysis.num_tokens
  needed = 2 * longest + count
  if len(file.tokens) < needed:
    raise errors.UserError(
      f"analysis.num_tokens={count} with contexts up to {longest} needs "
      f"{needed} tokens and {config.eval.split} has {len(file.tokens)}; lower "
      "one of them."
    )
  read = contexts
  if table.of(config.model).counts_from_segment:
    # The model was not trained on positions beyond its segment.
    read = [min(length, config.train.segment_len) for length in contexts]
  wanted = np.unique(read)
  starts = np.arange(longest + count - wanted[0])
  found = context_windows.losses(
    params,
    file.tokens,
    starts,
    config=config,
    mesh=mesh,
    length=int(wanted[-1]),
    wanted=wanted - 1,
  )
  tokens = longest + np.arange(count)
  columns = np.searchsorted(wanted, read)
  return np.stack(
    [
      found[tokens - length, column]
      for length, column in zip(read, columns, strict=True)
    ]
  )


def by_attention(
  params: shapes.PyTree,
  config: schema.ExperimentConfig,
  mesh: jax.sharding.Mesh,
  *,
  contexts: list[int],
) -> np.ndarray:
  """Losses [C, T] from the longest context on, through memory."""
  if table.of(config.model).counts_from_segment:
    raise errors.UserError(
      "analysis.context=attention needs an encoding of distances, and a model "
      f"of the group has model.encoding={config.model.encoding}; set "
      "--config.analysis.context=tokens."
    )
  passes = [_one_pass(params, config, mesh, length) for length in contexts]
  if len(passes[0]) < contexts[-1]:
    raise errors.UserError(
      f"a context of {contexts[-1]} is longer than {config.eval.split}; lower "
      "analysis.context_stop."
    )
  return np.stack([losses[contexts[-1] - 1 :] for losses in passes])


def _one_pass(params, config, mesh, length) -> np.ndarray:
  """Losses of all tokens but the first, in order."""
  model = transformer_xl.TransformerXL(
    dataclasses.replace(config.model, same_length_window="mem_len"),
    clamp_len=config.eval.clamp_len,
    same_length=True,
  )
  stream = streams.EvalStream(
    _split(config),
    num_lanes=config.eval.batch_size,
    segment_len=config.eval.segment_len,
    # All that a token can depend on, so that lanes make no difference.
    warmup_len=length * config.model.num_layers,
    resets=streams.reset_rule(config),
  )
  score = functools.partial(sums.score_segment, params, model=model)
  memory = transformer_xl.empty_memory(
    config.model, batch_size=config.eval.batch_size, mem_len=length
  )
  places = mesh_lib.parameters(mesh, memory), mesh_lib.replicated(mesh)
  score_chunk = jax.jit(
    functools.partial(jax.lax.scan, score),
    out_shardings=places,  # Every process reads all losses.
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  losses, is_scored = [], []
  count = config.eval.segments_per_call
  for step in range(0, stream.num_steps, count):
    segments = streams.device_segments(
      stream, step, count, mesh_lib.segments(mesh)
    )
    memory, nll = score_chunk(memory, segments)
    losses.append(np.asarray(nll))
    weights = stream.read(step, count, slice(None)).weights
    is_scored.append(np.asarray(weights) > 0)
  # Lanes are consecutive runs of the text.
  return _by_lane(losses)[_by_lane(is_scored)]


def _by_lane(parts: list[np.ndarray]) -> np.ndarray:
  return np.concatenate(parts).transpose(1, 0, 2).reshape(-1)


def _split(config: schema.ExperimentConfig) -> token_file.TokenFile:
  return token_file.open_split(config.data.dataset_dir, config.eval.split)
