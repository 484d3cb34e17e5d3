"""The corpora that can be prepared, by name."""

import pathlib

from data_prep import corpus as data_prep_corpus
from data_prep import tokenizer as tokenizer_lib
from data_prep import wikitext
from data_prep.enwik8 import corpus as enwik8_corpus
from data_prep.lm1b import corpus as lm1b_corpus
from data_prep.ptb import corpus as ptb_corpus
from data_prep.python_stdlib import corpus as python_stdlib_corpus
from data_prep.text import corpus as text_corpus
from data_prep.text8 import corpus as text8_corpus
from transformer_xl import errors

NAMES = (
  "enwik8",
  "lm1b",
  "ptb",
  "python_stdlib",
  "text",
  "text8",
  "wikitext103",
  "wikitext2",
)
_WITH_MODES = ("enwik8", "lm1b")


def open_corpus(
  name: str,
  *,
  source: str | None,
  mode: str | None,
  tokenizer: tokenizer_lib.Tokenizer,
  options: text_corpus.Options | None,
  cache: pathlib.Path,
) -> data_prep_corpus.Corpus:
  """Finds a corpus, on disk or to be downloaded.

  Args:
    name: One of NAMES.
    source: Where the user has it, or None.
    mode: Of those corpora that have several, or None for the usual one.
    tokenizer: Of the user's own text; the others bring theirs.
    options: For the user's own text; None for the others.
    cache: Where downloads are kept.
  """
  if mode is not None and name not in _WITH_MODES:
    raise errors.UserError(
      f"--mode is for {' and '.join(_WITH_MODES)}; {name} has none."
    )
  if (options is not None) != (name == "text"):
    raise errors.UserError(
      "field, valid_source, test_source, valid_fraction and test_fraction are"
      f" for --dataset=text; {name} has its own splits."
    )
  if options is not None:
    return text_corpus.open_corpus(options, tokenizer, source=source)
  if name == "python_stdlib":
    return python_stdlib_corpus.open_corpus(path=source)
  if name == "enwik8":
    return enwik8_corpus.open_corpus(mode=mode, path=source, cache=cache)
  if name == "lm1b":
    return lm1b_corpus.open_corpus(mode=mode, path=source, cache=cache)
  if name == "text8":
    return text8_corpus.open_corpus(path=source, cache=cache)
  if name == "ptb":
    return ptb_corpus.open_corpus(path=source, cache=cache)
  if name in wikitext.ARCHIVES:
    return wikitext.open_corpus(name, path=source, cache=cache)
  raise errors.UserError(
    f"there is no dataset {name!r}; use one of {', '.join(NAMES)}."
  )
