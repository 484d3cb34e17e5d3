"""Vocabulary files: made from a corpus, or given by the user."""

import collections
import hashlib
import itertools
import json
import os
import pathlib
import re
import threading
from collections.abc import Iterator
from typing import NamedTuple

import tokenizers

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.formats import input_files
from transformer_xl.formats import published_vocabulary

# Characters of one to four bytes, of which a vocabulary seldom has all.
_RARE = ["\x7f", "\u07fa", "\ud7fb", "\U0002a6a5"]
# Any tokenizer of text has a token for some of it.
_SAMPLE = "The cat sat on 12 mats, \u732b \u043a\u043e\u0442 \u0642\u0637.\n"
# Longer runs of letters, digits, marks or spaces are cut to learn subwords. A
# byte-level model cuts text between these kinds.
_LONG_WORD = re.compile(r"[^\W\d_]{256}|\d{256}|(?:[^\w\s]|_){256}|\s{256}")
# Suffixes of the pickles of the published codes.
_PICKLED = (".pkl", ".pt", ".bin")


class VocabularyFile(NamedTuple):
  """The content of the file, and how to encode text with it."""

  content: bytes
  tokenizer: tokenizer_lib.Meta  # As in meta.json.

  @property
  def sha256(self) -> str:
    """The hash that meta.json states."""
    return hashlib.sha256(self.content).hexdigest()

  @property
  def cut(self) -> tokenizer_lib.Meta:
    """The fields that say how text is cut, without those of an export."""
    return {
      name: value
      for name, value in self.tokenizer.items()
      if name not in vocabulary.OF_EXPORTS
    }

  @property
  def dropout(self) -> float | None:
    """The dropout of a tokenizer's file, which is not applied."""
    if self.tokenizer["kind"] != "subword":
      return None
    return json.loads(self.content)["model"].get("dropout")

  def load(self) -> vocabulary.Vocabulary:
    """Returns the vocabulary."""
    return vocabulary.parse(self.content, tokenizer=self.tokenizer)


def make(
  corpus: corpus_lib.Corpus, counts: collections.Counter[str]
) -> VocabularyFile:
  """Makes the vocabulary of a corpus, from its counts or as trained subwords.

  Special symbols come first, then the others by decreasing count. Ties are
  broken by first occurrence. UserError if the published one has another number
  of symbols.
  """
  tokenizer = corpus.tokenizer
  if tokenizer.kind == "subword" and tokenizer.max_size is not None:
    texts = (
      piece.text().lower() if tokenizer.lower_case else piece.text()
      for split in corpus.vocabulary_splits
      for piece in corpus.pieces(split, "learning subwords of")
    )
    data = train_subwords(texts, tokenizer.max_size)
    return VocabularyFile(data, tokenizer.meta())
  symbols = list(vocabulary.ByteVocabulary().symbols)
  if tokenizer.counts_symbols:
    special = [tokenizer.end_of_line] if tokenizer.kind == "word" else []
    special += filter(None, [tokenizer.unk])
    frequent = (s for s, n in counts.most_common() if n >= tokenizer.min_freq)
    symbols = special + [s for s in frequent if s not in special]
    symbols = symbols[: tokenizer.max_size]
  [expected] = corpus.published.get("symbols", [len(symbols)])
  if len(symbols) != expected:
    raise errors.UserError(
      f"{corpus.source['path']} is not the published {corpus.name}: it has"
      f" {len(symbols)} different symbols, not {expected}; give the original"
      " files, or prepare other text with --dataset=text."
    )
  return VocabularyFile(content(symbols, tokenizer.kind), tokenizer.meta())


def content(symbols: list[str], kind: str) -> bytes:
  """Returns the vocabulary file of the symbols, one per line, escaped."""
  escape = vocabulary.escape_byte if kind == "byte" else vocabulary.escape
  return "".join(f"{escape(symbol)}\n" for symbol in symbols).encode("utf-8")


def extend(
  file: VocabularyFile,
  counts: collections.Counter[str],
  tokenizer: tokenizer_lib.Tokenizer,
) -> VocabularyFile:
  """Appends the symbols of a corpus that a vocabulary lacks, by its counts.

  They are ordered and limited as in `make`; old ids stay. UserError if the old
  symbols alone exceed the limit.
  """
  old = file.load().symbols
  if tokenizer.max_size is not None and tokenizer.max_size < len(old):
    raise errors.UserError(
      f"--max_size={tokenizer.max_size} is for all symbols, but the vocabulary"
      f" to extend has {len(old)}; set a higher one."
    )
  known = {*old}
  frequent = (s for s, n in counts.most_common() if n >= tokenizer.min_freq)
  symbols = [*old, *(s for s in frequent if s not in known)]
  symbols = symbols[: tokenizer.max_size]
  return VocabularyFile(content(symbols, tokenizer.kind), file.tokenizer)


def train_subwords(texts: Iterator[str], size: int) -> bytes:
  """Returns the JSON of a byte-level BPE, which restores any text exactly.

  Longer words are cut for training, whose time grows with the square of their
  lengths: texts without spaces and encoded files have such. A signal ends it,
  since the library computes in another thread, without Python.
  """
  model = tokenizers.Tokenizer(tokenizers.models.BPE())
  model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  model.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=size,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  parts = itertools.chain.from_iterable(map(_short_words, texts))
  failures: list[BaseException] = []

  def train() -> None:
    try:
      model.train_from_iterator(parts, trainer)
    except BaseException as error:
      failures.append(error)

  thread = threading.Thread(target=train, daemon=True)
  thread.start()
  # How far the library is, it says in a form of its own only.
  with piece_lib.clock(f"learning {size:,} subwords") as clock:
    while thread.is_alive():  # Python answers signals between two waits.
      thread.join(0.1)
      clock.update()
  if failures:
    raise failures[0]
  return model.to_str().encode("utf-8")


def _short_words(text: str) -> list[str]:
  """Cuts a text within words that are too long, and nowhere else."""
  starts = [0, *(match.end() for match in _LONG_WORD.finditer(text))]
  stops = [*starts[1:], len(text)]
  return [text[i:j] for i, j in zip(starts, stops, strict=True)]


def read(path: str, tokenizer: tokenizer_lib.Tokenizer) -> VocabularyFile:
  """Reads a vocabulary for the tokenizer; UserError if it does not fit.

  It is the workdir of a run or the folder of a prepared dataset with its own
  tokenizer, JSON of the HuggingFace tokenizers library, a cache.pkl of the
  published TF code, or text with a word per line, where anything after white
  space is ignored.
  """
  place = _place(path)
  if place.is_dir():
    return _read_prepared(place)
  kind = tokenizer.kind
  try:
    data = place.read_bytes()
    if kind != "subword":
      data = content(_symbols(place, kind), kind)
    file = VocabularyFile(data, tokenizer.meta())
    loaded = file.load()
    if isinstance(loaded, vocabulary.SubwordVocabulary):
      _check_unknown(data, loaded.model)
      if not len(loaded.encode(_SAMPLE)):
        raise ValueError("it deletes all text before it cuts it into tokens")
    return file
  except FileNotFoundError:
    problem = "it does not exist"
  except errors.UserError:
    problem = "it is no pickle of the published codes"
  except ValueError as error:
    problem = " ".join(str(error).split())
  raise errors.UserError(
    f"--vocabulary_file={path} is not a vocabulary for"
    f" --tokenizer={kind}: {problem}; give a run's workdir, a prepared"
    " dataset's folder, a published cache.pkl, UTF-8 text with a symbol per"
    " line (bytes as numbers from 0 to 255), or a tokenizers .json for"
    " subwords."
  )


def _check_unknown(content: bytes, tokenizer: tokenizers.Tokenizer) -> None:
  """Raises ValueError if a tokenizer gives an unknown character no token.

  A loss would be of another text. The tokenizer's model is asked, since a
  normalizer or pre-tokenizer may remove characters on purpose.
  """
  stated = json.loads(content)
  parts = [stated.get("normalizer"), stated.get("pre_tokenizer")]
  reads_bytes = '"ByteLevel"' in json.dumps(parts)
  symbols = _RARE
  if reads_bytes:
    symbols = tokenizers.pre_tokenizers.ByteLevel.alphabet()
  model = tokenizer.model
  try:
    lost = [symbol for symbol in symbols if not model.tokenize(symbol)]
  except Exception as error:  # The library raises no narrower class.
    raise ValueError(f"it cannot encode every character ({error})") from None
  if lost:
    fix = "with all 256 bytes" if reads_bytes else "on bytes (ByteLevel)"
    raise ValueError(
      "it drops characters that it lacks, without a token for them; train it "
      f"{fix} or with an unk_token"
    )


def prepared_tokenizer(path: str) -> tokenizer_lib.Meta | None:
  """Returns the tokenizer of a run or a prepared dataset; None for a file."""
  place = _place(path)
  return _read_prepared(place).tokenizer if place.is_dir() else None


def _read_prepared(folder: pathlib.Path) -> VocabularyFile:
  """Reads the vocabulary of a prepared dataset; UserError if it is damaged."""
  vocabulary.load(str(folder))  # Checks the hash.
  meta = json.loads((folder / "meta.json").read_text("utf-8"))
  data = (folder / meta["vocabulary"]["file"]).read_bytes()
  return VocabularyFile(data, meta["tokenizer"])


def _place(path: str) -> pathlib.Path:
  """Returns the path of a file, or of the folder with `meta.json`.

  A run keeps such a folder below its own. The vocabulary of a prepared dataset
  is read by its `meta.json`, because its symbols are escaped.
  """
  path = storage.expanded(path)
  folder, name = os.path.split(path)
  beside = storage.names(folder)
  if name in ("vocabulary.txt", "vocabulary.json") and "meta.json" in beside:
    path = folder or "."
  with input_files.on_disk(path) as copy:
    place = pathlib.Path(copy)
  kept = place / "vocabulary"
  return kept if (kept / "meta.json").is_file() else place


def _symbols(place: pathlib.Path, kind: str) -> list[str]:
  """Returns the symbols of a file; a UserError or ValueError if it has none."""
  if is_pickled := place.suffix in _PICKLED:
    symbols = list(published_vocabulary.read(str(place)).symbols)
  else:
    lines = place.read_text("utf-8-sig").split("\n")
    symbols = [line.split()[0] for line in lines if line.strip()]
  if kind == "byte":  # The published enwik8 has decimal numbers.
    return list(bytes(map(int, symbols)).decode("latin-1"))
  if kind == "character" and is_pickled:
    # The published text8 has an underscore for every space.
    return [" " if symbol == "_" else symbol for symbol in symbols]
  return symbols
