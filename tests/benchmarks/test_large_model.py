"""The benchmark of a large model runs, with a small one."""

import pytest

from benchmarks import large_model
from transformer_xl.experiments import wt103_large


@pytest.mark.rest
def test_a_folder_is_made_loaded_scored_and_continued(monkeypatch, tmp_path):
  def small():
    config = original()
    config.model.num_layers = 2
    config.model.model_dim = config.model.embed_dim = 16
    config.model.update({"num_heads": 2, "head_dim": 8, "ff_dim": 16})
    config.model.update({"cutoffs": (20, 50), "cluster_capacities": ()})
    config.mesh.fsdp = 1
    return config

  original = wt103_large.get_config
  monkeypatch.setattr(wt103_large, "get_config", small)
  monkeypatch.setattr(large_model, "NUM_WORDS", 100)
  monkeypatch.setattr(large_model, "SCORED_WORDS", 30)
  monkeypatch.setattr(large_model, "GENERATED_WORDS", 3)
  folder = str(tmp_path / "model")
  large_model.make_folder(folder, "float32")
  dtype, seconds = large_model.measure(folder)
  assert tuple(seconds) == (
    *("load", "first score", "score", "first generation", "generation"),
    "products",
  )
  assert dtype == "float32"
  assert all(each["cpu"] > 0 for each in seconds.values())
