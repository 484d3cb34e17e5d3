"""The example of the README runs as it stands."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np

from tests import tiny
from transformer_xl import config as config_lib
from transformer_xl import inference

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_readme_reads_a_stream():
  (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
  assert len(example.splitlines()) <= 10
  config = config_lib.from_config_dict(tiny.config_dict())
  tokens = jnp.array([3, 1, 4])[:, None, None]
  resets = jnp.array([[False], [True]])
  names = {
    "config": config,
    "inference": inference,
    "jax": jax,
    "params": tiny.params(config.model),
    "stream": [(jnp.tile(token, (2, 1)), resets) for token in tokens],
  }
  exec(example, names)
  log_probs = np.asarray(names["log_probs"])
  assert log_probs.shape == (2, 1, config.model.vocab_size)
  np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, atol=1e-5)
  assert np.abs(log_probs[0] - log_probs[1]).max() > 0.01  # One starts anew.
