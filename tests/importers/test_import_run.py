import hashlib
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import tests.oracle
from tests.importers import stored_files
from tests.parity import configurations
from transformer_xl import errors
from transformer_xl.config import load as load_lib
from transformer_xl.data import vocabulary
from transformer_xl.evaluation import evaluate
from transformer_xl.formats import tensor_bundle
from transformer_xl.importers import export_run
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer
from transformer_xl.text import generate
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

MEM_LEN, CLAMP_LEN = 5, 4
SEGMENT_LENS = (4, 7, 4)  # Shorter and longer than the memory.
# The tiny checkpoints follow the published rules, at other sizes.
TENSORFLOW_RULES = ("zeros", "mem_len_plus_one", 1e-12)


def load(workdir):
  """Loads configuration and parameters of a run, as every mode does."""
  config = load_lib.from_config_dict(load_lib.saved(str(workdir)))
  return config, trained_model.load(config, str(workdir)).params


def make(workdir, source, format_name="tensorflow", **options):
  """Imports a source, and loads the run."""
  request = import_run.Request(format_name, str(source), **options)
  made = import_run.make(request, str(workdir))
  return made, *load(workdir)


def worst_difference(config, params):
  """Largest difference of log-probabilities from the float64 oracle."""
  settings = mixer.Settings(clamp_len=CLAMP_LEN, same_length=True)
  model = network.Network(config, settings)
  read = jax.jit(model.apply, static_argnames="method")
  memory = network.empty_state(
    config, batch_size=2, mem_len=MEM_LEN, step_len=1
  )
  expected_memory = tests.oracle.start(config, batch_size=2, mem_len=MEM_LEN)
  random, worst = np.random.RandomState(0), 0.0
  for length in SEGMENT_LENS:
    tokens = random.randint(config.vocab_size, size=(2, length))
    log_probs, memory = read(
      {"params": params}, jnp.asarray(tokens), memory, method="log_probs"
    )
    expected, expected_memory = tests.oracle.segment(
      params,
      config,
      tokens,
      expected_memory,
      mem_len=MEM_LEN,
      clamp_len=CLAMP_LEN,
      same_length=True,
    )
    worst = max(worst, np.abs(log_probs - expected).max())
  return worst


@pytest.fixture(scope="module")
def wt103(tmp_path_factory):
  """A run imported from the published layout."""
  folder = tmp_path_factory.mktemp("imported")
  workdir = folder / "run"
  make(workdir, stored_files.as_published("wt103", folder / "source"))
  return workdir


@pytest.mark.some(1)
@pytest.mark.parametrize(
  "name",
  [
    # It has the layout of enwik8.
    pytest.param(name, marks=pytest.mark.rest if name == "text8" else ())
    for name in stored_files.TENSORFLOW
  ],
)
def test_tensorflow_checkpoints_equal_the_numpy_model(tmp_path, name):
  made, config, params = make(tmp_path / "run", stored_files.tensorflow(name))
  assert made["num_parameters"] == network.num_parameters(params)
  model = config.model
  rules = model.memory_start, model.same_length_window, model.layer_norm_epsilon
  assert rules == TENSORFLOW_RULES
  assert model.untie_biases == (name in ("wt103", "lm1b"))
  assert model.project_equal_width == (name != "lm1b")
  # Float32 against float64.
  assert worst_difference(model, params) < 1e-5


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["model.pt", "state_dict.pt"])
def test_original_pytorch_files_equal_the_numpy_model(tmp_path, name):
  _, config, params = make(
    tmp_path / "run",
    stored_files.ORIGINAL / name,
    "pytorch",
    vocabulary=stored_files.write_words(tmp_path, 21),
  )
  assert config.model.memory_start == "masked"
  assert config.model.same_length_window == "mem_len"
  assert worst_difference(config.model, params) < 1e-5
  if name == "model.pt":  # Only a pickled module states it.
    assert config.eval.mem_len == (7,)
    assert config.eval.clamp_len == 3
    assert config.model.attention_dropout_rate == 0.125


def test_the_original_cluster_order_is_reversed():
  params = {}
  for format_name in ("pytorch", "huggingface"):
    layout = import_run.FORMATS[format_name].layout
    params[format_name] = {
      tensor.name.removeprefix("transformer."): tensor
      for tensor in layout(configurations.draw(5).model)
    }
  assert set(params["pytorch"]) == set(params["huggingface"])
  reversed_ones = {
    name
    for name, tensor in params["pytorch"].items()
    if tensor.reverse != params["huggingface"][name].reverse
  }
  assert reversed_ones == {"crit.cluster_weight", "crit.cluster_bias"}


@pytest.mark.rest
def test_generation_runs_on_an_imported_run_alone(wt103):
  config = load_lib.saved(str(wt103))
  config.generate.update({"prompt": "the caf\u00e9", "num_tokens": 3})
  result = generate.run(load_lib.from_config_dict(config), str(wt103))
  words = vocabulary.load(str(wt103 / "vocabulary"))
  assert len(words.encode(result["text"])) == 3


def test_evaluation_scores_every_token_of_an_imported_run(wt103, tmp_path):
  dataset = tmp_path / "text"
  shutil.copytree(wt103 / "vocabulary", dataset)
  tokens = np.random.RandomState(0).randint(23, size=50).astype(np.uint8)
  np.save(dataset / "test.npy", tokens)
  np.save(dataset / "test_documents.npy", np.zeros(1, np.int64))
  meta = json.loads((dataset / "meta.json").read_text())
  counts = {"num_tokens": 50, "num_words": 50, "num_bytes": 250}
  counts["num_characters"] = 250
  digest = hashlib.sha256((dataset / "test.npy").read_bytes()).hexdigest()
  meta["splits"] = {"test": counts | {"sha256": digest}}
  (dataset / "meta.json").write_text(json.dumps(meta))
  config = load_lib.saved(str(wt103))
  config.data.update({"dir": str(tmp_path), "name": "text"})
  config.eval.update({"batch_size": 2, "segment_len": 8, "mem_len": (8,)})
  (card,) = evaluate.run(load_lib.from_config_dict(config), str(wt103))
  assert card["num_tokens"] == 49
  assert card["memory_start"] == "zeros"


def test_the_report_is_kept_and_adds_up(wt103):
  made = json.loads((wt103 / "results" / "import.json").read_text())
  sizes = [np.prod(row["shape"], dtype=int) for row in made["tensors"]]
  assert sum(sizes) == made["num_parameters"]
  lines = import_run.render(made).splitlines()
  assert "  2 x transformer/layer_*/rel_attn/qkv/kernel [8, 24] -> " in (
    "\n".join(lines)
  )
  assert any("none missing, none unused" in line for line in lines)


def test_a_run_survives_export_and_import(wt103, tmp_path):
  first, second = tmp_path / "huggingface", tmp_path / "run"
  export_run.export(str(wt103), str(first))
  config, params = load(wt103)
  second.mkdir()
  (second / ".DS_Store").write_bytes(b"of the Finder")  # It is empty to a user.
  _, again, same = make(second, first, "huggingface")
  jax.tree.map(np.testing.assert_array_equal, params, same)
  assert again.eval == config.eval
  vocabularies = [
    vocabulary.load(str(run / run_record.VOCABULARY)) for run in (wt103, second)
  ]
  assert vocabularies[0].symbols == vocabularies[1].symbols
  with pytest.raises(errors.UserError, match="exists"):
    export_run.export(str(wt103), str(first))


def test_a_folder_in_use_is_left_alone(wt103):
  before = sorted(os.listdir(wt103))
  with pytest.raises(errors.UserError, match="is not empty"):
    make(wt103, stored_files.tensorflow("wt103"))
  assert sorted(os.listdir(wt103)) == before


@pytest.mark.parametrize("kind", ["safetensors", "tensor bundle"])
def test_whether_there_is_a_tensor_is_known_without_reading_it(
  kind, tmp_path, monkeypatch
):
  if kind == "safetensors":
    name = "a"
    path = str(tmp_path / "model.safetensors")
    safetensors.numpy.save_file({name: np.ones(3)}, path)
    tensors = huggingface.read_safetensors(path)
  else:
    name = "global_step"
    folder = stored_files.tensorflow("wt103")
    tensors = tensor_bundle.Bundle(str(folder / "model.ckpt-7"))
  assert tensors[name].size

  def read(self, name):
    raise AssertionError(f"{name} was read")

  monkeypatch.setattr(type(tensors), "__getitem__", read)
  assert name in tensors
  assert "b" not in tensors
