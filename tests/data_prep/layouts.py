"""Small corpora in the layouts in which the benchmarks are published."""

import io
import os
import pathlib
import tarfile
import zipfile

import numpy as np
import pytest

from data_prep import piece
from transformer_xl.data import vocabulary

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


def _lines(sentences):
  return "".join(sentence + "\n" for sentence in sentences).encode()


def read(folder, split):
  """Returns a split's tokens as text symbols, and its document starts."""
  vocab = vocabulary.load(str(folder))
  tokens = np.load(folder / f"{split}.npy")
  documents = np.load(folder / f"{split}_documents.npy")
  return [vocab.symbols[i] for i in tokens], documents.tolist()
