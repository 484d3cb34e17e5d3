"""Folders of finished runs without training, for `transformer_xl.load`."""

import hashlib
import json
import pathlib
from typing import Any

import tokenizers

from tests import corpus
from tests import tiny
from transformer_xl.config import load
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

STEP = 7
WORDS = ("<eos>", "<unk>", "the", "cat", "sat", "on", "a", "mat")


def _subwords() -> str:
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
  model.decoder = tokenizers.decoders.ByteLevel()
  alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=262, initial_alphabet=alphabet, show_progress=False
  )
  model.train_from_iterator(["the cat sat on the mat\n"] * 9, trainer)
  return model.to_str()


def _symbols(kind: str) -> tuple[str, dict[str, Any]]:
  """The content of a vocabulary's file, and its tokenizer."""
  lower_case = {"kind": kind, "lower_case": kind == "character"}
  if kind == "subword":
    return _subwords(), lower_case
  if kind == "word":
    roles = {"end_of_line": "<eos>", "unk": "<unk>"}
    return "".join(f"{word}\n" for word in WORDS), lower_case | roles
  symbols = ("\\x0a", "\\x20", *"abcdefghijklmnopqrstu")
  return "".join(f"{symbol}\n" for symbol in symbols), lower_case


def write(folder: Any, *, kind: str = "byte", **fields: Any) -> str:
  """Writes a run with random parameters; fields as `{"eval.mem_len": (4,)}`."""
  content, tokenizer = _symbols(kind)
  size = 262 if kind == "subword" else content.count("\n")
  path = pathlib.Path(folder, run_record.VOCABULARY)
  path.mkdir(parents=True)
  (path / "vocabulary").write_text(content, "utf-8")
  meta = {
    "unit": kind,
    "tokenizer": tokenizer,
    "vocabulary": {
      "file": "vocabulary",
      "size": size,
      "sha256": hashlib.sha256(content.encode()).hexdigest(),
    },
  }
  (path / "meta.json").write_text(json.dumps(meta), "utf-8")
  values = {"data.name": corpus.NAME, "model.vocab_size": size} | fields
  config = load.from_config_dict(tiny.config_dict(**values))
  trained_model.save_params(str(folder), tiny.params(config.model), step=STEP)
  run_record.record(config, str(folder))
  return str(folder)
