import shutil

import numpy as np
import pytest

from tests.importers import stored_files
from tests.parity import weights
from transformer_xl import errors
from transformer_xl.formats import tensor_bundle

PREFIX = "model.ckpt-7"
DATA = f"{PREFIX}.data-00000-of-00001"
INDEX = f"{PREFIX}.index"


@pytest.fixture
def copied(tmp_path):
  """A checkpoint that a test may damage."""
  return shutil.copytree(
    stored_files.tensorflow("wt103"), tmp_path / "checkpoint"
  )


def read_all(folder):
  bundle = tensor_bundle.Bundle(str(folder / PREFIX))
  return {name: bundle[name] for name in bundle}


@pytest.mark.parametrize("name", stored_files.TENSORFLOW)
def test_values_are_those_that_tensorflow_wrote(name):
  tensors = read_all(stored_files.tensorflow(name))
  parameters = [
    tensor
    for tensor in tensors
    if tensor.startswith("transformer/") and "/Adam" not in tensor
  ]
  assert len(parameters) > 20
  for tensor in parameters:
    expected = weights.draw(stored_files.STEP, tensor, tensors[tensor].shape)
    np.testing.assert_array_equal(tensors[tensor], expected)
  assert tensors["global_step"] == stored_files.STEP
  assert tensors["global_step"].dtype == np.int64
  assert tensors["beta1_power"].shape == ()


def test_shapes_are_read_without_the_values():
  bundle = tensor_bundle.Bundle(str(stored_files.tensorflow("lm1b") / PREFIX))
  assert bundle.shapes == {name: bundle[name].shape for name in bundle}


@pytest.mark.parametrize(
  ("name", "at", "message"),
  [(DATA, 100, "do not have the checksum"), (INDEX, 30, "damaged")],
)
def test_a_changed_bit_changes_the_checksum(copied, name, at, message):
  data = bytearray((copied / name).read_bytes())
  data[at] ^= 1
  (copied / name).write_bytes(data)
  with pytest.raises(errors.UserError, match=message):
    read_all(copied)


def test_truncated_values_are_detected_before_any_is_read(copied):
  path = copied / DATA
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(errors.UserError, match="truncated"):
    tensor_bundle.Bundle(str(copied / PREFIX))


@pytest.mark.parametrize("keep", [0, 1, 40, 500, 3000])
def test_a_truncated_index_is_one_line(copied, keep):
  path = copied / INDEX
  assert keep < path.stat().st_size
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(errors.UserError, match="truncated") as caught:
    read_all(copied)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", [DATA, INDEX])
def test_a_missing_file_is_named(copied, missing):
  (copied / missing).unlink()
  with pytest.raises(errors.UserError, match=f"{missing} is missing"):
    tensor_bundle.Bundle(str(copied / PREFIX))


def test_text_in_place_of_an_index_is_one_line(copied):
  (copied / INDEX).write_text("no table at all\n" * 100)
  with pytest.raises(errors.UserError, match="not an index"):
    tensor_bundle.Bundle(str(copied / PREFIX))


@pytest.mark.parametrize(
  "shape", [(0, 2**63), (0, 2**62, 2**62), (0,) + (1,) * 69]
)
def test_a_shape_that_no_array_has_is_one_line(copied, monkeypatch, shape):
  bundle = tensor_bundle.Bundle(str(copied / PREFIX))
  checksum = tensor_bundle.masked_crc32c(b"")
  entry = tensor_bundle.Entry(1, 0, 0, 0, checksum, shape, False)
  monkeypatch.setitem(bundle._entries, "w", entry)
  with pytest.raises(errors.UserError, match="shape that no array has"):
    bundle["w"]
