"""Losses in windows without memory, and in a sliding window."""

import jax
import numpy as np
import pytest

from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import context_windows

ROUNDING = 1e-5  # Float32 against float64, see `conformance`.


@pytest.mark.parametrize("encoding", ["relative", "absolute"])
def test_nothing_before_a_window_matters(data_dir, encoding):
  updates = {"model.encoding": encoding}
  subject, file = runs.model(data_dir, **updates)
  starts = np.array([0, 7, 50])
  with jax.set_mesh(subject.mesh):
    found = context_windows.losses(
      subject, file, starts, length=9, wanted=np.arange(9)
    )
  for row, start in zip(found, starts, strict=True):
    expected = [
      runs.slow_loss(subject.config, file.tokens, start + length, length)
      for length in range(1, 10)
    ]
    np.testing.assert_allclose(row, expected, atol=ROUNDING)


@pytest.mark.parametrize("resets", [False, True])
def test_a_sliding_window_scores_each_token_once(data_dir, resets):
  updates = {"data.reset_at_documents": resets}
  subject, file = runs.model(data_dir, **updates)
  with jax.set_mesh(subject.mesh):
    score = context_windows.score_sliding(subject, 8)
  assert score.num_tokens == len(file.tokens) - 1
  # Windows move by two; the last moves by one, to the end of the text.
  contexts = [*range(1, 9), *[7, 8] * 70, 8]
  assert len(contexts) == len(file.tokens) - 1
  if resets:  # Nothing before the document of the token that predicts it.
    starts = file.documents
    last = starts[np.searchsorted(starts, np.arange(149), "right") - 1]
    contexts = np.minimum(contexts, 1 + np.arange(149) - last)
  expected = sum(
    runs.slow_loss(subject.config, file.tokens, position, context_len)
    for position, context_len in enumerate(contexts, start=1)
  )
  assert score.nll == pytest.approx(expected, rel=1e-6)


def test_a_window_longer_than_the_text_is_one_line(data_dir):
  subject, _ = runs.model(data_dir)
  with pytest.raises(errors.UserError, match="longer than the 149 pairs of te"):
    context_windows.score_sliding(subject, 150)
