"""The examples in Python on the pages run as they stand."""

import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np

from tests import tiny
from transformer_xl.config import load
from transformer_xl.model import kv_cache
from transformer_xl.model import transformer_xl

ROOT = pathlib.Path(__file__).parents[2]


def examples(name):
  text = (ROOT / name).read_text("utf-8")
  return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_page_of_memory_reads_a_stream():
  _, example = examples("docs/memory.md")
  assert len(example.splitlines()) <= 10
  config = load.from_config_dict(tiny.config_dict())
  tokens = jnp.array([3, 1, 4])[:, None, None]
  resets = jnp.array([[False], [True]])
  names = {
    "config": config,
    "kv_cache": kv_cache,
    "jax": jax,
    "params": tiny.params(config.model),
    "stream": [(jnp.tile(token, (2, 1)), resets) for token in tokens],
  }
  exec(example, names)
  log_probs = np.asarray(names["log_probs"])
  assert log_probs.shape == (2, 1, config.model.vocab_size)
  np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-5)
  assert np.abs(log_probs[0] - log_probs[1]).max() > 0.01  # One starts anew.


def test_the_page_of_memory_reads_a_segment():
  example, _ = examples("docs/memory.md")
  config = tiny.model_config()
  inputs, _, memory = tiny.inputs(config)
  model = transformer_xl.TransformerXL(config, clamp_len=0, same_length=False)
  names = {
    "inputs": inputs,
    "memory": memory,
    # Compiled as a whole it takes a third of the time.
    "model": types.SimpleNamespace(apply=jax.jit(model.apply)),
    "params": tiny.params(config),
    "resets": jnp.zeros(inputs.shape, bool),
  }
  exec(example, names)
  assert names["outputs"].shape == (*inputs.shape, config.model_dim)
  assert names["memory"].hiddens.shape == memory.hiddens.shape
  assert (names["memory"].hiddens != memory.hiddens).any()


def test_the_readme_has_the_first_example_of_the_page_on_python():
  """Which runs there."""
  (example,) = examples("README.md")
  assert example == examples("docs/python.md")[0]


def test_other_pages_have_no_examples():
  """Nor commands of >>>: who adds one runs it here."""
  for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
    is_run = path.name in ("README.md", "memory.md", "python.md")
    assert is_run or not examples(path), path
    assert ">>> " not in path.read_text("utf-8"), path
