"""Adapters go out by PEFT's names, and merged with their base."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import safetensors.numpy

import transformer_xl
from tests import comparison
from tests.importers import adapted_runs
from tests.importers import decoders_by_hand
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.importers import export_run
from transformer_xl.importers import peft
from transformer_xl.training import initial_parameters
from transformer_xl.workdir import params_reader

TARGETS = ("query", "output", "gate_kernel")
THEIRS = {
  "self_attn.q_proj": (24, 24),
  "self_attn.o_proj": (24, 24),
  "mlp.gate_proj": (24, 40),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("adapted")
  fields, weights = decoders_by_hand.written(folder / "source", "llama")
  workdir = adapted_runs.write(folder / "source", folder, TARGETS)
  return workdir, fields, weights


def export(workdir, target, form):
  config = load.from_config_dict(load.saved(workdir))
  export_run.run(config, workdir, target=str(target), format=form)


def test_both_exports_are_the_model_of_the_run(run, tmp_path):
  workdir, fields, weights = run
  export(workdir, tmp_path / "adapters", "peft")
  export(workdir, tmp_path / "merged", "transformers")
  found = json.loads((tmp_path / "adapters/adapter_config.json").read_text())
  assert found["target_modules"] == ["gate_proj", "o_proj", "q_proj"]
  assert (found["r"], found["lora_alpha"], found["peft_type"]) == (3, 7, "LORA")
  base = load.saved(workdir).train.init_from
  source = pathlib.Path(base).parent / "source"
  assert found["base_model_name_or_path"] == str(source)
  read = safetensors.numpy.load_file
  adapters = read(tmp_path / "adapters/adapter_model.safetensors")
  merged = read(tmp_path / "merged/model.safetensors")
  names = {
    f"model.layers.{layer}.{module}": sizes
    for layer in range(2)
    for module, sizes in THEIRS.items()
  }
  assert len(adapters) == 2 * len(names)
  # W + (alpha / r) B A, of PyTorch's matrices (Hu et al. 2021, section 4.1).
  exact = {name: np.float64(array) for name, array in weights.items()}
  for name, (num_inputs, num_outputs) in names.items():
    a = adapters[f"base_model.model.{name}.lora_A.weight"]
    b = adapters[f"base_model.model.{name}.lora_B.weight"]
    assert (a.shape, b.shape) == ((3, num_inputs), (num_outputs, 3))
    exact[f"{name}.weight"] += 7 / 3 * np.float64(b) @ np.float64(a)
  assert merged.keys() == weights.keys()
  for name, array in merged.items():
    comparison.assert_close(array, exact[name], roundings=4)
    if not any(name.startswith(one) for one in names):
      np.testing.assert_array_equal(array, weights[name])
  # The run itself reads as these equations do.
  tokens = np.random.default_rng(1).integers(0, 257, 20)
  run = transformer_xl.load(workdir)
  _, found = run.step(run.init_state(), [tokens])
  expected = decoders_by_hand.log_probabilities(fields, exact, tokens)
  comparison.assert_close(found[0], expected, roundings=100)


@pytest.mark.parametrize(
  ("source", "expected"),
  [
    (
      "hf://me/tiny@abc",
      {"base_model_name_or_path": "me/tiny", "revision": "abc"},
    ),
    ("/models/smol@v2", {"base_model_name_or_path": "/models/smol@v2"}),
    ("gs://bucket/smol", {}),
    (None, {}),
  ],
)
def test_the_base_is_named_as_transformers_reads_it(source, expected, tmp_path):
  if source is not None:
    (tmp_path / "results").mkdir()
    text = json.dumps({"source": source})
    (tmp_path / "results/import.json").write_text(text)
  assert peft._base(str(tmp_path)) == expected


def test_adapters_of_fewer_layers_than_the_base_are_no_adapters_of_it(
  run, tmp_path, monkeypatch
):
  workdir, _, _ = run
  read = params_reader.restore_saved

  def of_three_layers(*args, **kwargs):
    saved = read(*args, **kwargs)
    return saved._replace(source=saved.source | {"num_layers": 3})

  monkeypatch.setattr(params_reader, "restore_saved", of_three_layers)
  said = r"2 of the 3 layers of .*=transformers"
  with pytest.raises(errors.UserError, match=said):
    export(workdir, tmp_path / "peft", "peft")
  assert not (tmp_path / "peft").exists()


def test_arrays_that_were_trained_whole_are_no_adapters(
  run, tmp_path, monkeypatch
):
  """As those that `train.init_rest=draw` draws."""
  workdir, _, _ = run
  read = params_reader.restore_saved

  def with_a_matrix(*args, **kwargs):
    saved = read(*args, **kwargs)
    layer = saved.params["layers"]["0"]
    matrix = {"in_kernel": np.zeros((2, 24, 40), np.float32)}
    feed_forward = layer["feed_forward"] | matrix
    layers = {"0": layer | {"feed_forward": feed_forward}}
    return saved._replace(params=saved.params | {"layers": layers})

  monkeypatch.setattr(params_reader, "restore_saved", with_a_matrix)
  said = "trained whole, such as layers/0/feed_forward/in_kernel.*=transformers"
  with pytest.raises(errors.UserError, match=said):
    export(workdir, tmp_path / "peft", "peft")
  assert not (tmp_path / "peft").exists()


def test_a_base_that_has_moved_is_named_as_its_reader_can(run, tmp_path):
  workdir, _, _ = run
  saved = load.from_config_dict(load.saved(workdir))
  base = saved.train.init_from
  moved = str(tmp_path / "moved")
  text = ["a text"]
  (expected,) = transformer_xl.load(workdir).score(text)
  shutil.move(base, moved)
  try:
    with pytest.raises(errors.UserError, match=r"gone.*them, init_from=F"):
      transformer_xl.load(workdir)
    (found,) = transformer_xl.load(workdir, init_from=moved).score(text)
    assert found.nll == expected.nll
    # To name the base in its place would leave the adapters out.
    fields = {"train.init_from": workdir, "train.lora.rank": 0}
    again = load.replaced(saved, fields)
    said = r"gone.*or export the run of the adapters merged"
    with pytest.raises(errors.UserError, match=said):
      initial_parameters.check(again.recipe, f"{workdir}/vocabulary")
  finally:
    shutil.move(moved, base)
  with pytest.raises(errors.UserError, match="parameters and init_from"):
    transformer_xl.load(pathlib.Path(base).parent / "source", init_from=base)


def test_a_run_without_adapters_has_none_to_export(run, tmp_path):
  workdir, _, _ = run
  base = load.saved(workdir).train.init_from
  said = "has no adapters.*--format=transformers"
  with pytest.raises(errors.UserError, match=said):
    export(base, tmp_path / "peft", "peft")
  assert not (tmp_path / "peft").exists()
