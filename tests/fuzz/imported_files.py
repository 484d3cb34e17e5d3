"""Files of other people's models."""

import contextlib
import io
import json
import os
import pickle
import zipfile
from unittest import mock

import numpy as np
import safetensors.numpy

from tests.fuzz import campaign
from tests.fuzz import files
from tests.importers import stored_files
from transformer_xl.config import load
from transformer_xl.experiments import base
from transformer_xl.formats import published_vocabulary
from transformer_xl.formats import tensor_bundle
from transformer_xl.formats import torch_file
from transformer_xl.importers import huggingface
from transformer_xl.importers import tensorflow


def readers() -> dict[str, campaign.Reader]:
  """By name, with shares of a thousand."""
  return {
    "safetensors": campaign.Reader([_safetensors()], _read_safetensors, 190),
    "HuggingFace config.json": campaign.Reader(
      [_huggingface_config()],
      _huggingface,
      10,
    ),
    "vocab.pkl, cache.pkl": campaign.Reader(_pickles(), _pickled, 190),
    "model.pt, by torch before 1.6": campaign.Reader(
      [_stored("original/state_dict.pt")], _torch, 2
    ),
    "model.pt, zip": campaign.Reader([_stored("original/model.pt")], _torch, 2),
    "model.pt, the pickle in it": campaign.Reader(
      [_member("original/model.pt", "data.pkl")], _torch_pickle, 2
    ),
    "TensorFlow index": campaign.Reader(
      [_stored("tf_wt103/model.ckpt-7.index")], _bundle, 4
    ),
    "TensorFlow index, checksums mended": campaign.Reader(
      [_stored("tf_wt103/model.ckpt-7.index")], _bundle_unchecked, 6
    ),
    "corpus-info.json": campaign.Reader(
      [_stored("tf_wt103/corpus-info.json")], _corpus_info, 30
    ),
  }


def _stored(name: str) -> bytes:
  return (stored_files.FOLDER / name).read_bytes()


def _member(name: str, ending: str) -> bytes:
  with zipfile.ZipFile(stored_files.FOLDER / name) as archive:
    found = next(n for n in archive.namelist() if n.endswith(ending))
    return archive.read(found)


def _safetensors() -> bytes:
  tensors = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros((2,), np.int64),
  }
  return safetensors.numpy.save(tensors, metadata={"format": "pt"})


def _read_safetensors(content: bytes, folder: str) -> None:
  path = files.write(folder, "model.safetensors", content)
  huggingface.read_safetensors(path)


def _huggingface_config() -> bytes:
  fields = huggingface.DEFAULTS | {"model_type": "transfo-xl"}
  return json.dumps(fields).encode()


def _huggingface(content: bytes, folder: str) -> None:
  files.write(folder, "config.json", content)
  files.write(folder, "model.safetensors", _WEIGHTS)
  found = huggingface.read(folder)
  config = base.get_config()
  config.model.update(found.model)
  load.from_config_dict(config)


_WEIGHTS = _safetensors()


def _pickles() -> list[bytes]:
  symbols = ["<eos>", "<unk>", "the", "cat"]
  state = {"idx2sym": symbols, "lower_case": True}
  return [
    _stored("tf_wt103/cache.pkl"),
    *(pickle.dumps(state, protocol=protocol) for protocol in (2, 4, 5)),
    pickle.dumps({"vocab": state, "x": b"bytes", "y": {1, 2}}, protocol=4),
    b"<eos> 4\n<unk> 3\nthe 2\n",
  ]


def _pickled(content: bytes, folder: str) -> None:
  published_vocabulary.read(files.write(folder, "vocab.pkl", content))


def _torch(content: bytes, folder: str) -> None:
  file = torch_file.read(files.write(folder, "model.pt", content))
  file.tensors()
  with contextlib.suppress(LookupError):  # Which `pytorch.read` reports.
    file.attributes("layers", "0", "dec_attn")


def _torch_pickle(content: bytes, folder: str) -> None:
  """The other members as they were, and all checksums right."""
  archive = io.BytesIO()
  with (
    zipfile.ZipFile(stored_files.ORIGINAL / "model.pt") as old,
    zipfile.ZipFile(archive, "w") as new,
  ):
    for name in old.namelist():
      is_pickle = name.endswith("data.pkl")
      new.writestr(name, content if is_pickle else old.read(name))
  _torch(archive.getvalue(), folder)


def _bundle(content: bytes, folder: str) -> None:
  files.write(folder, "model.index", content)
  values = os.path.join(folder, "model.data-00000-of-00001")
  if not os.path.exists(values):
    name = "tf_wt103/model.ckpt-7.data-00000-of-00001"
    files.write(folder, os.path.basename(values), _stored(name))
  bundle = tensor_bundle.Bundle(os.path.join(folder, "model"))
  for name in bundle:
    bundle[name]


class _Any:
  """The checksum of everything."""

  def __eq__(self, _):
    return True

  def __ne__(self, _):
    return False

  __hash__ = None


def _bundle_unchecked(content: bytes, folder: str) -> None:
  with mock.patch.object(tensor_bundle, "masked_crc32c", return_value=_Any()):
    _bundle(content, folder)


def _corpus_info(content: bytes, folder: str) -> None:
  fields = {"vocab_size": 23, "cutoffs": (6, 14)}
  path = files.write(folder, "corpus-info.json", content)
  tensorflow._check_corpus(path, fields)
