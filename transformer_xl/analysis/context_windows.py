"""Losses in windows of text that are read without memory.

No layer sees anything before a window, so the c-th loss of a window has a
context of exactly c tokens. Windows are lanes of a batch; each costs its whole
length, however few of its losses are needed.

Shapes: W windows, B of them in a call, L their length.
"""

import functools
import time

import jax
import jaxtyping as jt
import numpy as np

from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import sums
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import kinds
from transformer_xl.model import network

STRIDES = 4  # Overlap of sliding windows: how many of them read each token.


def losses(
  subject: evaluate.Subject,
  tokens: np.ndarray,
  starts: np.ndarray,
  *,
  length: int,
  wanted: np.ndarray,
) -> jt.Float[np.ndarray, "W C"]:
  """Negative log-probabilities, in nats, of targets in each window.

  `tokens` is the split, [num_tokens]. L + 1 tokens must follow each of the
  first positions `starts`, [W]. `wanted`, [C], are indices of targets in a
  window, from 0. `eval` sets how many tokens are read per call.
  """
  config, mesh, params = subject[:3]
  read = jax.jit(
    functools.partial(
      read_window, model=sums.make_model(config), wanted=wanted
    ),
    out_shardings=mesh_lib.replicated(mesh),  # Every process reads all.
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  evaluation = config.eval  # As many tokens per call as evaluation reads.
  num_segments = evaluation.batch_size * evaluation.segments_per_call
  lanes = max(num_segments * evaluation.segment_len // length, 1)
  lanes = mesh_lib.padded_lanes(mesh, lanes)
  result = np.empty((len(starts), len(wanted)), np.float32)
  for first in range(0, len(starts), lanes):
    chosen = starts[first : first + lanes]
    # The last call is padded with windows whose losses are dropped.
    filled = np.resize(chosen, lanes)
    text = tokens[filled[:, None] + np.arange(length + 1)].astype(np.int32)
    found = read(params, jax.device_put(text, mesh_lib.lanes(mesh)))
    result[first : first + lanes] = np.asarray(found)[: len(chosen)]
  return result


def read_window(
  params: shapes.PyTree,
  text: jt.Int[shapes.Array, "B L+1"],
  *,
  model: network.Network,
  wanted: np.ndarray,
) -> jt.Float[shapes.Array, "B C"]:
  """Losses of the targets `wanted`, [C], of each window."""
  memory = kinds.empty_memory(model.config, batch_size=text.shape[0], mem_len=0)
  bound = model.bind({"params": params})
  hidden, _ = bound(text[:, :-1], memory)
  return adaptive_softmax.nll(
    hidden[:, wanted], text[:, wanted + 1], bound.head()
  )


def score_sliding(
  subject: evaluate.Subject, attention_len: int
) -> evaluate.Score:
  """Scores the split by a window of a given length that slides over it.

  The window moves by a quarter of its length, so a token sees between three
  quarters of a window and a whole one. Tokens of the first window see all that
  precedes them.

  Raises:
    UserError: the window is longer than the split.
  """
  config, split = subject.config, subject.config.eval.split
  tokens = token_file.open_split(config.data.dataset_dir, split).tokens
  begin, pairs = time.perf_counter(), len(tokens) - 1
  if pairs < attention_len:
    raise errors.UserError(
      f"analysis.attention_lens has {attention_len}, more than the {pairs} "
      f"pairs of {split}; leave it out."
    )
  read = functools.partial(losses, subject, tokens, length=attention_len)
  stride, indices = max(attention_len // STRIDES, 1), np.arange(attention_len)
  starts = np.arange(0, pairs - attention_len + 1, stride)
  first = read(starts[:1], wanted=indices)
  # The last window ends with the text; skip what others have scored.
  starts = np.append(starts[1:], pairs - attention_len)
  rest = read(starts, wanted=indices[-stride:])
  new = np.diff(starts, prepend=0)
  parts = [row[len(row) - n :] for row, n in zip(rest, new, strict=True)]
  nll = np.concatenate([first[0], *parts]).astype(np.float64)
  return evaluate.Score(nll.sum(), pairs, time.perf_counter() - begin)
