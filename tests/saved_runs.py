"""Folders of finished runs without training, for `transformer_xl.load`."""

import hashlib
import json
import pathlib
from typing import Any

from tests import corpus
from tests import tiny
from transformer_xl.config import load
from transformer_xl.data_prep import vocabulary_file
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record

STEP = 7
NUM_SUBWORDS = 262
WORDS = ("<eos>", "<unk>", "the", "cat", "sat", "on", "a", "mat")


def _content(kind: str) -> bytes:
  """The vocabulary's file."""
  if kind == "subword":  # Bytes and some pairs: they encode any text.
    texts = ["the cat sat on the mat\n"] * 9
    return vocabulary_file.train_subwords(iter(texts), NUM_SUBWORDS)
  symbols = WORDS if kind == "word" else corpus.SYMBOLS
  return vocabulary_file.content(list(symbols), kind)


def write(folder: Any, *, kind: str = "byte", **fields: Any) -> str:
  """Writes a run with random parameters; fields as `{"eval.mem_len": (4,)}`."""
  content = _content(kind)
  size = NUM_SUBWORDS if kind == "subword" else content.count(b"\n")
  tokenizer = {"kind": kind, "lower_case": kind == "character"}
  if kind == "word":
    tokenizer |= {"end_of_line": "<eos>", "unk": "<unk>"}
  path = pathlib.Path(folder, run_record.VOCABULARY)
  path.mkdir(parents=True)
  (path / "vocabulary").write_bytes(content)
  meta = {
    "unit": kind,
    "tokenizer": tokenizer,
    "vocabulary": {
      "file": "vocabulary",
      "size": size,
      "sha256": hashlib.sha256(content).hexdigest(),
    },
  }
  (path / "meta.json").write_text(json.dumps(meta), "utf-8")
  values = {"data.name": corpus.NAME, "model.vocab_size": size} | fields
  config = load.from_config_dict(tiny.config_dict(**values))
  params_writer.save(str(folder), tiny.params(config.model), step=STEP)
  run_record.record(config, str(folder))
  return str(folder)
