"""Writes a published vocabulary as a folder that this package reads."""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator

import tokenizers

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import vocabulary
from transformer_xl.formats import input_files
from transformer_xl.formats import published_vocabulary
from transformer_xl.importers import tokenizer as special_tokens
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record

FILE_NAME = "vocabulary.txt"
SUBWORDS = "vocabulary.json"
ABOUT = "tokenizer_config.json"
# Where a chat template is, in transformers 5 and before.
CHAT_TEMPLATES = ("chat_template.jinja", ABOUT)
# The first of each that a vocabulary of words has plays the role.
ROLES = {"end_of_line": ("<eos>", "<S>"), "unk": ("<unk>", "<UNK>")}


def copy(path: str, folder: str, *, size: int) -> metrics_log.Json:
  """Writes `vocabulary` in the folder of a run, from a file or a dataset.

  Returns:
    Path, unit and size, for the report.

  Raises:
    UserError: the file is damaged, or has not `size` symbols.
  """
  loaded = read(path, size=size)  # Raises if it is damaged.
  with _on_disk(path) as place:
    if os.path.isdir(place):
      run_record.keep_vocabulary(place, folder)
    else:
      target = os.path.join(storage.local(folder), run_record.VOCABULARY)
      _write(*_converted(place, size), target, size=size)
  return {"path": path, "unit": loaded.unit, "size": loaded.size}


def read(path: str, *, size: int) -> vocabulary.Vocabulary:
  """Reads the file or folder of a vocabulary.

  Raises:
    UserError: the file is damaged, or has not `size` symbols.
  """
  with _on_disk(path) as place:
    if os.path.isdir(place):
      loaded = vocabulary.load(place, fix="restore it, or export it again")
    else:
      content, tokenizer = _converted(place, size)
      loaded = vocabulary.parse(content, tokenizer=tokenizer)
  if loaded.size != size:
    raise errors.UserError(
      f"{path} has {loaded.size} symbols, but the model has {size}; put the "
      "model's own vocabulary in its place, or name it when you import the "
      "model (--vocabulary=PATH)."
    )
  return loaded


def _converted(path: str, size: int) -> tuple[bytes, metrics_log.Json]:
  """A published vocabulary as this package's file and tokenizer."""
  tokenizer: metrics_log.Json
  if path.endswith("tokenizer.json"):
    content = _padded(path, size).to_str().encode()
    tokenizer = {"kind": "subword", "lower_case": False}
    folder = os.path.dirname(path)
    about = _about(folder)
    template = _chat_template(folder, about)
    if template is not None:
      tokenizer["chat_template"] = template
    roles = _roles(about)
    if roles:
      tokenizer["roles"] = roles
    return content, tokenizer
  published = published_vocabulary.read(path)
  kind, symbols = _kind(published.symbols)
  [(most_common, count)] = collections.Counter(symbols).most_common(1)
  if count > 1:
    raise errors.UserError(
      f"the vocabulary has {most_common!r} {count} times; each symbol has one "
      "id: name another with --vocabulary=PATH."
    )
  # enwik8 sets it without effect: its symbols are numbers.
  lower_case = published.lower_case and kind != "byte"
  tokenizer = {"kind": kind, "lower_case": lower_case}
  if kind == "word":
    for role, names in ROLES.items():
      found = (name for name in names if name in symbols)
      tokenizer[role] = next(found, None)
  lines = (f"{vocabulary.escape(symbol)}\n" for symbol in symbols)
  return "".join(lines).encode(), tokenizer


def start_of_text(path: str) -> str:
  """The tokens that a tokenizer.json puts in front of every text; "" for none.

  Raises:
    UserError: the file is damaged.
  """
  if not path.endswith("tokenizer.json"):
    return ""
  with _on_disk(path) as place:
    tokenizer = _opened(place)
  tokenizer.no_truncation()
  tokenizer.no_padding()
  encoded = tokenizer.encode("a")
  added = encoded.special_tokens_mask
  num_before = added.index(0) if 0 in added else 0
  return "".join(encoded.tokens[:num_before])


@contextlib.contextmanager
def _on_disk(path: str) -> Iterator[str]:
  """Where a vocabulary is on disk, with what lies beside a tokenizer.json."""
  folder, name = os.path.split(path)
  if name != "tokenizer.json":
    with input_files.on_disk(path) as place:
      yield place
    return
  with input_files.on_disk(folder or ".") as place:
    yield os.path.join(place, name)


def _chat_template(folder: str, about: metrics_log.Json) -> str | None:
  """How messages become text, beside a tokenizer.json; None if nothing says.

  The second file, which says what is `about`, may have several by name.
  """
  own = pathlib.Path(folder, CHAT_TEMPLATES[0])
  if own.exists():
    return own.read_text("utf-8")
  try:
    template = about.get("chat_template")
    if isinstance(template, list):
      by_name = {one["name"]: one["template"] for one in template}
      template = by_name.get("default")
  except (LookupError, TypeError, AttributeError) as error:
    raise _damaged(folder, error) from None
  return template if isinstance(template, str) else None


def _roles(about: metrics_log.Json) -> dict[str, str]:
  """The special tokens in tokenizer_config.json, by what they are."""
  roles = {}
  for name in special_tokens.ROLES:
    token = about.get(name)
    if isinstance(token, dict):
      token = token.get("content")
    if isinstance(token, str):
      roles[name] = token
  return roles


def _about(folder: str) -> metrics_log.Json:
  """The content of tokenizer_config.json; nothing if there is none."""
  path = pathlib.Path(folder, ABOUT)
  if not path.exists():
    return {}
  try:
    return dict(json.loads(path.read_text("utf-8")))
  except (ValueError, TypeError) as error:
    raise _damaged(folder, error) from None


def _damaged(folder: str, error: Exception) -> errors.UserError:
  return errors.UserError(
    f"{os.path.join(folder, ABOUT)} is damaged ({type(error).__name__}: "
    f"{error}); copy it again, or leave it out."
  )


def _opened(path: str) -> tokenizers.Tokenizer:
  try:
    return tokenizers.Tokenizer.from_file(path)
  except Exception as error:  # The library raises no narrower class.
    raise errors.UserError(
      f"{path} is no tokenizer.json ({error}); copy it again."
    ) from None


def _padded(path: str, size: int) -> tokenizers.Tokenizer:
  """The tokenizer of a tokenizer.json, with symbols for all rows of a model.

  Models often have more rows than their tokenizer has symbols, so that devices
  divide them. No text has these.
  """
  tokenizer = _opened(path)
  first = 1 + max(tokenizer.get_vocab().values(), default=-1)
  names = [f"<|unused_{index}|>" for index in range(first, size)]
  tokenizer.add_special_tokens(names)
  return tokenizer


def _write(
  content: bytes, tokenizer: metrics_log.Json, folder: str, *, size: int
) -> None:
  os.makedirs(folder)
  name = SUBWORDS if tokenizer["kind"] == "subword" else FILE_NAME
  pathlib.Path(folder, name).write_bytes(content)
  meta = {
    "unit": tokenizer["kind"],
    "tokenizer": tokenizer,
    "vocabulary": {
      "file": name,
      "size": size,
      "sha256": hashlib.sha256(content).hexdigest(),
    },
  }
  text = json.dumps(meta, indent=2)
  pathlib.Path(folder, "meta.json").write_text(text, "utf-8")


def _kind(symbols: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
  """The kind of the symbols, and the symbols as this package has them.

  enwik8 writes bytes as decimal numbers, text8 spaces as underscores.
  """
  if all(symbol.isdecimal() and int(symbol) < 256 for symbol in symbols):
    return "byte", tuple(chr(int(symbol)) for symbol in symbols)
  if all(len(symbol) == 1 for symbol in symbols):
    if " " not in symbols:
      symbols = tuple(s if s != "_" else " " for s in symbols)
    return "character", symbols
  return "word", symbols
