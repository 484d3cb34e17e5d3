"""References of check_run: made of runs, published, and damaged."""

import dataclasses

import numpy as np
import pytest

from tests.analysis import test_reference_curves
from tests.training import test_resume
from transformer_xl import errors
from transformer_xl.analysis.reference_curves import curve as curve_lib
from transformer_xl.analysis.reference_curves import logged_run
from transformer_xl.config import load


@pytest.mark.parametrize("name", ["ptb_published", "wikitext2_published"])
def test_each_published_run_is_on_the_track_of_the_others(name):
  path = test_resume.ROOT / f"experiments/reference_curves/{name}.json"
  curve = curve_lib.load(str(path))
  assert len(curve.seeds) >= 3
  for left_out, losses in enumerate(curve.validation_losses):
    others = curve._replace(
      seeds=curve.seeds[1:],
      losses=curve.losses[1:],
      validation_losses=np.delete(curve.validation_losses, left_out, axis=0),
    )
    for change, status, says in (
      (0.0, 0, f"training (0) and of validation ({len(losses)}) are"),
      (0.1, 1, "off track from"),
      (-0.5, 1, "Too good"),
    ):
      values = dict(zip(curve.validation_steps, losses + change, strict=True))
      run = logged_run.Run(curve.config, curve.data_sha256, {}, values, {})
      found, text = curve_lib.compare(run, others)
      assert found == status, text
      assert says in text
    begun = logged_run.Run(curve.config, curve.data_sha256, {9: 5.0}, {}, {})
    found, text = curve_lib.compare(begun, others)
    assert found == 2
    every = curve.validation_steps[0]
    assert f"wait, or set --config.train.eval_every_steps={every}" in text
    other = load.replaced(curve.config, {"eval.segment_len": 7})
    found, text = curve_lib.compare(begun._replace(config=other), others)
    assert found == 2
    assert "validation losses alone, and config.eval.segment_len is 7" in text


def test_a_published_table_is_a_band():
  """The mean is on track; a tenth of it more or less is not."""
  path = (
    test_resume.ROOT / "experiments/reference_curves/wt103_base_nvidia.json"
  )
  curve = curve_lib.load(str(path))
  [mean] = curve.validation_losses
  assert len(curve.seeds) == 16
  np.testing.assert_allclose(np.exp(mean[[0, -1]]), [42.62, 22.93], rtol=1e-4)
  for change, status in ((0.0, 0), (0.1, 1), (-0.1, 1)):
    values = dict(zip(curve.validation_steps, mean + change, strict=True))
    run = logged_run.Run(curve.config, "any text", {}, values, {})
    assert curve_lib.compare(run, curve)[0] == status
  data = dataclasses.replace(run.config.data, name="ptb")
  other = run._replace(config=dataclasses.replace(run.config, data=data))
  status, text = curve_lib.compare(other, curve)
  assert (status, "its text is 'ptb'" in text) == (2, True)


def test_a_reference_is_of_runs_that_differ_in_seeds_alone(data_dir, tmp_path):
  one = test_reference_curves.write_run(tmp_path / "one", data_dir)
  with pytest.raises(errors.UserError, match=r"seeds: these are \[0, 0\]"):
    curve_lib.make([one, one])
  other = test_reference_curves.write_run(
    tmp_path / "x", data_dir, seed=1, **{"train.mem_len": 4}
  )
  with pytest.raises(errors.UserError, match=r"seeds alone: config\.train"):
    curve_lib.make([one, other])


def test_a_reference_goes_as_far_as_all_its_runs(data_dir, tmp_path):
  pair = [
    test_reference_curves.write_run(tmp_path / f"{s}", data_dir, seed=s)
    for s in (0, 1)
  ]
  pair[1] = pair[1]._replace(
    losses={s: x for s, x in pair[1].losses.items() if s <= 150},
    validation={100: pair[1].validation[100]},
  )
  curve = curve_lib.make(pair)
  assert curve.steps[-1] == 150
  assert curve.validation_steps == [100]


@pytest.mark.parametrize(
  "damage",
  [
    lambda text: text[:100],
    lambda text: "[]",
    lambda text: '{"format": 1}',
    lambda text: text.replace(
      '"validation_steps": [', '"validation_steps": [7, '
    ),
    lambda text: text.replace(
      '"validation_losses": [[', '"validation_losses": [[NaN, '
    ),
    lambda text: text.replace('"seeds": [', '"seeds": [7, '),
  ],
)
def test_a_damaged_reference_is_one_line(tmp_path, damage):
  path = tmp_path / "curve.json"
  name = "experiments/reference_curves/quickstart.json"
  whole = (test_resume.ROOT / name).read_text()
  path.write_text(damage(whole))
  assert path.read_text() != whole
  with pytest.raises(errors.UserError, match="is damaged; make it again"):
    curve_lib.load(str(path))
