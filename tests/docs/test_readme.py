"""The examples in Python on the pages run as they stand."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from tests import saved_runs
from tests.importers import decoders_by_hand
from transformer_xl.config import load
from transformer_xl.model import network
from transformer_xl.model.mixers import mixer
from transformer_xl.workdir import trained_model

RUN = (
  "README.md",
  "extend.md",
  "fields.md",
  "kernels.md",
  "memory.md",
  "python.md",
  "today.md",
)
ROOT = pathlib.Path(__file__).parents[2]


def examples(name):
  text = (ROOT / name).read_text("utf-8")
  return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_page_of_memory_reads_a_segment(tmp_path, monkeypatch):
  (example,) = examples("docs/memory.md")
  monkeypatch.chdir(tmp_path)
  saved_runs.write("runs/quickstart")
  inputs = jnp.array([[1, 2, 3], [4, 5, 6]])
  names = {
    **{"load": load, "network": network, "mixer": mixer},
    "trained_model": trained_model,
    **{"inputs": inputs, "resets": jnp.zeros(inputs.shape, bool)},
  }
  exec(example, names)
  config, state = names["config"].model, names["state"]
  assert names["outputs"].shape == (2, 3, config.model_dim)
  (memory,) = state.layers
  assert memory.hiddens.shape == (config.num_layers, 2, 256, config.model_dim)
  assert state.length.tolist() == [3, 3]
  variables = {"params": names["params"]}
  read = jax.jit(names["model"].apply, static_argnames="method")
  log_probs, _ = read(variables, inputs, state, method="log_probs")
  losses, _ = read(variables, inputs, inputs, state, method="nll")
  taken = jnp.take_along_axis(log_probs, inputs[..., None], axis=-1)[..., 0]
  np.testing.assert_allclose(losses, -taken, atol=1e-5)  # Sums in float32.


def test_the_readme_has_the_first_example_of_the_page_on_python():
  """Which runs there."""
  (example,) = examples("README.md")
  assert example == examples("docs/python.md")[0]


def test_the_experiment_of_the_page_of_fields_is_one():
  (example,) = examples("docs/fields.md")
  names = {}
  exec(example, names)
  assert load.from_config_dict(names["get_config"]()).model.num_layers == 6


def test_the_page_on_models_of_today_reads_one(tmp_path, capsys):
  (example,) = examples("docs/today.md")
  decoders_by_hand.written(tmp_path, "llama")
  address = "hf://HuggingFaceTB/SmolLM2-135M"
  assert address in example
  exec(example.replace(address, str(tmp_path)), {})
  loss, *_ = capsys.readouterr().out.split()
  assert float(loss) > 0


def test_the_page_on_kernels_attends_within_an_episode():
  """What is before a reset, in memory or in the segment, is not seen."""
  (example,) = examples("docs/kernels.md")
  names = {}
  exec(example, names)
  key = jax.random.key(0)
  shapes = {
    **dict.fromkeys(("query", "key", "value"), (6, 2, 4)),
    **{"position_key": (8, 2, 4), "u": (2, 4), "v": (2, 4)},
  }
  params = {
    name: jax.random.normal(jax.random.fold_in(key, index), shape)
    for index, (name, shape) in enumerate(shapes.items())
  }
  hidden, other = jax.random.normal(key, (2, 3, 3, 6))
  memory = jax.random.normal(key, (3, 5, 6))
  resets = jnp.zeros((3, 3), bool).at[0, 1].set(True)
  remembered = jnp.array([5, 5, 0])

  @jax.jit
  def attend(hidden, memory):
    return names["attend"](params, hidden, memory, remembered, resets)

  values = attend(hidden, memory)
  another_past = attend(hidden.at[:, 0].set(other[:, 0]), memory)
  another_memory = attend(hidden, memory + 1)
  assert jnp.array_equal(values[0, 1:], another_past[0, 1:])
  assert not jnp.any(jnp.isclose(values[1, 1:], another_past[1, 1:]))
  assert jnp.array_equal(values[2], another_memory[2])
  assert not jnp.any(jnp.isclose(values[1], another_memory[1]))


def test_other_pages_have_no_examples():
  """Nor commands of >>>: who adds one runs it here."""
  for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
    is_run = path.name in RUN
    assert is_run or not examples(path), path
    assert ">>> " not in path.read_text("utf-8"), path
