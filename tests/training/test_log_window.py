"""Units, the work of a token by hand, and the window of a log line."""

import dataclasses
import math
from unittest import mock

import jax
import numpy as np
import pytest

from tests import corpus
from tests import tiny
from tests.training.runs import lines
from transformer_xl import hardware
from transformer_xl.config import load
from transformer_xl.model import nats
from transformer_xl.model import network
from transformer_xl.training import hooks
from transformer_xl.training import log_window
from transformer_xl.training import loop
from transformer_xl.training import step
from transformer_xl.workdir import goodput


def update_metrics(nll, num_tokens, norm=1.0, rate=0.5):
  """Metrics of one chunk; `nll` and `num_tokens` have one entry a step."""
  count = len(nll)
  return step.UpdateMetrics(
    nats.Sums(np.float32(nll), np.float32(num_tokens)),
    np.full(count, norm, np.float32),
    np.full(count, rate, np.float32),
  )


def run_config():
  return load.from_config_dict(
    tiny.config_dict(**{"train.batch_size": 4, "train.segment_len": 8})
  )


def test_units_of_loss():
  assert nats.perplexity(math.log(20)) == pytest.approx(20)
  assert nats.perplexity(699.9) < math.inf
  assert math.isnan(nats.perplexity(math.nan))
  assert nats.perplexity(700.0) == nats.perplexity(1000.0) == math.inf
  assert nats.bits(math.log(2) * 3) == pytest.approx(3)


def test_the_work_of_a_token_is_counted_by_hand():
  config = tiny.model_config(
    num_layers=3, model_dim=8, num_heads=2, head_dim=5, ff_dim=12
  )
  # Multiply-adds of one token in a segment of 4 with 6 states in memory: it
  # sees 6 + (1 + 2 + 3 + 4) / 4 keys on average.
  keys = 6 + 2.5
  projections = 4 * 8 * 10
  feed_forward = 2 * 8 * 12
  scores_and_values = 3 * 10 * keys
  softmax = 8 * 23
  layers = 3 * (projections + feed_forward + scores_and_values)
  assert network.forward_flops_per_token(
    config, segment_len=4, mem_len=6
  ) == pytest.approx(2 * (layers + softmax))
  assert network.forward_flops_per_token(
    config, segment_len=4, mem_len=0, context_len=6
  ) == pytest.approx(2 * (layers + softmax))
  limits = ("attention:1", "attention:1", "attention")
  few = dataclasses.replace(config, layers=limits)
  forgotten = 2 * 3 * 10 * (6 - 1)  # Keys in two layers.
  assert network.forward_flops_per_token(
    few, segment_len=4, mem_len=6
  ) == pytest.approx(2 * (layers + softmax - forgotten))


def test_utilisation_is_null_where_the_peak_is_unknown(monkeypatch):
  config = run_config()
  now = [0.0]
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])

  def record():
    flops = log_window.flops_per_token(config.model, config.train)
    window = log_window.Window(flops_per_token=flops)
    for _ in range(2):
      now[0] += 0.5
      window.add(update_metrics([1.0], [32]), tokens_read=500_000)
    return window.close(2)

  assert jax.devices()[0].device_kind not in hardware.PEAK_FLOPS
  unknown = record()
  assert unknown["tokens_per_second"] == 1e6
  assert unknown["mfu"] is None
  chip = mock.Mock(device_kind="TPU v4")
  with (
    mock.patch.object(jax, "devices", return_value=[chip] * 2),
    mock.patch.object(jax, "device_count", return_value=2),
  ):
    known = record()
  work = 3 * network.forward_flops_per_token(
    config.model, segment_len=8, mem_len=config.train.mem_len
  )
  assert known["mfu"] == pytest.approx(1e6 * work / (2 * 275e12))


def test_a_window_is_the_mean_over_tokens_of_all_its_updates():
  window = log_window.Window()
  window.add(update_metrics([8.0, 30.0], [4, 10], norm=9.0), tokens_read=64)
  window.add(update_metrics([2.0], [6], norm=3.0, rate=0.25), tokens_read=32)
  record = window.close(30)
  assert record["loss"] == pytest.approx(40 / 20)
  assert record["step"] == 30
  assert record["tokens"] == 96
  assert record["gradient_norm"] == 3.0
  assert record["learning_rate"] == 0.25
  assert record["mfu"] is None
  assert window.sums == {"nll": 0.0, "num_tokens": 0.0}


def test_a_window_in_which_no_token_counted_has_no_loss():
  window = log_window.Window()
  window.add(update_metrics([0.0], [0.0]), tokens_read=8)
  assert "loss" not in window.close(1)
  window.add(update_metrics([6.0], [3.0]), tokens_read=8)
  assert window.close(2)["loss"] == 2


def test_a_window_goes_on_from_saved_sums():
  window = log_window.Window()
  window.add(update_metrics([8.0], [4]), tokens_read=4)
  resumed = log_window.Window(dict(window.sums), tokens_read=4)
  for each in (window, resumed):
    each.add(update_metrics([3.0], [7]), tokens_read=7)
  for each in (window, resumed):
    record = each.close(2)
    assert (record["loss"], record["tokens"]) == (1.0, 11)


def test_sums_of_a_window_do_not_lose_small_terms():
  window = log_window.Window({"nll": 2.0**25, "num_tokens": 2.0**25})
  window.add(update_metrics([1.0], [1]), tokens_read=1)
  assert window.sums == {"nll": 2.0**25 + 1, "num_tokens": 2.0**25 + 1}


def test_speed_leaves_out_the_first_chunk_and_pauses(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])
  window = log_window.Window()
  now[0] = 100.0  # Compiling.
  window.add(update_metrics([1.0], [25]), tokens_read=50)
  assert window.close(1)["tokens_per_second"] is None
  now[0] = 102.0
  window.add(update_metrics([1.0], [25]), tokens_read=50)
  now[0] = 500.0  # An evaluation.
  window.continue_timing()
  now[0] = 503.0
  window.add(update_metrics([1.0], [25]), tokens_read=50)
  assert window.close(3)["tokens_per_second"] == 100 / 5


def test_the_time_that_is_left_is_said_once_with_its_validations(
  data_dir, monkeypatch, caplog
):
  caplog.set_level("INFO")
  now = [0.0]
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])
  values = {"train.num_steps": 120, "train.eval_every_steps": 40}
  config = corpus.config(data_dir, **values)
  evaluation = mock.Mock(seconds=None, num_tokens=211)
  left = hooks.TimeLeft(config.train, evaluation)
  estimate = hooks.TimeEstimate(config.train.num_steps, left)
  window = log_window.Window()
  window.add(update_metrics([1.0], [25]), tokens_read=320)
  assert not estimate.is_due(10)  # The compiler's time tells nothing.
  now[0] = 32.0
  window.add(update_metrics([1.0], [25]), tokens_read=320)
  assert estimate.is_due(20)
  estimate(20, window, mock.Mock())
  # Ten tokens a second, 32 tokens in an update, 211 in the validation split,
  # which are read in a third of the time.
  seconds = (100 * 32 + 3 * 211 / 3) / 10
  assert goodput.duration(seconds) == "5 min 41 s"
  assert caplog.messages == [
    "Training will take about 6 min more on this machine, by its speed until "
    "step 20."
  ]
  assert not estimate.is_due(30)
  # The log line has the same time, then with validations as they were timed.
  writer = mock.Mock()
  line = hooks.LogLine(config.train, left)
  line(20, window, writer)
  assert writer.progress.call_args.args[1] == pytest.approx(seconds)
  evaluation.seconds = 4.0
  assert left.seconds(80, 10.0) == pytest.approx(40 * 32 / 10 + 4)


def test_a_chunk_beside_which_the_host_compiled_has_no_speed(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])
  window = log_window.Window()
  for ready, compiles in ((10, False), (40, True), (43, False), (90, True)):
    if compiles:  # Another length, while the chunk before it runs.
      window.leave_untimed()
    now[0] = float(ready)
    window.add(update_metrics([1.0], [50]), tokens_read=60)
  assert window.close(4)["tokens_per_second"] == 60 / 3


@pytest.mark.rest
@pytest.mark.parametrize("loss_on", ["all", "recent_half"])
def test_tokens_and_speed_count_all_tokens_that_are_read(
  data_dir, tmp_path, monkeypatch, loss_on
):
  now = [0.0]
  monkeypatch.setattr(log_window.time, "perf_counter", lambda: now[0])
  add = log_window.Window.add

  def added(self, *args, **kwargs):
    now[0] += 2.0
    add(self, *args, **kwargs)

  monkeypatch.setattr(log_window.Window, "add", added)
  updates = {"train.loss_on": loss_on, "train.log_every_steps": 4}
  short = corpus.config(data_dir, **updates | {"train.num_steps": 4})
  assert loop.train(short, str(tmp_path))
  wide = corpus.config(data_dir, **updates | {"train.batch_size": 8})
  assert loop.train(wide, str(tmp_path))
  records = lines(tmp_path)
  tokens = [4 * 4 * 8, 4 * 4 * 8 + 4 * 8 * 8, 4 * 4 * 8 + 8 * 8 * 8]
  assert [record["tokens"] for record in records] == tokens
  speeds = [record["tokens_per_second"] for record in records]
  assert speeds[1:] == [2 * 8 * 8 / 2.0] * 2  # Two updates in 2 s.
