"""This package against HuggingFace's model, by way of its own files."""

import dataclasses

import numpy as np
import pytest
from flax import traverse_util

from tests.importers import opened
from tests.parity import configurations
from tests.parity import differences
from tests.parity import ours
from transformer_xl.config import registry
from transformer_xl.importers import export_run
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.importers import pytorch

REASON = "needs PyTorch and Transformers: pip install -e '.[parity]'"
for name in ("torch", "transformers"):
  pytest.importorskip(name, reason=REASON, exc_type=ImportError)

from tests.parity import theirs  # noqa: E402  (needs both)

# Which of our fields a folder does not say, or says of training only.
UNSAID = {"dtype": "float32", "scan_unroll": 1}
# Fields of mixers that no folder has.
OTHER_MIXERS = tuple(registry.mixers.groups())


@pytest.mark.parametrize(
  "index",
  [
    pytest.param(
      index,
      marks=() if index in configurations.CHARACTERISTIC else pytest.mark.rest,
    )
    for index in range(configurations.NUM_DRAWN)
  ],
)
def test_a_drawn_model_equals_that_of_huggingface(tmp_path, index):
  drawn, folder = configurations.draw(index), tmp_path / "folder"
  model = theirs.make(drawn)
  theirs.save(model, folder, safe=index % 2 == 0)
  config, params = read(folder)
  lengths = config.eval
  unsaid = UNSAID | {name: getattr(drawn.model, name) for name in OTHER_MIXERS}
  assert dataclasses.replace(config.model, **unsaid) == dataclasses.replace(
    drawn.model, **unsaid
  )
  assert lengths.mem_len == (drawn.mem_len,)
  assert lengths.clamp_len == drawn.clamp_len
  assert lengths.same_length == drawn.same_length
  flat = traverse_util.flatten_dict(params, sep="/")
  expected = traverse_util.flatten_dict(ours.draw_params(drawn), sep="/")
  for name, values in expected.items():
    np.testing.assert_array_equal(flat[name], values)

  run, reference = ours.run_drawn(index), theirs.run(drawn, model)
  assert run.loss == pytest.approx(reference.loss, abs=1e-5)
  found = differences.between(run, reference)._asdict()
  for name, tolerance in differences.TOLERANCES.items():
    assert found[name] < tolerance, name


def read(folder):
  """The configuration and parameters that an import takes from a folder."""
  found = huggingface.read(str(folder))
  config = import_run.make_config(found, None)
  params, rows = opened.read(
    found.tensors,
    huggingface.layout(config.model),
    config.model,
    ignored=pytorch.IGNORED,
  )
  assert len({row.name for row in rows}) == len(rows)
  return config, params


@pytest.mark.parametrize("index", [0, 4, 5])
def test_huggingface_reads_what_is_exported(tmp_path, index):
  drawn = configurations.draw(index)
  model = theirs.make(drawn)
  theirs.save(model, tmp_path, safe=True)
  export_run.write_weights(
    str(tmp_path / "model.safetensors"), ours.draw_params(drawn), drawn.model
  )
  loaded = theirs.load(tmp_path)
  for name, values in model.state_dict().items():
    if name.endswith("inv_freq"):  # A constant; its last bit is a rounding.
      np.testing.assert_allclose(loaded[name], values, rtol=1e-6)
    else:
      np.testing.assert_array_equal(loaded[name], values)


def test_a_wrong_rule_would_be_seen():
  """The window is the smallest difference between two published rules."""
  drawn = next(
    drawn
    for drawn in map(configurations.draw, range(configurations.NUM_DRAWN))
    if drawn.same_length and max(drawn.segment_lens) > 1
  )
  reference = ours.run_drawn(drawn.index)
  other = dataclasses.replace(
    drawn.model, same_length_window="mem_len_plus_one"
  )
  run = ours.run(drawn._replace(model=other), ours.draw_params(drawn))
  found = differences.between(run, reference)
  assert found.log_probs > 100 * differences.TOLERANCES["log_probs"]
