"""Every reader of files, with valid files to start from."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import pickle
import tarfile
import tempfile
import zipfile
from unittest import mock

import numpy as np
import safetensors.numpy
import tokenizers

from data_prep import source as sources
from data_prep import wikitext
from data_prep.lm1b import corpus as lm1b
from data_prep.ptb import corpus as ptb
from data_prep.text import corpus as text_corpus
from experiments import base
from experiments import saved
from tests import corpus
from tests.data_prep import layouts
from tests.fuzz import campaign
from tests.importers import stored_files
from transformer_xl import config as config_lib
from transformer_xl import data
from transformer_xl import provenance
from transformer_xl import texts
from transformer_xl import token_file
from transformer_xl import vocabulary
from transformer_xl import writer
from transformer_xl.importers import crc32c
from transformer_xl.importers import huggingface
from transformer_xl.importers import tensor_bundle
from transformer_xl.importers import tensorflow
from transformer_xl.importers import torch_file
from transformer_xl.importers import vocabulary_file


def all_readers() -> dict[str, campaign.Reader]:
  """By name; the shares add up to a thousand."""
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
    "a run's config.json": campaign.Reader([_run_config()], _saved, 4),
    "metrics.jsonl": campaign.Reader([_metrics()], _drop_after, 50),
    "texts to score": campaign.Reader(
      [b'{"text": "a b"}\n{"text": "c", "memory": "carry"}\n', b"a\nb\n"],
      _texts,
      100,
    ),
    "text as .jsonl": campaign.Reader(
      [b'{"text": "a b\\n"}\n' * 3], _jsonl, 60
    ),
    "text as .gz": campaign.Reader([gzip.compress(b"a b c\n" * 99)], _gzip, 20),
    "wikitext archive (zip)": campaign.Reader([_zip()], _wikitext, 14),
    "lm1b archive (tar.gz)": campaign.Reader([_tar("w:gz")], _lm1b, 3),
    "lm1b archive (tar)": campaign.Reader([_tar("w")], _lm1b, 3),
  }


def _stored(name: str) -> bytes:
  return (stored_files.FOLDER / name).read_bytes()


def _member(name: str, ending: str) -> bytes:
  with zipfile.ZipFile(stored_files.FOLDER / name) as archive:
    found = next(n for n in archive.namelist() if n.endswith(ending))
    return archive.read(found)


def _write(folder: str, name: str, content: bytes) -> str:
  path = os.path.join(folder, name)
  with open(path, "wb") as file:
    file.write(content)
  return path


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
      _write(folder, other, valid)
  _write(folder, name, content)
  if name == "train.npy":
    _write(folder, "meta.json", _dataset_meta(content))


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
  stream = data.TrainStream(
    token_file.open_split(folder, "train"),
    num_lanes=2,
    segment_len=5,
    resets="documents",
    rotate=False,
    seed=0,
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
  meta["splits"]["train"]["num_tokens"] = 60
  digest = hashlib.sha256(_VALID["train.npy"]).hexdigest()
  meta["splits"]["train"]["sha256"] = digest
  return json.dumps(meta).encode()


_SYMBOLS = "".join(vocabulary.escape(s) + "\n" for s in corpus.SYMBOLS).encode()


def _read_meta(content: bytes, folder: str) -> None:
  if not os.path.exists(os.path.join(folder, "vocabulary.txt")):
    _write(folder, "vocabulary.txt", _SYMBOLS)
  _dataset(folder, "meta.json", content)
  if not os.path.exists(os.path.join(folder, "train.npy")):
    for other in ("train.npy", "train_documents.npy"):
      _write(folder, other, _VALID[other])
  meta = token_file.read_meta(folder)
  data.with_vocab_size(_CONFIG, meta)
  vocabulary.load(folder)
  token_file.open_split(folder, "train")


_CONFIG = config_lib.from_config_dict(base.get_config())


def _load_vocabulary(content: bytes, folder: str, **tokenizer) -> None:
  """With the digest that goes with the content."""
  digest = hashlib.sha256(content).hexdigest()
  entry = {"file": "vocabulary.txt", "size": 4, "sha256": digest}
  meta = {"vocabulary": entry, "tokenizer": tokenizer}
  _write(folder, "meta.json", json.dumps(meta).encode())
  _write(folder, "vocabulary.txt", content)
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


def _safetensors() -> bytes:
  tensors = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros((2,), np.int64),
  }
  return safetensors.numpy.save(tensors, metadata={"format": "pt"})


def _read_safetensors(content: bytes, folder: str) -> None:
  path = _write(folder, "model.safetensors", content)
  huggingface.read_safetensors(path)


def _huggingface_config() -> bytes:
  fields = huggingface.DEFAULTS | {"model_type": "transfo-xl"}
  return json.dumps(fields).encode()


def _huggingface(content: bytes, folder: str) -> None:
  _write(folder, "config.json", content)
  _write(folder, "model.safetensors", _WEIGHTS)
  found = huggingface.read(folder)
  config = base.get_config()
  config.model.update(found.model)
  config_lib.from_config_dict(config)


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
  vocabulary_file.read(_write(folder, "vocab.pkl", content))


def _torch(content: bytes, folder: str) -> None:
  file = torch_file.read(_write(folder, "model.pt", content))
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
  _write(folder, "model.index", content)
  values = os.path.join(folder, "model.data-00000-of-00001")
  if not os.path.exists(values):
    name = "tf_wt103/model.ckpt-7.data-00000-of-00001"
    _write(folder, os.path.basename(values), _stored(name))
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
  with mock.patch.object(crc32c, "masked", return_value=_Any()):
    _bundle(content, folder)


def _corpus_info(content: bytes, folder: str) -> None:
  fields = {"vocab_size": 23, "cutoffs": (6, 14)}
  path = _write(folder, "corpus-info.json", content)
  tensorflow._check_corpus(path, fields)


def _run_config() -> bytes:
  config = config_lib.to_dict(_CONFIG)
  return json.dumps({"config": config, "versions": {}}).encode()


def _saved(content: bytes, folder: str) -> None:
  path = _write(folder, "config.json", content)
  provenance._saved(path)
  config_lib.from_config_dict(saved.get_config(folder))


def _metrics() -> bytes:
  records = [
    {"step": step, "loss": 4.0, "learning_rate": 1e-4} for step in range(1, 9)
  ]
  records.insert(4, {"step": 4, "split": "valid", "nll": 4.1})
  return "".join(json.dumps(record) + "\n" for record in records).encode()


def _drop_after(content: bytes, folder: str) -> None:
  path = _write(folder, "metrics.jsonl", content)
  writer._drop_after(path, 5)
  with open(path, encoding="utf-8") as file:
    assert all(json.loads(line)["step"] <= 5 for line in file)


def _texts(content: bytes, folder: str) -> None:
  path = _write(folder, "texts", content)
  texts.parse(texts.read_file(path, field="score.file"), memory="fresh")


def _jsonl(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(_write(folder, "text.jsonl", content)))


def _gzip(content: bytes, folder: str) -> None:
  _read_text(pathlib.Path(_write(folder, "text.txt.gz", content)))


def _read_text(path: pathlib.Path) -> None:
  for _ in text_corpus.read([path], field="text"):
    pass


def _zip() -> bytes:
  with tempfile.TemporaryDirectory() as folder:
    members = {
      f"wikitext-2/wiki.{split}.tokens": content.encode()
      for split, content in layouts.WIKITEXT.items()
    }
    path = pathlib.Path(folder, "wikitext.zip")
    return layouts.write_zip(path, members).read_bytes()


def _tar(mode: str) -> bytes:
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode=mode) as archive:
    for name in ("news.en-00001-of-00100", "news.en.heldout-00000-of-00050"):
      info = tarfile.TarInfo(f"lm1b/{name}")
      info.size = 8
      archive.addfile(info, io.BytesIO(b"a cat .\n"))
  return stream.getvalue()


def _wikitext(content: bytes, folder: str) -> None:
  source = sources.locate(_write(folder, "wikitext.zip", content))
  for split in layouts.WIKITEXT:
    name = wikitext.member("wikitext2", source, split)
    for _ in wikitext.read(source, name):
      pass


def _lm1b(content: bytes, folder: str) -> None:
  source = sources.locate(_write(folder, "lm1b.tar.gz", content))
  with contextlib.suppress(FileNotFoundError):
    os.unlink(os.path.join(folder, "scratch", "done"))
  if isinstance(source, sources.Tar):
    where = pathlib.Path(folder, "scratch")
    unpacked = sources.unpack(source, where, wanted=lm1b._is_wanted)
    for _ in lm1b.read(unpacked, unpacked.names()):
      pass
  for _ in lm1b.read(source, lm1b.names_of(source, "train")):
    pass
  for _ in ptb.read(source, source.names()[0]):
    pass
