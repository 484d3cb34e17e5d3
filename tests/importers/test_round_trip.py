"""Random models survive export to HuggingFace's files bit for bit."""

import json
import operator
import os
import tempfile

import hypothesis
import numpy as np
import pytest
from flax import traverse_util
from hypothesis import strategies as st

from tests import kinds
from tests import tiny
from tests.importers import opened
from tests.parity import configurations
from transformer_xl import errors
from transformer_xl.config import schema
from transformer_xl.importers import export_run
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.importers import mapping
from transformer_xl.importers import pytorch


def one_of(*values):
  return st.sampled_from(values)


FIELDS = {
  "vocab_size": one_of(11, 23),
  "num_layers": one_of(1, 3),
  "model_dim": one_of(4, 8),
  "num_heads": one_of(1, 3),
  "head_dim": one_of(2, 4),  # Rotations want pairs of channels.
  "ff_dim": one_of(1, 5),
  "embed_dim": one_of(4, 8),
  "cutoffs": one_of((), (3,), (2, 9)),
  "div_val": one_of(1, 2),
  "tie_weights": st.booleans(),
  "tie_projections": one_of("none", "all", "all_but_first"),
  "project_equal_width": one_of(True, True, True, False),
  "untie_biases": st.booleans(),
  "pre_norm": st.booleans(),
  "encoding": one_of(
    *["relative"] * 4,
    kinds.encoding(rotates=True),
    "none",
    *kinds.encodings(has_table=True),
  ),
  "norm": one_of("layer", "rms"),
  "final_norm": st.booleans(),
  "feed_forward": one_of("relu", "swiglu", "geglu"),
  "qk_norm": st.booleans(),
}
# Without it there are as many as heads of queries.
NUM_KV_HEADS = {"num_kv_heads": st.just(1)}
LENGTHS = mapping.Lengths(
  segment_len=3, mem_len=4, clamp_len=0, same_length=False
)
KEPT = (FIELDS | NUM_KV_HEADS).keys() - {"tie_projections"}


def draw(config: schema.ModelConfig):
  """Parameters with all numbers different, by their paths."""
  params, count = {}, 0
  for name, shape in mapping.parameter_shapes(config).items():
    size = int(np.prod(shape))
    values = np.arange(count, count + size, dtype=np.float32)
    params[name] = values.reshape(shape)
    count += size
  assert count < 2**24  # All are exact in float32.
  return params


def check(config, fields, lengths=LENGTHS):
  """A model and its parameters survive export and import bit for bit."""
  names = [path.removeprefix("model.") for path in huggingface.CARRIED]
  names.append("num_kv_heads")
  values = {name: operator.attrgetter(name)(config) for name in names}
  later = traverse_util.unflatten_dict(values, sep=".")
  fields = fields | {huggingface.OWN: {"model": later}}
  params = draw(config)
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.safetensors")
    tree = traverse_util.unflatten_dict(params, sep="/")
    export_run.write_weights(path, tree, config)
    with open(os.path.join(folder, "config.json"), "w") as file:
      json.dump(fields, file)
    found = huggingface.read(folder)
    assert found.lengths == lengths._replace(segment_len=128)
    read = import_run.make_config(found, None).model
    for name in KEPT:
      assert getattr(read, name) == getattr(config, name), name
    if config.cutoffs:  # Without clusters "none" and "all_but_first" are equal.
      assert read.tie_projections == config.tie_projections
    layout = huggingface.layout(read)
    again, _ = opened.read(found.tensors, layout, read, ignored=pytorch.IGNORED)
  again = traverse_util.flatten_dict(again, sep="/")
  assert again.keys() == params.keys()
  for name, values in params.items():
    np.testing.assert_array_equal(again[name], values, err_msg=name)


# Every example traces a model or two.
@hypothesis.settings(max_examples=8)
@hypothesis.given(st.fixed_dictionaries(FIELDS, optional=NUM_KV_HEADS))
def test_an_exported_model_is_imported_bit_for_bit(updates):
  config = tiny.model_config(**updates)
  try:
    fields = huggingface.config_fields(config, LENGTHS)
  except errors.UserError:
    assert config.encoding not in huggingface.ENCODINGS
    return
  check(config, fields)


@pytest.mark.parametrize("index", range(6))
def test_characteristic_models_are_imported_bit_for_bit(index):
  drawn = configurations.draw(index)
  lengths = mapping.Lengths(4, drawn.mem_len, drawn.clamp_len, same_length=True)
  fields = huggingface.config_fields(drawn.model, lengths)
  check(drawn.model, fields, lengths)


@pytest.mark.parametrize(
  "updates",
  [
    {"feed_forward": "geglu", "num_kv_heads": 1},
    {
      "norm": "rms",
      "final_norm": True,
      "feed_forward": "swiglu",
      "qk_norm": True,
      "num_kv_heads": 2,
      "num_heads": 4,
      "encoding": kinds.encoding(rotates=True),
      "pre_norm": True,
    },
  ],
)
def test_options_of_later_models_are_imported_bit_for_bit(updates):
  config = tiny.model_config(**updates)
  check(config, huggingface.config_fields(config, LENGTHS))


@pytest.mark.parametrize(
  "encoding",
  [
    "relative_tied",
    *kinds.encodings(has_table=True),
    *kinds.encodings(counts_from_segment=True, has_table=False),
  ],
)
def test_another_encoding_cannot_be_exported(encoding):
  config = tiny.model_config(encoding=encoding)
  with pytest.raises(
    errors.UserError, match=f"model.encoding={encoding} cannot"
  ):
    huggingface.config_fields(config, LENGTHS)
