"""Small corpora in the layouts in which the benchmarks are published."""

import io
import json
import os
import pathlib
import tarfile
import zipfile

import numpy as np
import pytest

from transformer_xl.data import vocabulary
from transformer_xl.data_prep import piece
from transformer_xl.data_prep import preparation

_SHARED = pathlib.Path(__file__).parents[3] / "shared" / "data"
SHARED = pathlib.Path(os.environ.get("TRANSFORMER_XL_TEST_DATA", _SHARED))

PTB = {
  "train": " the cat sat on the mat \n the dog \n",
  "valid": " the cat \n",
  "test": " the <unk> N \n a cat \n",
}
WIKITEXT = {
  "train": " \n = One = \n \n One is a number . \n \n = = History = = \n \n"
  " Once @-@ off . \n \n \n = Two = \n \n Two is One . \n \n",
  "valid": " \n = Two = \n \n Two is a number . \n \n",
  "test": " \n = One = \n \n Once off . \n \n",
}
LM1B = {
  "train": [["a cat .", "a dog ran ."], ["The end ."]],
  "heldout": ["a cat ran .", "a bird ."],
}

# Nothing is held out.
WHOLE = {"valid_fraction": 0, "test_fraction": 0}


def shared(name):
  """Returns a folder of real data, or skips the test and says why."""
  folder = SHARED / name
  if not folder.is_dir():
    pytest.skip(f"no {folder}; set TRANSFORMER_XL_TEST_DATA to its parent")
  return folder


def small_pieces(monkeypatch, *, block, longest):
  """Makes pieces so small that a few words fill several."""
  monkeypatch.setattr(piece, "_BLOCK", block)
  monkeypatch.setattr(piece, "_LONGEST", longest)


def write_zip(path, members):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, data in members.items():
      archive.writestr(name, data)
  return path


def write_tar(path, members):
  with tarfile.open(path, "w:gz") as archive:
    for name, data in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(data)
      archive.addfile(info, io.BytesIO(data))
  return path


def write_files(folder, members):
  for name, data in members.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
  return folder


def ptb_members():
  return {
    f"./simple-examples/data/ptb.{split}.txt": text.encode()
    for split, text in PTB.items()
  }


def wikitext_members():
  return {
    f"wikitext-103/wiki.{split}.tokens": text.encode()
    for split, text in WIKITEXT.items()
  }


def lm1b_members():
  root = "1-billion-word-language-modeling-benchmark-r13output"
  train = f"{root}/training-monolingual.tokenized.shuffled"
  heldout = f"{root}/heldout-monolingual.tokenized.shuffled"
  members = {
    f"{train}/news.en-{i:05d}-of-00100": _lines(sentences)
    for i, sentences in enumerate(LM1B["train"], start=1)
  }
  first = f"{heldout}/news.en.heldout-00000-of-00050"
  other = f"{heldout}/news.en.heldout-00001-of-00050"
  return {other: b"not this\n", first: _lines(LM1B["heldout"]), **members}


def pg19_members():
  """A bucket with 3, 1 and 2 books of 3 words each."""
  books = {"train": (7, 40, 500), "validation": (8,), "test": (9, 41)}
  members = {
    f"{folder}/{number}.txt": b"Book %d\r\n\n ends." % number
    for folder, numbers in books.items()
    for number in numbers
  }
  return {"metadata.csv": b"7,A title,1900,http\n", **members}


def _lines(sentences):
  return "".join(sentence + "\n" for sentence in sentences).encode()


def prepare(dataset, tmp_path, source, **options):
  """Prepares a dataset in the folder `data`."""
  source = None if source is None else str(source)
  return preparation.prepare(
    dataset=dataset, data_dir=str(tmp_path / "data"), source=source, **options
  )


def remains(tmp_path):
  """Returns what lies beside prepared datasets, and these."""
  folder = tmp_path / "data"
  return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def meta(folder):
  return json.loads((folder / "meta.json").read_text())


def everything(folder):
  """Returns the bytes of each split."""
  vocab = vocabulary.load(str(folder))
  return {
    split: vocab.decode_bytes(np.load(folder / f"{split}.npy"))
    for split in meta(folder)["splits"]
  }


def read(folder, split):
  """Returns a split's tokens as text symbols, and its document starts."""
  vocab = vocabulary.load(str(folder))
  tokens = np.load(folder / f"{split}.npy")
  documents = np.load(folder / f"{split}_documents.npy")
  return [vocab.symbols[i] for i in tokens], documents.tolist()
