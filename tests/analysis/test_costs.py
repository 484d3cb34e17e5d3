"""What models cost: who shares a measurement of time, and its tokens."""

import functools
import itertools

import jax
import pytest

from tests import corpus
from tests.analysis import runs
from transformer_xl.analysis import costs
from transformer_xl.analysis import variants
from transformer_xl.evaluation import evaluator


def test_variants_that_train_alike_share_one_measurement_of_time(data_dir):
  config = corpus.config(data_dir, **runs.COMPARED)
  timed = [
    costs.what_is_timed(
      variants.configure(config, variants.parse(text).changes), config, mem_len
    )
    for text, mem_len in (
      ("a: ", 8),
      ("b: eval.mem_len=(4, 8); eval.clamp_len=3", 8),
      ("c: train.num_steps=9", 8),
      ("d: train.learning_rate=0.5; train.warmup_steps=2", 8),
      ("e: train.mem_len=4", 8),
      ("f: train.schedule=cosine", 8),
      ("g: ", 4),
      ("h: eval.segment_len=3", 8),
    )
  ]
  assert len({*timed[:4]}) == 1
  assert len({*timed}) == 5


def test_a_variant_that_does_not_fit_has_no_planned_times(
  data_dir, monkeypatch, caplog
):
  """The others keep theirs: a study states them after hours of training."""
  config = corpus.config(data_dir, **runs.COMPARED)
  fits = {"fits": True, "estimated_tokens_per_second_per_chip": 4.0}
  monkeypatch.setattr(costs.plan, "train_plan", lambda *_, **__: fits)
  monkeypatch.setattr(costs.plan, "generation_plan", lambda *_: fits)
  monkeypatch.setattr(costs.plan, "eval_plan", lambda *_: fits)
  device = jax.devices()[0]
  planned = functools.partial(costs.planned_seconds, "deep", config, 8, device)
  assert planned() == (0.25, 0.25, 0.25)
  refused = {"fits": False, "reason": "exceeds 15.75 GiB"}
  monkeypatch.setattr(costs.plan, "eval_plan", lambda *_: refused)
  assert planned() is None
  assert "its evaluation does not fit: exceeds 15.75 GiB" in caplog.text
  compiled = fits | {
    "fits": False,
    "hbm_bytes_per_chip": 3 << 30,
    "hbm_capacity_bytes": 2 << 30,
    "estimated_step_seconds": 0.1,
  }
  monkeypatch.setattr(costs.plan, "train_plan", lambda *_, **__: compiled)
  assert planned() is None
  assert "deep has no planned times: on one" in caplog.text
  assert "its training does not fit: 3.00 of 2.00 GiB" in caplog.text


@pytest.mark.rest
def test_drawn_segment_lengths_take_the_time_of_the_average_call(
  data_dir, monkeypatch
):
  """A clock that ticks once a call shows the tokens that are counted."""
  ticks = itertools.count()
  monkeypatch.setattr(costs.time, "perf_counter", lambda: float(next(ticks)))
  updates = runs.COMPARED | runs.NO_MEMORY
  updates |= {"train.segment_len_std": 2.0, "seed": 3}
  config = corpus.config(
    data_dir, **updates, **{"train.segment_len": 40, "train.batch_size": 2}
  )
  timed = costs.what_is_timed(config, config, 0)
  (seconds,) = costs.seconds_per_token([timed]).values()
  stream = costs.loop.open_stream(config.recipe, config.data)
  count = config.train.segments_per_call * 500
  assert 1 / seconds.training == pytest.approx(
    stream.num_tokens(0, count) / 500, rel=0.02
  )
  tokens = config.eval.batch_size * config.eval.segment_len
  assert 1 / seconds.evaluation == evaluator.SEGMENTS_PER_CALL * tokens
