"""Tiny prepared datasets as data_prep writes them, and runs on them."""

import contextlib
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import ml_collections
import numpy as np

from tests import tiny
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.data import vocabulary

SYMBOLS = tuple("\n abcdefghijklmnopqrstu")
NAME = "tiny"
TOKENS = {"train": 1003, "valid": 211, "test": 150}
RUN = {
  "model.vocab_size": 0,
  "data.name": NAME,
  "train.num_steps": 12,
  "train.batch_size": 4,
  "train.segment_len": 8,
  "train.mem_len": 8,
  "train.segments_per_call": 2,
  "train.learning_rate": 1e-2,
  "train.schedule": "constant",
  "train.log_every_steps": 2,
  "train.eval_every_steps": 0,
  "eval.batch_size": 4,
  "eval.segment_len": 8,
  "eval.mem_len": (8,),
  "checkpoint.every_steps": 4,
  "checkpoint.every_minutes": 0.0,
}


def write(data_dir: Any, *, name: str = NAME) -> str:
  """Writes a dataset below `data_dir`; returns the latter as a string."""
  folder = pathlib.Path(data_dir) / name
  folder.mkdir(parents=True)
  content = "".join(vocabulary.escape(s) + "\n" for s in SYMBOLS).encode()
  (folder / "vocabulary.txt").write_bytes(content)
  meta = {
    "format": 1,
    "name": name,
    "dataset": "text",
    "unit": "byte",
    "mode": None,
    "tokenizer": {"kind": "byte", "lower_case": False},
    "vocabulary": {
      "file": "vocabulary.txt",
      "size": len(SYMBOLS),
      "sha256": hashlib.sha256(content).hexdigest(),
    },
    "splits": {
      split: _write_split(folder, split, length)
      for split, length in TOKENS.items()
    },
  }
  (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
  return str(data_dir)


@contextlib.contextmanager
def changed_meta(folder: Any) -> Iterator[dict[str, Any]]:
  """Writes what a block changes in the description of a dataset."""
  path = pathlib.Path(folder, "meta.json")
  meta = json.loads(path.read_text("utf-8"))
  yield meta
  path.write_text(json.dumps(meta), encoding="utf-8")


def text(num_tokens: int, *, seed: int = 0) -> np.ndarray:
  """Ids of lines in which each letter often repeats the fifth before it."""
  generator = np.random.default_rng(seed)
  ids = generator.integers(1, len(SYMBOLS), num_tokens)
  for i in np.flatnonzero(generator.random(num_tokens) < 0.8):
    ids[i] = ids[max(i - 5, 0)]
  ids[generator.random(num_tokens) < 0.03] = 0
  return ids.astype(np.uint8)


def positions(
  num_tokens: int, *, documents: tuple[int, ...] = (0,)
) -> token_file.TokenFile:
  """A split in which every token is its own position."""
  return token_file.TokenFile(
    np.arange(num_tokens, dtype=np.uint16), np.array(documents), "", {}
  )


def config_dict(data_dir: str, **updates: Any) -> ml_collections.ConfigDict:
  """A run of twelve steps; updates as `{"train.mem_len": 4}`."""
  return tiny.config_dict(**{"data.dir": data_dir} | RUN | updates)


def config_flags(data_dir: str, **updates: Any) -> list[str]:
  """The same as flags for `--config=experiments/base.py`."""
  sizes = {f"model.{name}": value for name, value in tiny.MODEL.items()}
  values = sizes | {"data.dir": data_dir} | RUN | updates
  return [f"--config.{name}={value}" for name, value in values.items()]


def config(data_dir: str, **updates: Any) -> schema.ExperimentConfig:
  """The same, frozen, with the vocabulary's size from the data."""
  frozen = load.from_config_dict(config_dict(data_dir, **updates))
  meta = token_file.read_meta(f"{data_dir}/{NAME}")
  return load.with_vocab_size(frozen, meta)


def _write_split(folder: pathlib.Path, split: str, length: int) -> dict:
  ids = text(length, seed=length)
  documents = np.flatnonzero(np.concatenate([[True], ids[:-1] == 0]))
  np.save(folder / f"{split}.npy", ids)
  np.save(folder / f"{split}_documents.npy", documents)
  return {
    "num_tokens": length,
    "num_documents": len(documents),
    "dtype": "uint8",
    "sha256": hashlib.sha256(
      (folder / f"{split}.npy").read_bytes()
    ).hexdigest(),
    "num_bytes": length,
    "num_characters": length,
    "num_words": int(np.sum(ids <= 1)) + 1,
    "num_lines": len(documents),
  }
