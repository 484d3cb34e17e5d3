"""Files of a prepared dataset."""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import tempfile

import numpy as np
import tokenizers

from tests import corpus
from tests.fuzz import campaign
from tests.fuzz import files
from transformer_xl.config import load
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary
from transformer_xl.experiments import base


def readers() -> dict[str, campaign.Reader]:
  """By name, with shares of a thousand."""
  return {
    "tokens (train.npy)": campaign.Reader(_arrays("uint8"), _tokens, 100),
    "documents (train_documents.npy)": campaign.Reader(
      _arrays("int64"), _documents, 60
    ),
    "meta.json": campaign.Reader([_meta()], _read_meta, 40),
    "vocabulary.txt": campaign.Reader(
      [b"\\x0a\na\nb\n\\xff\n", b"<eos>\n<unk>\nthe\n\\u2028x\n"], _symbols, 90
    ),
    "tokenizer.json": campaign.Reader([_subwords()], _read_subwords, 20),
  }


def _arrays(dtype: str) -> list[bytes]:
  stream = io.BytesIO()
  np.save(stream, np.arange(60).astype(dtype))
  return [stream.getvalue()]


def _dataset(folder: str, name: str, content: bytes) -> None:
  """A prepared dataset of which one file is new, and has the right hash."""
  path = os.path.join(folder, name)
  with contextlib.suppress(FileNotFoundError):
    os.unlink(path)  # Not written over, since it may still be mapped.
  if not os.path.exists(os.path.join(folder, "meta.json")):
    for other, valid in _VALID.items():
      files.write(folder, other, valid)
  files.write(folder, name, content)
  if name == "train.npy":
    files.write(folder, "meta.json", _dataset_meta(content))


def _dataset_meta(tokens: bytes) -> bytes:
  digest = hashlib.sha256(tokens).hexdigest()
  entry = {"num_tokens": 60, "sha256": digest, "num_words": 9}
  meta = {
    "tokenizer": {"kind": "byte", "lower_case": False},
    "vocabulary": {"file": "vocabulary.txt", "size": 60, "sha256": ""},
    "splits": {"train": entry},
  }
  return json.dumps(meta).encode()


def _valid_dataset() -> dict[str, bytes]:
  [tokens], [starts] = _arrays("uint8"), _arrays("int64")
  return {
    "meta.json": _dataset_meta(tokens),
    "train.npy": tokens,
    "train_documents.npy": starts,
  }


_VALID = _valid_dataset()


def _read_split(folder: str) -> None:
  stream = streams.TrainStream(
    token_file.open_split(folder, "train"),
    num_lanes=2,
    segment_len=5,
    resets="documents",
  )
  stream.read(3, 2, slice(None))


def _tokens(content: bytes, folder: str) -> None:
  _dataset(folder, "train.npy", content)
  _read_split(folder)


def _documents(content: bytes, folder: str) -> None:
  _dataset(folder, "train_documents.npy", content)
  _read_split(folder)


def _meta() -> bytes:
  with tempfile.TemporaryDirectory() as folder:
    corpus.write(folder)
    path = pathlib.Path(folder, corpus.NAME, "meta.json")
    meta = json.loads(path.read_bytes())
  for name in ("num_tokens", "num_documents"):
    meta["splits"]["train"][name] = 60
  digest = hashlib.sha256(_VALID["train.npy"]).hexdigest()
  meta["splits"]["train"]["sha256"] = digest
  return json.dumps(meta).encode()


_SYMBOLS = "".join(vocabulary.escape(s) + "\n" for s in corpus.SYMBOLS).encode()


def _read_meta(content: bytes, folder: str) -> None:
  if not os.path.exists(os.path.join(folder, "vocabulary.txt")):
    files.write(folder, "vocabulary.txt", _SYMBOLS)
  _dataset(folder, "meta.json", content)
  if not os.path.exists(os.path.join(folder, "train.npy")):
    for other in ("train.npy", "train_documents.npy"):
      files.write(folder, other, _VALID[other])
  meta = token_file.read_meta(folder)
  load.with_vocab_size(_CONFIG, meta)
  vocabulary.load(folder)
  token_file.open_split(folder, "train")


_CONFIG = load.from_config_dict(base.get_config())


def _load_vocabulary(content: bytes, folder: str, **tokenizer) -> None:
  """With the digest that goes with the content."""
  digest = hashlib.sha256(content).hexdigest()
  entry = {"file": "vocabulary.txt", "size": 4, "sha256": digest}
  meta = {"vocabulary": entry, "tokenizer": tokenizer}
  files.write(folder, "meta.json", json.dumps(meta).encode())
  files.write(folder, "vocabulary.txt", content)
  loaded = vocabulary.load(folder)
  if tokenizer["kind"] == "byte":
    loaded.encode_bytes(loaded.decode_bytes(range(loaded.size)))
  else:
    loaded.encode(loaded.decode(range(loaded.size)))


def _symbols(content: bytes, folder: str) -> None:
  kind = "word" if b"<eos>" in content else "byte"
  words = {"end_of_line": "<eos>", "unk": "<unk>"}
  _load_vocabulary(content, folder, kind=kind, lower_case=False, **words)


def _subwords() -> bytes:
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
  model.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(vocab_size=40, show_progress=False)
  model.train_from_iterator(["the cat sat on the mat"] * 9, trainer)
  return model.to_str().encode()


def _read_subwords(content: bytes, folder: str) -> None:
  _load_vocabulary(content, folder, kind="subword", lower_case=False)
