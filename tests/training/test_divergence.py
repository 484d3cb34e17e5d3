"""A loss that is lost sends the run back, and never into a checkpoint."""

import dataclasses
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests.training import test_resume
from tests.training.runs import lines
from tests.training.runs import steps
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator
from transformer_xl.model import nats
from transformer_xl.training import divergence
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.training import resume
from transformer_xl.training import step as step_lib
from transformer_xl.workdir import checkpoint

GUARDED = {
  "train.num_steps": 20,
  "train.optimizer": "sgd",
  "train.learning_rate": 0.1,
  "train.log_every_steps": 4,
  "train.eval_every_steps": 0,
  "checkpoint.every_steps": 4,
  "divergence.action": "skip",
  "divergence.spike_nats": 1.0,
}
BAD_SEGMENT = 9  # In the data, not in the updates.


@pytest.fixture(autouse=True)
def short_window(monkeypatch):
  """Runs of twenty updates have none of a hundred."""
  monkeypatch.setattr(divergence, "WINDOW", 4)


def events(workdir):
  return [record for record in lines(workdir) if "divergence" in record]


def poison(monkeypatch, harm, *, is_bad):
  """Harms the parameters after a chunk that `is_bad`."""
  compile_update = programs.update

  def compiled(config, mesh):
    update = compile_update(config, mesh)

    def call(numbers, state, memory, segments):
      bad = is_bad(int(state.step), np.asarray(segments.inputs))
      state, memory, metrics = update(numbers, state, memory, segments)
      if bad:
        state = state._replace(params=jax.tree.map(harm, state.params))
      return state, memory, metrics

    return call

  monkeypatch.setattr(programs, "update", compiled)


def reads(data_dir, segment):
  """Whether a chunk has a certain segment of the data."""
  stream = streams.TrainStream(
    token_file.open_split(f"{data_dir}/{corpus.NAME}", "train"),
    num_lanes=4,
    segment_len=8,
    resets="wrap",
  )
  wanted = stream.read(segment, 1, slice(None)).inputs[0]
  return lambda _, inputs: any((wanted == one).all() for one in inputs)


def scramble(leaf):
  """A leaf as large as training leaves it, and worth nothing."""
  return 3.0 * jnp.sign(leaf) + 10.0 * leaf


NO_RECOVERY = divergence.Recovery()


def rules(**updates):
  values = {"train.segments_per_call": 1, "checkpoint.every_steps": 10}
  values |= {"divergence." + name: value for name, value in updates.items()}
  config = load.from_config_dict(corpus.config_dict("", **values))
  return divergence.Rules(
    config.divergence,
    every_steps=config.checkpoint.every_steps,
    gradient_segments=config.train.gradient_segments,
  )


def guard(**updates):
  return divergence.Guard(rules(**updates))


def metrics(losses, norm=1.0):
  losses = np.array(losses, np.float32)
  sums = nats.Sums(losses * 8, np.full_like(losses, 8))
  return step_lib.UpdateMetrics(sums, np.full_like(losses, norm), losses)


def test_a_jump_that_stays_is_a_spike_and_one_that_passes_is_none(monkeypatch):
  monkeypatch.setattr(divergence, "WINDOW", 10)
  watched = guard(spike_nats=2.0)
  noise = np.random.default_rng(0).uniform(-0.3, 0.3, 200)
  watched.watch(metrics(4.0 + noise[:100]), 100)
  passing = 4.0 + noise[:40]
  passing[5:9] = 30.0
  watched.watch(metrics(passing), 140)
  watched.watch(metrics(8.0 + noise[:4]), 144)
  with pytest.raises(divergence.Diverged, match="more than") as caught:
    watched.watch(metrics(8.0 + noise[:2]), 146)
  assert caught.value.spiked
  assert caught.value.step == 146


def test_a_slow_rise_is_found_and_a_slow_fall_is_not(monkeypatch):
  monkeypatch.setattr(divergence, "WINDOW", 10)
  watched = guard(spike_nats=1.0)
  watched.watch(metrics(np.linspace(9, 3, 300)), 300)
  with pytest.raises(divergence.Diverged):
    watched.watch(metrics(np.linspace(3, 4.2, 300)), 600)


def test_zero_nats_allow_every_number_and_nothing_else():
  watched = guard(spike_nats=0.0)
  watched.watch(metrics([1.0] * 10 + [50.0] * 10), 20)
  loss = "the loss is not finite"
  norm = "the norm of the gradient is not finite"
  for bad, said in (
    (metrics([math.nan]), loss),
    (metrics([math.inf]), loss),
    (metrics([1], math.nan), norm),
  ):
    with pytest.raises(divergence.Diverged, match=said):
      watched.watch(bad, 21)


def test_only_checkpoints_a_window_old_are_gone_back_to(monkeypatch):
  monkeypatch.setattr(divergence, "WINDOW", 25)
  skips = rules(action="skip")
  trouble = divergence.Diverged("x", 60)
  recovery = skips.respond(NO_RECOVERY, trouble, [10, 20, 30, 34, 40, 50])
  assert recovery.events[-1]["rewound_to"] == 30  # 34 was saved by the clock.
  assert recovery.skipped == 30
  # At once again: 30 is not good either.
  recovery = skips.respond(recovery, divergence.Diverged("x", 38), [10, 20, 30])
  assert recovery.events[-1]["rewound_to"] == 10
  assert recovery.events[-1]["tries"] == 2
  assert recovery.skipped == 30 + 28
  # Behind both it is another trouble, even if it goes back before them.
  trouble = divergence.Diverged("x", 72)
  later = skips.respond(recovery, trouble, [10, 20, 30, 40, 50, 60, 70])
  assert later.events[-1]["rewound_to"] == 40
  assert later.events[-1]["tries"] == 1
  # A loss that rises slowly may have done so when they were saved.
  trouble = divergence.Diverged("x", 72, spiked=True)
  later = skips.respond(recovery, trouble, [10, 20, 30, 40, 50, 60, 70])
  assert later.events[-1]["tries"] == 2
  # Far behind both it is another trouble.
  trouble = divergence.Diverged("x", 99)
  recovery = skips.respond(recovery, trouble, [10, 50, 60, 70])
  assert recovery.events[-1]["tries"] == 1


def test_with_nothing_old_enough_the_run_starts_anew_or_stops(monkeypatch):
  monkeypatch.setattr(divergence, "WINDOW", 25)
  lowers = rules(action="lower_rate")
  trouble = divergence.Diverged("x", 30)
  recovery = lowers.respond(NO_RECOVERY, trouble, [10, 20, 30])
  assert recovery.events[-1]["rewound_to"] == 0
  assert (recovery.skipped, recovery.rate_factor) == (0, 0.5)
  with pytest.raises(
    errors.DivergenceError, match="no older checkpoint was kept"
  ):
    lowers.respond(NO_RECOVERY, divergence.Diverged("x", 60), [50, 60])


@pytest.mark.parametrize("action", ["stop", "skip", "lower_rate"])
def test_before_any_update_the_parameters_are_to_blame(action):
  with pytest.raises(errors.DivergenceError, match="before any update: the"):
    rules(action=action).respond(NO_RECOVERY, divergence.Diverged("x", 0), [])


def test_what_was_read_since_the_last_good_checkpoint_is_skipped(
  data_dir, tmp_path, monkeypatch, caplog
):
  poison(monkeypatch, scramble, is_bad=reads(data_dir, BAD_SEGMENT))
  config = corpus.config(data_dir, **GUARDED | {"train.eval_every_steps": 12})
  assert loop.train(config, str(tmp_path))
  (event,) = events(tmp_path)
  assert event["step"] == event["rewound_to"] + 1
  assert event["rewound_to"] in (4, 8)  # A window before it was seen.
  assert event["rewound_to"] + event["skipped"] == event["detected_at"] > 10
  assert f"back to step {event['rewound_to']}" in caplog.text
  training = [r["step"] for r in lines(tmp_path) if "loss" in r]
  assert training == list(range(4, 21, 4))
  assert all(r["loss"] < 3.6 for r in lines(tmp_path) if "loss" in r)
  assert all(r["nll"] < 3.6 for r in lines(tmp_path) if "split" in r)
  state = test_resume.newest(tmp_path, config).state
  assert int(state.step) == 20
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(state.params))


@pytest.mark.rest
def test_a_source_that_is_gone_costs_the_run_no_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  source, workdir = tmp_path / "source", tmp_path / "run"
  short = GUARDED | {"train.num_steps": 4}
  assert loop.train(corpus.config(data_dir, **short), str(source))

  def lose_the_source(step, _):
    if step == 4:
      shutil.rmtree(source)
    return step == 4

  poison(monkeypatch, lambda leaf: leaf * np.nan, is_bad=lose_the_source)
  monkeypatch.setattr(divergence, "WINDOW", 10)
  tuned = GUARDED | {"train.init_from": str(source)}
  with pytest.raises(errors.UserError, match="has no config"):
    loop.train(corpus.config(data_dir, **tuned), str(workdir))
  assert steps(workdir) == [4]


def test_the_rate_is_lowered_until_the_loss_is_a_number(
  data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(divergence, "RATE_FACTOR", 1e-6)
  wild = GUARDED | {
    "train.learning_rate": 1e4,
    "train.clip_norm": 0.0,
    "divergence.action": "lower_rate",
  }
  config = corpus.config(data_dir, **wild)
  assert loop.train(config, str(tmp_path))
  happened = events(tmp_path)
  assert [e["rewound_to"] for e in happened] == [0]
  # The next run in this process begins without a recovery.
  assert divergence.recovery_of(None) == NO_RECOVERY
  rates = [r["learning_rate"] for r in lines(tmp_path) if "loss" in r]
  assert rates == pytest.approx([1e-2] * len(rates))
  assert all(math.isfinite(r["loss"]) for r in lines(tmp_path) if "loss" in r)


@pytest.mark.rest
def test_after_so_many_tries_the_run_stops_on_a_good_checkpoint(
  data_dir, tmp_path, monkeypatch
):
  poison(monkeypatch, scramble, is_bad=lambda step, _: step == 10)
  monkeypatch.setattr(divergence, "TRIES", 2)
  config = corpus.config(data_dir, **GUARDED | {"train.eval_every_steps": 4})
  with pytest.raises(errors.DivergenceError, match="after 2 tries") as caught:
    loop.train(config, str(tmp_path))
  assert "\n" not in str(caught.value)
  assert len(events(tmp_path)) == 2
  best = min((r for r in lines(tmp_path) if "split" in r), key=_nll)
  assert best["step"] <= 8


def _nll(record):
  return record["nll"]


@pytest.mark.rest
def test_to_stop_names_the_checkpoint_from_before_and_the_ways_on(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(data_dir, **GUARDED | {"divergence.action": "stop"})
  with monkeypatch.context() as patch:
    poison(patch, scramble, is_bad=lambda step, _: step == 10)
    with pytest.raises(errors.DivergenceError, match="action=skip") as caught:
      loop.train(config, str(tmp_path))
    assert "checkpoint is step 8" in str(caught.value)
    before = steps(tmp_path)
    with pytest.raises(errors.DivergenceError):  # It is still lost.
      loop.train(config, str(tmp_path))
    assert steps(tmp_path) == before
  config = corpus.config(data_dir, **GUARDED)
  assert loop.train(config, str(tmp_path))
  assert [e["rewound_to"] for e in events(tmp_path)] == [8]


def test_a_validation_loss_that_is_no_number_is_not_the_best(
  data_dir, tmp_path, monkeypatch
):
  score_until = evaluator.Evaluator.score_until
  calls = []

  def evaluated(self, params, **options):
    score = score_until(self, params, **options)
    calls.append(score)
    return score._replace(nll=math.nan) if len(calls) == 1 else score

  monkeypatch.setattr(evaluator.Evaluator, "score_until", evaluated)
  config = corpus.config(data_dir, **GUARDED | {"train.eval_every_steps": 12})
  assert loop.train(config, str(tmp_path))
  (event,) = events(tmp_path)
  assert event["detected_at"] == 12
  assert all(math.isfinite(r["nll"]) for r in lines(tmp_path) if "split" in r)


@pytest.mark.rest
def test_a_run_cut_around_its_rewinding_is_the_run_in_one(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(data_dir, **GUARDED | {"model.dropout_rate": 0.1})
  poison(monkeypatch, scramble, is_bad=reads(data_dir, BAD_SEGMENT))
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  assert loop.train(config, str(whole))
  # After the harm and before it is seen; after that.
  for step in (10, 14):
    test_resume.train_until(step, config, parts)
    assert len(events(parts)) == (step == 14)
  assert loop.train(config, str(parts))
  assert len(events(whole)) == 1
  test_resume.assert_same_run(whole, parts, config)


@pytest.fixture(scope="module")
def watched_run(data_dir, tmp_path_factory):
  """A run of eight updates with a guard."""
  workdir = str(tmp_path_factory.mktemp("watched"))
  config = corpus.config(data_dir, **GUARDED, **{"train.mem_len": 4})
  config = load.changed(config, {"train.num_steps": 8})
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(divergence, "WINDOW", 4)
    assert loop.train(config, workdir)
  return config, workdir


@pytest.mark.parametrize(
  "change", [{}, {"train.loss_on": "recent_half"}, {"data.targets": "answers"}]
)
def test_losses_of_other_tokens_are_no_measure(watched_run, change):
  """They may be higher by more than a spike from one step to the next."""
  config, workdir = watched_run
  config = load.changed(config, change)
  checkpoints = checkpoint.Checkpoints(workdir, config.checkpoint)
  everything = dataclasses.replace(config.data, targets="all")
  stream = loop.open_stream(config.recipe, everything)
  mesh = mesh_lib.make_mesh(config.mesh)
  run = resume.start(
    resume.RunSetup(config.recipe, config.data, mesh, stream, checkpoints)
  )
  checkpoints.close()
  assert int(run.state.step) == 8
  assert bool(run.metadata.guard["losses"]) == (not change)
  assert np.abs(run.memory.layers[0]).max() > 0  # The text goes on.
