"""A vocabulary as a tokenizer.json, which HuggingFace's libraries read.

It gives the ids that `Vocabulary.encode` gives, and `decode` gives the same
text. Only the lower case of a few letters differs, which depends on their
neighbours in Python (a Greek sigma at the end of a word).
"""

import re
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers

from transformer_xl.data import vocabulary as vocabulary_lib

# What tokenizer_config.json says. Nothing is a special token: `encode` adds
# none, and `<eos>` in a text is a word like any other.
CONFIG = {
  "tokenizer_class": "PreTrainedTokenizerFast",
  "clean_up_tokenization_spaces": False,
  "model_input_names": ["input_ids", "attention_mask"],
}
# Where `str.split` splits. The library's own class leaves out 0x1c to 0x1f.
_WHITE_SPACE = r"[\s\x1c-\x1f]+"
_ANY_CHARACTER = r"[\s\S]"


def make(vocabulary: vocabulary_lib.Vocabulary) -> tokenizers.Tokenizer:
  """The tokenizer of a vocabulary.

  Raises:
    TypeError: the vocabulary is of another kind than those below.
  """
  match vocabulary:
    case vocabulary_lib.SubwordVocabulary():
      return _of_subwords(vocabulary)
    case vocabulary_lib.WordVocabulary():
      return _of_words(vocabulary)
    case vocabulary_lib.ByteVocabulary():
      return _of_bytes(vocabulary)
    case vocabulary_lib.CharacterVocabulary():
      return _of_characters(vocabulary)
  raise TypeError(f"{vocabulary.unit} has no tokenizer.json")


def _of_subwords(
  vocabulary: vocabulary_lib.SubwordVocabulary,
) -> tokenizers.Tokenizer:
  tokenizer = tokenizers.Tokenizer.from_str(vocabulary.model.to_str())
  if vocabulary.lower_case:
    steps = [normalizers.Lowercase()]
    if tokenizer.normalizer is not None:
      steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)
  return tokenizer


def _of_bytes(
  vocabulary: vocabulary_lib.ByteVocabulary,
) -> tokenizers.Tokenizer:
  names = _byte_names()
  tokenizer = _of_symbols([names[ord(one)] for one in vocabulary.symbols])
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
      pre_tokenizers.Split(tokenizers.Regex(_ANY_CHARACTER), "isolated"),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _of_characters(
  vocabulary: vocabulary_lib.CharacterVocabulary,
) -> tokenizers.Tokenizer:
  tokenizer = _of_symbols(vocabulary.symbols)
  if vocabulary.lower_case:
    tokenizer.normalizer = normalizers.Lowercase()
  each = tokenizers.Regex(_ANY_CHARACTER)
  tokenizer.pre_tokenizer = pre_tokenizers.Split(each, "isolated")
  tokenizer.decoder = decoders.Fuse()
  return tokenizer


def _of_words(
  vocabulary: vocabulary_lib.WordVocabulary,
) -> tokenizers.Tokenizer:
  tokenizer = _of_symbols(vocabulary.symbols, unk=vocabulary.unk)
  end = vocabulary.end_of_line
  steps: list[normalizers.Normalizer] = []
  if vocabulary.lower_case:
    steps.append(normalizers.Lowercase())
  if end:
    steps.append(normalizers.Replace("\n", f" {end} "))
  tokenizer.normalizer = normalizers.Sequence(steps)
  space = tokenizers.Regex(_WHITE_SPACE)
  tokenizer.pre_tokenizer = pre_tokenizers.Split(space, "removed")
  # Joins words with spaces, since none begins with this prefix.
  joined: list[decoders.Decoder] = [
    decoders.WordPiece(prefix="\n", cleanup=False),
    decoders.Fuse(),
  ]
  if end:
    line_end = tokenizers.Regex(rf" ?(?<![^ ]){re.escape(end)}(?![^ ]) ?")
    joined.append(decoders.Replace(line_end, "\n"))
  tokenizer.decoder = decoders.Sequence(joined)
  return tokenizer


def _of_symbols(
  names: Sequence[str], *, unk: str | None = None
) -> tokenizers.Tokenizer:
  """A table of names. Without `unk` the library refuses others, as we do."""
  ids = {name: index for index, name in enumerate(names)}
  # The name of an unknown symbol has to be something, and no symbol is empty.
  return tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unk or ""))


def _byte_names() -> list[str]:
  """The character that the library has for each byte.

  Printable ones of Latin-1 stand for themselves; the others are counted up from
  256, in their order.
  """
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = (byte for byte in range(256) if byte not in printable)
  names = {byte: chr(256 + count) for count, byte in enumerate(others)}
  return [names.get(byte, chr(byte)) for byte in range(256)]
