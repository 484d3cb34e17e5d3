import zipfile

import numpy as np
import pytest

from tests.importers import stored_files
from tests.parity import weights
from transformer_xl import errors
from transformer_xl.formats import inert_pickle
from transformer_xl.formats import torch_file

MODEL = stored_files.ORIGINAL / "model.pt"
STATE_DICT = stored_files.ORIGINAL / "state_dict.pt"
# Shared by two names; the first holds the values.
TIED = {
  "crit.out_layers.{}.weight": "word_emb.emb_layers.{}.weight",
  "crit.out_projs.{}": "word_emb.emb_projs.{}",
}


@pytest.mark.parametrize("path", [MODEL, STATE_DICT], ids=lambda p: p.name)
def test_tensors_are_those_that_torch_wrote(path):
  tensors = torch_file.read(str(path)).tensors()
  assert tensors.pop("pos_emb.inv_freq").tolist() == [1.0] * 4
  sources = {name: name for name in tensors}
  for index in range(3):
    for theirs, ours in TIED.items():
      if (index, theirs) != (0, "crit.out_projs.{}"):
        sources[theirs.format(index)] = ours.format(index)
  assert len(tensors) > 40
  for name, values in tensors.items():
    expected = weights.draw(stored_files.SEED, sources[name], values.shape)
    np.testing.assert_array_equal(values, expected, err_msg=name)


def test_a_module_has_attributes_and_a_state_dict_has_none():
  module = torch_file.read(str(MODEL))
  assert module.attributes()["mem_len"] == 7
  assert module.attributes("layers", "1", "dec_attn", "dropatt")["p"] == 0.125
  assert torch_file.read(str(STATE_DICT)).attributes() == {}


@pytest.mark.parametrize("path", [MODEL, STATE_DICT], ids=lambda p: p.name)
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_one_line(tmp_path, path, part):
  content = path.read_bytes()
  damaged = tmp_path / "damaged.pt"
  damaged.write_bytes(content[: int(part * len(content))])
  with pytest.raises(errors.UserError, match=r"damaged\.pt is") as caught:
    torch_file.read(str(damaged)).tensors()
  assert "\n" not in str(caught.value)


def of_itself():
  inert = inert_pickle.Inert()
  inert.state = inert
  return inert


def ordered_dictionary_of_a_number():
  return inert_pickle.load(b"ccollections\nOrderedDict\n(I5\ntR.", "FILE")


@pytest.mark.parametrize(
  "root",
  [of_itself(), {b"\xff": 1}, ordered_dictionary_of_a_number()],
  ids=["an object of itself", "a key that is no text", "pairs that are none"],
)
def test_what_torch_never_writes_is_one_line(root):
  file = torch_file.TorchFile(root, {}, "FILE")
  for read in (file.tensors, file.attributes):
    with pytest.raises(errors.UserError, match="FILE is damaged"):
      read()


def test_a_changed_value_has_another_checksum(tmp_path):
  with zipfile.ZipFile(MODEL) as archive:
    name = next(n for n in archive.namelist() if n.endswith("/data/3"))
    values = archive.read(name)
  content = MODEL.read_bytes()
  assert content.count(values) == 1
  damaged = tmp_path / "damaged.pt"
  changed = bytes([values[0] ^ 1]) + values[1:]
  damaged.write_bytes(content.replace(values, changed))
  with pytest.raises(errors.UserError, match="damaged"):
    torch_file.read(str(damaged))


def test_a_tensor_may_not_reach_outside_its_values():
  storage = torch_file.Storage("0", np.dtype(np.float32), 4)
  file = torch_file.TorchFile(None, {"0": np.arange(4, dtype="f4")}, "FILE")
  assert file.view(storage, 1, (3,), (1,)).tolist() == [1, 2, 3]
  for offset, shape, strides in [
    (2, (3,), (1,)),
    (0, (2, 2), (3, 2)),
    (-1, (2,), (1,)),
    (3, (2,), (-1,)),
    (0, (1 << 40,), (0,)),  # Which would take terabytes.
  ]:
    with pytest.raises(errors.UserError, match="outside its values"):
      file.view(storage, offset, shape, strides)


def test_a_file_without_tensors_is_refused(tmp_path):
  torch = pytest.importorskip("torch", reason="writes a file with PyTorch")
  path = tmp_path / "optimizer.pt"
  torch.save({"step": 3}, path)
  with pytest.raises(errors.UserError, match="neither a state dict nor"):
    torch_file.read(str(path)).tensors()


@pytest.mark.parametrize("use_zip", [True, False])
def test_views_and_types_of_all_kinds_are_exact(tmp_path, use_zip):
  torch = pytest.importorskip("torch", reason="writes a file with PyTorch")
  base = torch.arange(24.0).reshape(4, 6)
  tensors = {
    "whole": base,
    "transposed": base.T,
    "rows": base[1:3],
    "columns": base[:, 2:5:2],
    "scalar": base[2, 3],
    "empty": base[:0],
    "half": base.half(),
    "bfloat16": base.bfloat16(),
    "double": base.double(),
    "integers": base.long(),
    "parameter": torch.nn.Parameter(base + 1),
  }
  path = tmp_path / "tensors.pt"
  # As training programs save it: weights and other values.
  torch.save(
    {"args": {"n_layer": 3}, "model_state": tensors},
    path,
    _use_new_zipfile_serialization=use_zip,
  )
  read = torch_file.read(str(path)).tensors()
  assert list(read) == list(tensors)
  for name, tensor in tensors.items():
    expected = tensor.detach().double().numpy()
    assert read[name].shape == expected.shape
    np.testing.assert_array_equal(read[name].astype(np.float64), expected)
  assert read["bfloat16"].dtype.itemsize == read["half"].dtype.itemsize == 2


@pytest.mark.filterwarnings("ignore:Couldn't retrieve source:UserWarning")
@pytest.mark.parametrize("use_zip", [True, False])
def test_both_formats_hold_the_whole_module(tmp_path, use_zip):
  pytest.importorskip("torch", reason="writes a file with PyTorch")
  import torch

  from tests.importers.stored import write_pytorch

  path = tmp_path / "model.pt"
  torch.save(write_pytorch.make(), path, _use_new_zipfile_serialization=use_zip)
  read, stored = torch_file.read(str(path)), torch_file.read(str(MODEL))
  assert read.attributes("crit")["cutoffs"] == [6, 14, 21]
  tensors = read.tensors()
  for name, values in stored.tensors().items():
    np.testing.assert_array_equal(tensors[name], values)
