"""A run beside the losses of others: on track, off track, or neither."""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest

from tests import broken_runs
from tests import corpus
from tests.training import test_resume
from transformer_xl.analysis.reference_curves import curve as curve_lib
from transformer_xl.analysis.reference_curves import logged_run
from transformer_xl.training import loop

STEPS = 60
TRAINED = {
  "train.num_steps": STEPS,
  "train.log_every_steps": 2,
  "train.eval_every_steps": 20,
  "checkpoint.every_steps": STEPS,
}

PACKAGE = "transformer_xl.analysis.reference_curves"


def write_run(folder, data_dir, *, seed=0, every=10, change=None, **updates):
  """A workdir whose losses fall from 3 with a little noise of the seed."""
  updates = {"train.num_steps": 200, "train.log_every_steps": every} | updates
  config = corpus.config(data_dir, seed=seed, **updates)
  (folder / "vocabulary").mkdir(parents=True)
  (folder / "config.json").write_text(
    json.dumps({"config": dataclasses.asdict(config), "versions": {"jax": "1"}})
  )
  meta = (
    test_resume.pathlib.Path(data_dir) / corpus.NAME / "meta.json"
  ).read_text()
  (folder / "vocabulary" / "meta.json").write_text(meta)
  generator = np.random.default_rng(seed)
  losses = 3 * np.arange(1, 201) ** -0.2 + 0.01 * generator.normal(size=200)
  records = [
    {"step": step, "loss": losses[step - every : step].mean()}
    for step in range(every, 201, every)
  ]
  records += [
    {"step": step, "split": "valid", "nll": losses[step - 100 : step].mean()}
    for step in (100, 200)
  ]
  for record in records:
    if change:
      change(record)
  text = "".join(json.dumps(record) + "\n" for record in records)
  (folder / "metrics.jsonl").write_text(text)
  return logged_run.read(str(folder))


@pytest.fixture(scope="module")
def reference(data_dir, tmp_path_factory):
  """Three seeds, by way of the file."""
  folder = tmp_path_factory.mktemp("reference")
  curve = curve_lib.make(
    [write_run(folder / f"{s}", data_dir, seed=s) for s in range(3)]
  )
  path = str(folder / "curve.json")
  curve_lib.save(curve, path, recorded="today")
  assert json.loads((folder / "curve.json").read_text())["seeds"] == [0, 1, 2]
  return curve_lib.load(path)


@pytest.mark.parametrize("every", [10, 20, 50])
def test_another_seed_is_on_track_however_often_it_logs(
  reference, data_dir, tmp_path, every
):
  run = write_run(tmp_path / "run", data_dir, seed=9, every=every)
  status, text = curve_lib.compare(run, reference)
  assert status == 0, text
  lines = 200 // every
  assert f"training ({lines}) and of validation (2) are within" in text


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (
      lambda r: r["step"] >= 30 and r.update(loss=r["loss"] + 0.2),
      "at step 30 is above",
    ),
    (
      lambda r: r["step"] == 70 and r.update(loss=math.nan),
      "at step 70 is outside",
    ),
    (
      lambda r: r["step"] == 70 and r.update(loss=None),
      "at step 70 is outside",
    ),
    (
      lambda r: r["step"] >= 30 and r.update(loss=r["loss"] - 0.2),
      "at step 30 is below",
    ),
    (lambda r: r.update(loss=r["loss"] / 2), "does the model see what it is"),
    (
      lambda r: "nll" in r and r.update(nll=r["nll"] + 0.2),
      "step 100 on: the validation loss",
    ),
  ],
)
def test_what_leaves_the_band_is_off_track(
  reference, data_dir, tmp_path, change, says
):
  def change_training(record):
    if "split" not in record or "nll" in says or "validation" in says:
      change(record)

  run = write_run(tmp_path / "run", data_dir, seed=9, change=change_training)
  status, text = curve_lib.compare(run, reference)
  assert status == 1
  assert text.startswith("off track from")
  assert says in text
  assert "\n" not in text


@pytest.mark.parametrize(
  ("updates", "says"),
  [
    ({"train.learning_rate": 0.1}, "config.train.learning_rate is 0.1, the"),
    ({"train.mem_len": 4}, "config.train.mem_len is 4, the reference has 8"),
    ({"model.num_layers": 3}, "config.model.num_layers is 3"),
    (
      {"train.log_every_steps": 4},
      "every 10 steps to 200, and the run none of them; wait, or set --config",
    ),
  ],
)
def test_what_differs_is_named_and_not_judged(
  reference, data_dir, tmp_path, updates, says
):
  every = updates.get("train.log_every_steps", 10)
  run = write_run(tmp_path / "run", data_dir, every=every, **updates)
  if every == 4:
    run = run._replace(losses={4: 3.0}, validation={})
  status, text = curve_lib.compare(run, reference)
  assert status == 2
  assert says in text


def test_another_text_is_not_judged(reference, data_dir, tmp_path):
  run = write_run(tmp_path / "run", data_dir)
  run = run._replace(data_sha256="0" * 64)
  status, text = curve_lib.compare(run, reference)
  assert status == 2
  assert "its training text (SHA-256 000000000000) is not" in text


def test_what_changes_no_loss_is_no_difference(reference, data_dir, tmp_path):
  free = {"train.segments_per_call": 1, "model.remat": "full", "seed": 8}
  free["model.dtype"] = "bfloat16"
  free |= {"train.num_steps": 300, "train.decay_steps": 200}
  free["train.profile_steps"] = 5
  run = write_run(tmp_path / "run", data_dir, **free)
  assert curve_lib.compare(run, reference)[0] == 0


def test_a_run_that_went_back_is_judged_by_its_losses(data_dir, tmp_path):
  run = write_run(tmp_path / "run", data_dir)
  with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
    file.write('{"step": 201, "divergence": "the loss is not finite"}\n')
  assert logged_run.read(str(tmp_path / "run")) == run


def test_other_evaluations_are_not_compared(reference, data_dir, tmp_path):
  run = write_run(tmp_path / "run", data_dir, **{"eval.clamp_len": 2})
  status, text = curve_lib.compare(run, reference)
  assert status == 0
  assert "validation (0)" in text


@pytest.mark.rest
def test_the_command_tells_by_its_status(data_dir, tmp_path):
  folders = [tmp_path / str(seed) for seed in (0, 1, 9)]
  for folder in folders[:2]:
    write_run(folder, data_dir, seed=int(folder.name))
  write_run(folders[2], data_dir, seed=9, change=lambda r: r.update(loss=9.0))
  reference = f"--reference={tmp_path}/curve.json"

  def command(*arguments):
    result = subprocess.run(
      [
        sys.executable,
        "-m",
        f"{PACKAGE}.check_run",
        *arguments,
      ],
      cwd=test_resume.ROOT,
      capture_output=True,
      text=True,
      check=False,
    )
    return result.returncode, result.stdout, result.stderr

  both = f"--workdir={folders[0]},{folders[1]}"
  status, said, _ = command("--write", both, reference)
  assert status == 0
  assert "training (20) and of validation (2) of 2 seeds, to step 200" in said
  status, said, _ = command(f"--workdir={folders[2]}", reference)
  assert status == 1
  assert said.startswith("off track from step 10 on: the loss 9.0000 (perple")
  status, _, said = command(f"--workdir={tmp_path}/none", reference)
  assert status == 2
  assert said.count("\n") == 1


def train(folder, data_dir, monkeypatch, *, seed, fault=broken_runs.nothing):
  config = corpus.config(data_dir, seed=seed, **TRAINED)
  with monkeypatch.context() as patch:
    fault(patch)
    loop.train(config, str(folder))
  return logged_run.read(str(folder))


@pytest.fixture(scope="module")
def curve(data_dir, tmp_path_factory):
  """The curve of three trained seeds."""
  folder = tmp_path_factory.mktemp("trained")
  with pytest.MonkeyPatch.context() as patch:
    return curve_lib.make(
      [train(folder / f"{s}", data_dir, patch, seed=s) for s in range(3)]
    )


# What leaves a band and what stays in it is above, without training.
@pytest.mark.rest
@pytest.mark.slow
def test_healthy_training_stays_in_the_band(
  curve, data_dir, tmp_path, monkeypatch
):
  status, text = curve_lib.compare(
    train(tmp_path / "healthy", data_dir, monkeypatch, seed=3), curve
  )
  assert status == 0, text


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize(
  "fault",
  [
    broken_runs.tenfold_rate,
    broken_runs.much_dropout,
    broken_runs.seen_labels,
  ],
  ids=lambda fault: fault.__name__,
)
def test_broken_training_leaves_the_band_early(
  curve, data_dir, tmp_path, monkeypatch, fault
):
  run = train(tmp_path / "run", data_dir, monkeypatch, seed=4, fault=fault)
  status, text = curve_lib.compare(run, curve)
  assert status == 1, (fault, text)
