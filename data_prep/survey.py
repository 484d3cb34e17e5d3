"""The first pass over a corpus: how much text there is, and which symbols.

It tells whether a source is what it should be before any token is written,
and it resumes where a killed process last saved its counts.
"""

import collections
import dataclasses
import itertools

from data_prep import corpus as corpus_lib
from data_prep import piece as piece_lib
from data_prep import progress
from data_prep import staging
from data_prep import tokenizer as tokenizer_lib
from transformer_xl import errors

# Text between two saved states: some ten seconds' work.
_SAVE_BYTES = 256 << 20


@dataclasses.dataclass
class Survey:
  """What is known of a corpus so far."""

  counts: dict[str, corpus_lib.Counts]  # Of every split that was begun.
  symbols: collections.Counter[str]  # In the order in which they were met.
  num_pieces: int = 0  # Read of the last split in `counts`.


def run(
  corpus: corpus_lib.Corpus,
  tokenizer: tokenizer_lib.Tokenizer,
  stage: staging.Staging,
  *,
  count_symbols: bool,
) -> Survey:
  """Reads every split once; UserError if the corpus is not what it should be.

  Args:
    corpus: The text.
    tokenizer: What a symbol is.
    stage: Where counts are saved and found again.
    count_symbols: Whether the vocabulary is to be made from the counts.
  """
  survey = _load(stage)
  for split in corpus.splits:
    if split in list(survey.counts)[:-1]:
      continue
    if split not in survey.counts:
      survey.counts[split], survey.num_pieces = corpus_lib.Counts(), 0
    counter = (
      survey.symbols
      if count_symbols and split in corpus.vocabulary_splits
      else None
    )
    _read_split(corpus, split, tokenizer, stage, survey, counter)
    _check(corpus, split=split, counts=survey.counts[split])
  _save(stage, survey)
  return survey


def _read_split(
  corpus: corpus_lib.Corpus,
  split: str,
  tokenizer: tokenizer_lib.Tokenizer,
  stage: staging.Staging,
  survey: Survey,
  counter: collections.Counter[str] | None,
) -> None:
  """Brings the survey to the end of one split."""
  meter = progress.Progress(f"{corpus.name}: counting {split}")
  unsaved = 0
  text = tokenizer_lib.pieces_of(corpus.splits[split], tokenizer)
  for piece in itertools.islice(text, survey.num_pieces, None):
    counts = survey.counts[split]
    survey.counts[split] = _add(counts, _count(piece, tokenizer, counter))
    survey.num_pieces += 1
    meter.add(len(piece.data))
    unsaved += len(piece.data)
    if unsaved >= _SAVE_BYTES:
      _save(stage, survey)
      unsaved = 0
  meter.close()


def _count(
  piece: piece_lib.Piece,
  tokenizer: tokenizer_lib.Tokenizer,
  counter: collections.Counter[str] | None,
) -> corpus_lib.Counts:
  """Returns the size of a piece, and adds its symbols to the counter."""
  if tokenizer.kind == "byte":
    text = piece.data.decode("utf-8", "replace")
  else:
    text = piece_lib.text(piece)
  num_characters = len(text)
  text = text.lower() if tokenizer.lower_case else text
  words = text.split()
  if tokenizer.kind == "word":
    piece_lib.refuse_cut_word(piece)
  if counter is not None and tokenizer.kind == "word":
    counter.update(words)
  elif counter is not None and tokenizer.kind == "character":
    counter.update(text)
  elif counter is not None:
    counter.update(piece.data.decode("latin-1"))
  num_lines = piece.data.count(b"\n")
  return corpus_lib.Counts(
    num_bytes=len(piece.data),
    num_characters=num_characters,
    num_words=len(words) + num_lines,
    num_lines=num_lines,
  )


def _add(
  first: corpus_lib.Counts, second: corpus_lib.Counts
) -> corpus_lib.Counts:
  fields = dataclasses.asdict(first)
  return corpus_lib.Counts(
    **{name: value + getattr(second, name) for name, value in fields.items()}
  )


def _check(
  corpus: corpus_lib.Corpus, *, split: str, counts: corpus_lib.Counts
) -> None:
  if counts.num_bytes == 0:
    raise errors.UserError(
      f"the {split} split of {corpus.source['path']} is empty; give it some"
      " text, or do without a split of your own text, for example with"
      " --valid_fraction=0."
    )
  corpus_lib.check(corpus, split=split, counts=counts)


def _save(stage: staging.Staging, survey: Survey) -> None:
  counts = {k: dataclasses.asdict(v) for k, v in survey.counts.items()}
  stage.save("survey", [counts, survey.symbols, survey.num_pieces])


def _load(stage: staging.Staging) -> Survey:
  state = stage.load("survey")
  if state is None:
    return Survey({}, collections.Counter())
  counts, symbols, num_pieces = state
  counts = {k: corpus_lib.Counts(**v) for k, v in counts.items()}
  return Survey(counts, collections.Counter(symbols), num_pieces)
