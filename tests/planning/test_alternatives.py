"""Alternatives to a configuration that does not fit, and their order."""

from tests import chips
from tests import tiny
from transformer_xl.config import load
from transformer_xl.config import rules
from transformer_xl.planning import plan


def config(**updates):
  values = {"model.model_dim": 64, "train.batch_size": 32} | updates
  return load.from_config_dict(tiny.config_dict(**values))


def test_the_least_change_is_tried_first():
  tries = [flags for flags, _ in plan.smaller(config(), num_devices=8)]
  remat, split = "--config.model.remat=full", "--config.mesh.fsdp=8"
  assert tries[:2] == ["--config.model.remat=attention", remat]
  assert split in tries[2]
  assert remat not in tries[2]
  assert remat in tries[3]
  assert split in tries[3]
  assert "accumulation_steps=2" in tries[4]
  assert "accumulation_steps=4" in tries[5]
  # 32 lanes on 8 devices: at least 8 lanes at a time.
  assert [("batch_size" in text) for text in tries[4:]] == [False] * 2 + [
    True
  ] * 2


def test_every_alternative_is_a_valid_configuration():
  original = config()
  found = list(plan.smaller(original, num_devices=8))
  for flags, smaller in found:
    rules.check(smaller)
    assert smaller != original
    per_part = smaller.train.batch_size // smaller.train.accumulation_steps
    assert per_part % 8 == 0
    assert f"fsdp={smaller.mesh.fsdp}" in flags or smaller.mesh == original.mesh
  assert len({flags for flags, _ in found}) == len(found)


def test_parameters_are_sharded_as_far_as_their_width_allows():
  narrow = config(**{"model.model_dim": 10})
  _, smaller = list(plan.smaller(narrow, num_devices=8))[2]
  assert smaller.mesh.fsdp == 2


def test_parameters_are_sharded_within_a_slice():
  found = plan.smaller(config(), num_devices=16, num_slices=2)
  assert {one.mesh.fsdp for _, one in found} - {config().mesh.fsdp} == {8}


def test_present_settings_are_not_alternatives():
  recomputed = config(**{"model.remat": "full"})
  tries = plan.smaller(recomputed, num_devices=8)
  assert all(smaller != recomputed for _, smaller in tries)
  first, _ = next(plan.smaller(recomputed, num_devices=8))
  assert "mesh.fsdp" in first


def test_the_first_alternative_that_fits_is_proposed(monkeypatch):
  tried = []

  def train_plan(recipe, data, mesh, *, count):
    assert mesh.size == 8
    tried.append(recipe)
    return {"fits": recipe.train.accumulation_steps == 4}

  monkeypatch.setattr(plan, "train_plan", train_plan)
  devices = chips.make("v5e", (2, 4))
  found = plan._nearest(config(), devices)
  assert found["change"].endswith("--config.train.accumulation_steps=4")
  assert len(tried) == 6
  monkeypatch.setattr(plan, "train_plan", lambda *_, **__: {"fits": False})
  assert plan._nearest(config(), devices) is None
