"""The form of a synthetic task, and what makes a corpus of one.

A task writes documents of words, of which some are answers: words that a model
can tell from what came before. Each answer has a distance, which is how far
back its evidence lies. A task is one file with a class that registers itself,
in this folder or in an extension:

    @registry.tasks.register("name")
    class Name(task.Task):
      ...

Its name is then a dataset.
"""

import functools
import hashlib
import io
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import extensions
from transformer_xl.data import token_file
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import piece
from transformer_xl.data_prep import tokenizer

FILLER = "."
NUM_TOKENS = 1_000_000
SHARES = {"train": 1.0, "valid": 0.1, "test": 0.1}  # Parts of `num_tokens`.
# In front of an option's name: its value in the test split alone.
TEST = "test_"


class Option(NamedTuple):
  """A number that the text of a task depends on."""

  default: int
  least: int
  most: int
  help: str


class Document(NamedTuple):
  """Words, and which of them are answers.

  Attributes:
    words: none of them contains white space.
    answers: index and distance of each answer, in the order of the words.
  """

  words: list[str]
  answers: list[tuple[int, int]]


def _accept(**options: int) -> None:
  """The check of a task whose options all go together."""


class Task:
  """A synthetic task.

  Attributes:
    options: the numbers that `write` takes, by name; flags of the command. Each
      has a second flag with `test_` in front, for the test split alone, so that
      what was learned from short texts is tried on long ones.
    write: takes a number of tokens, a generator (`np.random.Generator`) and the
      options by name; returns documents of at most so many words and line ends
      together.
    check: takes the options; raises a UserError if they do not go together.
    has_prose: `write` also gets `text`, the words of `prose`.
    knows_split: `write` also gets `split`: train, valid or test.
    has_documents: documents do not depend on each other, so a model may forget
      where one starts (`data.reset_at_documents`). Otherwise the text is a
      single document.
    suite_updates: updates that `experiments/memory_suite.py` trains for.
  """

  registered_name: ClassVar[str]
  options: ClassVar[Mapping[str, Option]] = {}
  write: ClassVar[Callable[..., list[Document]]]
  check: ClassVar[Callable[..., None]] = staticmethod(_accept)
  has_prose: ClassVar[bool] = False
  knows_split: ClassVar[bool] = False
  has_documents: ClassVar[bool] = True
  suite_updates: ClassVar[int] = 600

  @staticmethod
  def prose(text: str | None) -> list[str]:
    """Words of the text of `--source`, which is None without one."""
    raise NotImplementedError

  @classmethod
  def test_options(cls) -> dict[str, Option]:
    """Options of the test split alone, which the others' values are without."""
    return {
      f"{TEST}{name}": option._replace(
        help=f"in the test split alone; --{name}",
      )
      for name, option in cls.options.items()
    }


def open_corpus(
  name: str, task: type[Task], *, path: str | None, **chosen: int
) -> corpus_lib.Corpus:
  """The corpus of a task, which depends on its numbers and its prose alone.

  Args:
    name: of the task.
    task: what writes the text.
    path: a text file for a task with prose; otherwise None.
    **chosen: `seed`, `num_tokens`, the task's own options and those of its test
      split, where they differ from the defaults.

  Raises:
    UserError: a number is out of its range, or a source is given.
  """
  if path is not None and not task.has_prose:
    raise errors.UserError(
      f"--dataset={name} makes its text itself; leave --source out."
    )
  num_tokens = chosen.get("num_tokens", NUM_TOKENS)
  options = {
    "seed": Option(0, 0, 2**32 - 1, "seed of the text"),
    "num_tokens": Option(
      NUM_TOKENS, 1000, 10**10, "length of the training text"
    ),
    **task.options,
  }
  numbers = {
    each: chosen.get(each, option.default) for each, option in options.items()
  }
  of_test = task.test_options()
  numbers |= {each: chosen[each] for each in of_test if each in chosen}
  for each, number in numbers.items():
    option = {**options, **of_test}[each]
    most = option.most
    # The shortest split has many of the longest.
    if each.removeprefix(TEST) == "max_distance":
      most = min(most, num_tokens // 100)
    if not option.least <= number <= most:
      raise errors.UserError(
        f"--{each}={number} must be between {option.least} and {most}."
      )
  usual = {each: numbers[each] for each in task.options}
  far = {each: numbers.get(f"{TEST}{each}", usual[each]) for each in usual}
  by_split = {split: far if split == "test" else usual for split in SHARES}
  task.check(**usual)
  try:
    task.check(**far)
  except errors.UserError as error:
    raise errors.UserError(f"in the test split, {error}") from None
  text = None
  fingerprint = name
  if task.has_prose:
    text = task.prose(None if path is None else _read(path))
    fingerprint = hashlib.sha256(" ".join(text).encode()).hexdigest()

  @functools.cache
  def documents(split: str) -> list[Document]:
    index = [*SHARES].index(split)
    length = round(SHARES[split] * numbers["num_tokens"])
    generator = np.random.default_rng([numbers["seed"], index])
    given: dict[str, Any] = {**by_split[split]}
    if task.knows_split:
      given["split"] = split
    if text is not None:
      given["text"] = text
    try:
      written = task.write(length, generator, **given)
    except errors.UserError:
      raise
    except Exception as error:
      raise errors.UserError(
        f"the task {name!r} cannot write its text: {extensions.reason(error)}"
      ) from error
    most = by_split[split].get("max_distance")
    for document in written:
      _check_document(name, document, most=most)
    return written

  def pieces(split: str) -> piece.Pieces:
    lines = [" ".join(each.words) for each in documents(split)]
    return piece.cut(io.BytesIO("\n".join(lines).encode()), origin=name)

  def answers(split: str) -> token_file.Answers:
    # A marker before the first document, and one behind each.
    start = int(task.has_documents)
    positions = []
    distances = []
    for document in documents(split):
      for index, distance in document.answers:
        positions.append(start + index)
        distances.append(distance)
      start += len(document.words) + 1
    return token_file.Answers(
      np.array(positions, np.int64), np.array(distances, np.int64)
    )

  return corpus_lib.Corpus(
    name=name,
    splits={split: functools.partial(pieces, split) for split in SHARES},
    tokenizer=tokenizer.Tokenizer(kind="word"),
    source={"path": path or "generated", **numbers},
    fingerprint=lambda: fingerprint,
    options=numbers,
    sentence_markers=int(task.has_documents),
    answers={split: functools.partial(answers, split) for split in SHARES},
  )


def _check_document(name: str, document: Document, *, most: int | None) -> None:
  """Raises a UserError for words or answers that no text can have.

  `most` is the option `max_distance`, if the task has one.
  """
  for word in document.words:
    if not isinstance(word, str) or not word or word.split() != [word]:
      raise errors.UserError(
        f"the task {name!r} writes {word!r}, which is no word: a word is a "
        "text without white space."
      )
  for index, distance in document.answers:
    if not 0 <= index < len(document.words):
      raise errors.UserError(
        f"the task {name!r} has an answer at index {index} of a document of "
        f"{len(document.words)} words."
      )
    if distance < 1 or (most is not None and distance > most):
      limit = "" if most is None else f" and at most max_distance={most}"
      raise errors.UserError(
        f"the task {name!r} has an answer at the distance {distance}, which "
        f"must be at least 1{limit}."
      )


def _read(path: str) -> str:
  """The text of a file."""
  try:
    return pathlib.Path(storage.expanded(path)).read_text("utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise errors.UserError(
      f"--source={path} must be a text file in UTF-8: {error}."
    ) from None


def fill(num_tokens: int, document: Callable[[], Document]) -> list[Document]:
  """Documents, each with the end of its line, within `num_tokens` words."""
  result: list[Document] = []
  length = 0
  while True:
    new = document()
    length += len(new.words) + 1
    if length > num_tokens:
      return result
    result.append(new)


def check_room_to_copy(*, num_symbols: int, max_distance: int) -> None:
  """Raises a UserError if symbols to copy are longer than the distance."""
  if max_distance <= num_symbols:
    raise errors.UserError(
      f"--max_distance={max_distance} must be above "
      f"--num_symbols={num_symbols}, over which a copy goes at least."
    )


def log_uniform(generator: np.random.Generator, least: int, most: int) -> int:
  """Draws a number whose logarithm is distributed uniformly."""
  return round(least * (most / least) ** generator.random())
