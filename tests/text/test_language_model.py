"""A model with its vocabulary, prepared for reading text."""

import jax
import numpy as np
import pytest

from tests import corpus
from tests import own_process
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.data import vocabulary
from transformer_xl.text import language_model
from transformer_xl.workdir import trained_model


def test_parameters_of_numpy_are_sent_to_the_device_once():
  """As importers read them; otherwise every call would send them again."""
  config = load.from_config_dict(tiny.config_dict())
  params = jax.tree.map(np.asarray, tiny.params(config.model))
  mesh = mesh_lib.of_one_device(jax.devices()[0])
  model = language_model.make(
    trained_model.TrainedModel(config, mesh, params, step=0),
    vocabulary.ByteVocabulary(corpus.SYMBOLS),
    mem_len=4,
    segment_len=3,
    source="tiny",
  )
  leaves = jax.tree.leaves(model.frozen)
  assert leaves
  assert all(isinstance(leaf, jax.Array) for leaf in leaves)


@pytest.mark.rest
@pytest.mark.slow
def test_kernels_are_split_over_the_devices(tmp_path):
  """JAX refuses one that nothing splits; a CPU has none, so it is lowered."""
  found = own_process.result("text.on_mesh", tmp_path)
  assert found == {
    "devices": 4,
    "lowered": {"_read_segment": True, "_read_part": True},
    "texts": 2,
    "tokens": 3,
  }
