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

import jax
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.analysis import context_windows
from transformer_xl.config import load
from transformer_xl.config import saved
from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import sums
from transformer_xl.model import transformer_xl
from transformer_xl.model.encodings import table


def group(
  config: schema.ExperimentConfig,
) -> Iterator[tuple[str, schema.ExperimentConfig]]:
  """Yields the group's other runs, as saved, on the same data and split."""
  for workdir in config.analysis.group:
    other = load.from_config_dict(saved.get_config(workdir))
    values = {
      "eval.split": config.eval.split,
      "eval.batch_size": config.eval.batch_size,
      "eval.checkpoint": config.eval.checkpoint,
    }
    yield (
      workdir,
      dataclasses.replace(
        load.replaced(other, values),
        data=config.data,
        analysis=config.analysis,
        mesh=config.mesh,
      ),
    )


def measure(subject: evaluate.Subject, contexts: list[int]) -> np.ndarray:
  """Losses [C, T], in nats, with each context length of a rising list.

  The tokens start after the longest context.

  Raises:
    UserError: the split is too short, or the model does not support the kind
      of context.
  """
  is_exact = subject.config.analysis.context == "tokens"
  with jax.set_mesh(subject.mesh):
    return (_by_tokens if is_exact else _by_attention)(subject, contexts)


def _by_tokens(subject, contexts) -> np.ndarray:
  """`measure` in separate windows."""
  config = subject.config
  split, longest, count = (
    config.eval.split,
    contexts[-1],
    config.analysis.num_tokens,
  )
  text = token_file.open_split(config.data.dataset_dir, split).tokens
  needed = 2 * longest + count
  if len(text) < needed:
    raise errors.UserError(
      f"analysis.num_tokens={count} with contexts up to {longest} needs "
      f"{needed} tokens and {split} has {len(text)}; lower one of them."
    )
  read = np.array(contexts)
  if table.of(config.model).counts_from_segment:
    # The model was not trained on positions beyond its segment.
    read = np.minimum(read, config.train.segment_len)
  wanted, columns = np.unique(read, return_inverse=True)
  found = context_windows.losses(
    subject,
    text,
    np.arange(longest + count - wanted[0]),
    length=int(wanted[-1]),
    wanted=wanted - 1,
  )
  tokens = longest + np.arange(count)
  return found[tokens - read[:, None], columns[:, None]]


def _by_attention(subject, contexts) -> np.ndarray:
  """`measure` through memory."""
  config = subject.config
  if table.of(config.model).counts_from_segment:
    raise errors.UserError(
      "analysis.context=attention needs an encoding of distances, and a model "
      f"of the group has model.encoding={config.model.encoding}; set "
      "--config.analysis.context=tokens."
    )
  passes = [_one_pass(subject, length) for length in contexts]
  if len(passes[0]) < contexts[-1]:
    raise errors.UserError(
      f"a context of {contexts[-1]} is longer than {config.eval.split}; lower "
      "analysis.context_stop."
    )
  return np.stack([losses[contexts[-1] - 1 :] for losses in passes])


def _one_pass(subject, length) -> np.ndarray:
  """Losses of all tokens but the first, in order."""
  config, mesh, params = subject[:3]
  values = {
    "model.same_length_window": "mem_len",
    "eval.same_length": True,
    # All that a token can depend on, so that lanes make no difference.
    "eval.warmup_len": length * config.model.num_layers,
  }
  config, count = load.replaced(config, values), config.eval.segments_per_call
  stream = evaluate.open_stream(config, split=config.eval.split, mem_len=length)
  model = sums.make_model(config)
  score = functools.partial(sums.score_segment, params, model=model)
  read = jax.jit(
    functools.partial(jax.lax.scan, score),
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  memory = transformer_xl.empty_memory(
    config.model, batch_size=config.eval.batch_size, mem_len=length
  )
  losses, weights = [], []
  for step in range(0, stream.num_steps, count):
    segments = streams.device_segments(
      stream, step, count, mesh_lib.segments(mesh)
    )
    memory, nll = read(memory, segments)
    losses.append(np.asarray(nll))
    weights.append(np.asarray(segments.weights))
  # Lanes are consecutive runs of the text.
  lanes = [np.concatenate(x).swapaxes(0, 1) for x in (losses, weights)]
  return lanes[0][lanes[1] > 0]
