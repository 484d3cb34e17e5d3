"""Loss of a split at a given attention length, with and without memory."""

import dataclasses
import time

import jax
import numpy as np

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.analysis import context_windows
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate

STRIDES = 4  # Overlap: how many windows read each token.


def score_recurrent(
  params: shapes.PyTree,
  config: schema.ExperimentConfig,
  mesh: jax.sharding.Mesh,
  *,
  attention_len: int,
) -> evaluate.Score:
  """Scores with memory; each token attends to `attention_len` keys per layer.

  These include its own.
  """
  config = dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, same_length_window="mem_len"),
    eval=dataclasses.replace(
      config.eval, segment_len=config.train.segment_len, same_length=True
    ),
  )
  evaluator = evaluate.Evaluator(
    config, mesh, split=config.eval.split, mem_len=attention_len
  )
  return evaluator(params)


def score(
  params: shapes.PyTree,
  config: schema.ExperimentConfig,
  mesh: jax.sharding.Mesh,
  *,
  attention_len: int,
) -> evaluate.Score:
  """Scores without memory, by a window that slides over the text.

  The window moves by a quarter of its length, so a token sees between three
  quarters of a window and a whole one. Tokens of the first window see all that
  precedes them.
  """
  tokens = token_file.open_split(
    config.data.dataset_dir, config.eval.split
  ).tokens
  start = time.perf_counter()
  stride = max(attention_len // STRIDES, 1)
  pairs = len(tokens) - 1
  if pairs < attention_len:
    raise errors.UserError(
      f"analysis.attention_lens has {attention_len}, more than the {pairs} "
      f"pairs of {config.eval.split}; leave it out."
    )
  starts = np.arange(0, pairs - attention_len + 1, stride)
  first = context_windows.losses(
    params,
    tokens,
    starts[:1],
    config=config,
    mesh=mesh,
    length=attention_len,
    wanted=np.arange(attention_len),
  )
  # The last window ends with the text; skip what others have scored.
  starts = np.append(starts[1:], pairs - attention_len)
  rest = context_windows.losses(
    params,
    tokens,
    starts,
    config=config,
    mesh=mesh,
    length=attention_len,
    wanted=np.arange(attention_len - stride, attention_len),
  )
  new = np.diff(starts, prepend=0)
  parts = [row[len(row) - n :] for row, n in zip(rest, new, strict=True)]
  nll = np.concatenate([first[0], *parts]).astype(np.float64)
  return evaluate.Score(nll.sum(), pairs, time.perf_counter() - start)
