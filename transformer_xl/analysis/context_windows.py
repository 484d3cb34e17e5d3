"""Losses in windows of text that are read without memory.

No layer sees anything before a window, so the c-th loss of a window has a
context of exactly c tokens, or less with `data.reset_at_documents`, which hides
what comes before a document as it does in training. Windows are lanes of a
batch; each costs its whole length, however few of its losses are needed.

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
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import protocol
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import network
from transformer_xl.workdir import trained_model

STRIDES = 4  # Overlap of sliding windows: how many of them read each token.


def losses(
  subject: trained_model.TrainedModel,
  file: token_file.TokenFile,
  starts: np.ndarray,
  *,
  length: int,
  wanted: np.ndarray,
) -> jt.Float[np.ndarray, "W C"]:
  """Negative log-probabilities, in nats, of targets in each window.

  L + 1 tokens of `file`, the split, must follow each of the first positions
  `starts`, [W]. `wanted`, [C], are indices of targets in a window, from 0.
  `eval` sets how many tokens are read per call.
  """
  config = subject.config
  mesh = subject.mesh
  model = protocol.make_network(config.model, config.eval)
  read = jax.jit(
    functools.partial(read_window, model=model, wanted=wanted),
    out_shardings=mesh_lib.replicated(mesh),  # Every process reads all.
    compiler_options=mesh_lib.compiler_options(mesh),
  )
  evaluation = config.eval  # As many tokens per call as evaluation reads.
  num_segments = evaluation.batch_size * evaluator.SEGMENTS_PER_CALL
  lanes = max(num_segments * evaluation.segment_len // length, 1)
  lanes = mesh_lib.padded_lanes(mesh, lanes)
  begins_document = np.zeros(len(file.tokens), bool)
  if config.data.reset_at_documents:
    begins_document[file.documents] = True
  result = np.empty((len(starts), len(wanted)), np.float32)
  for first in range(0, len(starts), lanes):
    chosen = starts[first : first + lanes]
    # The last call is padded with windows whose losses are dropped.
    filled = np.resize(chosen, lanes)
    positions = filled[:, None] + np.arange(length + 1)
    text = file.tokens[positions].astype(np.int32)
    resets = begins_document[positions[:, :-1]]
    found = read(
      subject.params,
      jax.device_put(text, mesh_lib.lanes(mesh)),
      jax.device_put(resets, mesh_lib.lanes(mesh)),
    )
    result[first : first + lanes] = np.asarray(found)[: len(chosen)]
  return result


def read_window(
  params: shapes.PyTree,
  text: jt.Int[shapes.Array, "B L+1"],
  resets: jt.Bool[shapes.Array, "B L"] | None = None,
  *,
  model: network.Network,
  wanted: np.ndarray,
) -> jt.Float[shapes.Array, "B C"]:
  """Losses of the targets `wanted`, [C], of each window.

  `resets` are the first tokens of documents.
  """
  memory = network.empty_state(
    model.config,
    batch_size=text.shape[0],
    mem_len=0,
    step_len=text.shape[1] - 1,
  )
  bound = model.bind({"params": params})
  hidden, _ = bound(text[:, :-1], memory, resets)
  return adaptive_softmax.nll(
    hidden[:, wanted], text[:, wanted + 1], bound.head()
  )


def check_length(
  file: token_file.TokenFile, attention_len: int, split: str
) -> None:
  """Raises a UserError for a window that is longer than the split."""
  pairs = len(file.tokens) - 1
  if pairs < attention_len:
    raise errors.UserError(
      f"a window of {attention_len} tokens is longer than the {pairs} pairs of "
      f"{split}; set a shorter --config.train.segment_len, or leave the length "
      "out of --config.analysis.attention_lens."
    )


def score_sliding(
  subject: trained_model.TrainedModel, attention_len: int
) -> evaluator.Score:
  """Scores the split by a window of a given length that slides over it.

  The window moves by a quarter of its length, so a token sees between three
  quarters of a window and a whole one. Tokens of the first window see all that
  precedes them.

  Raises:
    UserError: the window is longer than the split.
  """
  config = subject.config
  file = token_file.open_split(config.data.dataset_dir, config.eval.split)
  check_length(file, attention_len, config.eval.split)
  begin = time.perf_counter()
  pairs = len(file.tokens) - 1
  read = functools.partial(losses, subject, file, length=attention_len)
  stride = max(attention_len // STRIDES, 1)
  indices = np.arange(attention_len)
  starts = np.arange(0, pairs - attention_len + 1, stride)
  first = read(starts[:1], wanted=indices)
  # The last window ends with the text; skip what others have scored.
  starts = np.append(starts[1:], pairs - attention_len)
  rest = read(starts, wanted=indices[-stride:])
  new = np.diff(starts, prepend=0)
  parts = [row[len(row) - n :] for row, n in zip(rest, new, strict=True)]
  nll = np.concatenate([first[0], *parts]).astype(np.float64)
  return evaluator.Score(nll.sum(), pairs, time.perf_counter() - begin)
