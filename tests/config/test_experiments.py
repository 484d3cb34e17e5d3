"""Every experiment builds, and has as many parameters as its original."""

import importlib
import pathlib

import pytest

from tests import saved_runs
from transformer_xl import errors
from transformer_xl import experiments
from transformer_xl.config import load
from transformer_xl.model import network

FOLDER = pathlib.Path(experiments.__file__).parent
# `saved` and `added_memory` need a run, `vanilla` a name, `paper` an item and
# `own_text` a text; their tests are elsewhere, or below.
NAMES = sorted(
  path.stem
  for path in FOLDER.glob("*.py")
  if path.stem
  not in ("__init__", "added_memory", "own_text", "paper", "saved", "vanilla")
)
# docs/specification.md, section 22: those of the published configurations, in
# TensorFlow's style.
PUBLISHED = {
  "wt103_base": 151_119_838,
  "wt103_base_aligned": 191_965_658,  # Not published; counted here.
  "wt103_large": 285_205_322,
  "enwik8_base": 41_055_436,
  "enwik8_medium": 87_965_708,  # Sizes are not published; counted here.
  "enwik8_large": 277_231_820,
  "enwik8_alrfou": 231_859_840,  # With 256 labels, 235 million.
  "text8_large": 277_050_395,
  "lm1b_base": 355_749_729,
  "lm1b_large": 838_078_041,
}


def _config(name: str):
  return importlib.import_module(
    f"transformer_xl.experiments.{name}"
  ).get_config()


def _count(config) -> int:
  model = load.from_config_dict(config).model
  return network.num_parameters(network.abstract_params(model))


@pytest.mark.parametrize("name", NAMES)
def test_experiment_builds(name):
  config = _config(name)
  load.from_config_dict(config)
  if not config.model.vocab_size:  # The data will say.
    config.model.vocab_size = 256
  assert _count(config) > 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_experiment_has_the_published_number_of_parameters(name):
  assert _count(_config(name)) == PUBLISHED[name]


def test_pytorch_shares_the_biases_of_wt103_base():
  config = _config("wt103_base")
  config.model.untie_biases = False
  assert _count(config) == 151_107_538


def test_alrfou_has_64_layers_or_12():
  """44 million with 256 labels, 205 of which are bytes of the text."""
  module = importlib.import_module("transformer_xl.experiments.enwik8_alrfou")
  config = module.get_config("12")
  assert _count(config) == 43_473_720
  config.model.vocab_size = 256
  assert _count(config) == pytest.approx(44e6, abs=4e5)
  config = module.get_config()
  config.model.vocab_size = 256
  assert _count(config) == pytest.approx(235e6, abs=4e5)
  with pytest.raises(errors.UserError, match="12 or 64 layers"):
    module.get_config("18")


def test_the_paper_widened_lm1b_base():
  config = _config("lm1b_base")
  config.model.update({"num_layers": 20, "ff_dim": 6144})
  assert _count(config) == 466_962_273


@pytest.mark.parametrize(
  ("name", "count"),
  [("smollm2", 134_515_008), ("tinyllama", 1_100_048_384)],
)
def test_models_of_today_have_the_size_of_those_on_the_hub(name, count):
  module = importlib.import_module("transformer_xl.experiments.fine_tuning")
  assert _count(module.get_config(name)) == count
  adapted = load.from_config_dict(module.get_config(f"{name}_lora"))
  assert adapted.train.lora.rank == 8
  with pytest.raises(errors.UserError, match="no model 'gpt2'"):
    module.get_config("gpt2")


def test_every_row_of_an_added_memory_is_a_configuration(tmp_path):
  module = importlib.import_module("transformer_xl.experiments.added_memory")
  with pytest.raises(errors.UserError, match="name the folder of an import"):
    module.get_config()
  folder = saved_runs.write(tmp_path / "run", **{"model.num_layers": 6})
  config = load.from_config_dict(module.get_config(folder))
  for name, changes in module.mechanisms().items():
    changed = load.changed(config, changes)
    assert bool(changed.train.mem_len) == ("no_memory" not in name)
    assert bool(changed.train.lora.rank) == name.endswith("_lora")


@pytest.mark.parametrize("name", NAMES)
def test_experiment_says_what_it_is_and_how_to_run_it(name):
  text = importlib.import_module(f"transformer_xl.experiments.{name}").__doc__
  if name != "base":
    assert len(text.splitlines()[0]) <= 78
    assert all(word in text for word in ("Paper: ", "Measured", "Cost: "))
    assert "Run: " in text
    assert "make quickstart" in text or f"experiments/{name}.py" in text


def test_a_short_quick_start_has_a_short_warm_up():
  config = _config("quickstart")
  assert load.from_config_dict(config).train.warmup_steps == 100
  config.train.num_steps = 60
  assert load.from_config_dict(config).train.warmup_steps == 3
