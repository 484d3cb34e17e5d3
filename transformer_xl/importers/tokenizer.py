"""A vocabulary as a tokenizer.json, which HuggingFace's libraries read.

It gives the ids that `Vocabulary.encode` gives, and `decode` gives the same
text. Only the lower case of a few letters differs, which depends on their
neighbours in Python (a Greek sigma at the end of a word).
"""

import re

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
# As the name of an unknown symbol, which none has: then the library ends with
# an error, as `encode` does.
_NO_SYMBOL = ""


def make(vocabulary: vocabulary_lib.Vocabulary) -> tokenizers.Tokenizer:
  """The tokenizer of a vocabulary."""
  if isinstance(vocabulary, vocabulary_lib.SubwordVocabulary):
    tokenizer = tokenizers.Tokenizer.from_str(vocabulary.model.to_str())
    if vocabulary.lower_case:
      first = normalizers.Lowercase()
      then = tokenizer.normalizer
      both = [first, then] if then else [first]
      tokenizer.normalizer = normalizers.Sequence(both)
    return tokenizer
  if isinstance(vocabulary, vocabulary_lib.WordVocabulary):
    return _of_words(vocabulary)

  names = vocabulary.symbols
  split = pre_tokenizers.Split(tokenizers.Regex(_ANY_CHARACTER), "isolated")
  if isinstance(vocabulary, vocabulary_lib.ByteVocabulary):
    names = tuple(_byte_names()[ord(symbol)] for symbol in names)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Sequence([to_bytes, split])
  tokenizer = _of_symbols(names, _NO_SYMBOL)
  tokenizer.pre_tokenizer = split
  if isinstance(vocabulary, vocabulary_lib.ByteVocabulary):
    tokenizer.decoder = decoders.ByteLevel()
  else:
    tokenizer.decoder = decoders.Fuse()
    if vocabulary.lower_case:
      tokenizer.normalizer = normalizers.Lowercase()
  return tokenizer


def _of_words(
  vocabulary: vocabulary_lib.WordVocabulary,
) -> tokenizers.Tokenizer:
  tokenizer = _of_symbols(vocabulary.symbols, vocabulary.unk or _NO_SYMBOL)
  end = vocabulary.end_of_line
  steps = [normalizers.Lowercase()] if vocabulary.lower_case else []
  steps += [normalizers.Replace("\n", f" {end} ")] if end else []
  if steps:
    tokenizer.normalizer = normalizers.Sequence(steps)
  space = tokenizers.Regex(_WHITE_SPACE)
  tokenizer.pre_tokenizer = pre_tokenizers.Split(space, "removed")
  # Joins words with spaces, since none begins with this prefix.
  joined = [decoders.WordPiece(prefix="\n", cleanup=False), decoders.Fuse()]
  if end:
    line_end = tokenizers.Regex(rf" ?(?<![^ ]){re.escape(end)}(?![^ ]) ?")
    joined.append(decoders.Replace(line_end, "\n"))
  tokenizer.decoder = decoders.Sequence(joined)
  return tokenizer


def _of_symbols(names: tuple[str, ...], unk: str) -> tokenizers.Tokenizer:
  ids = {name: index for index, name in enumerate(names)}
  return tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unk))


def _byte_names() -> list[str]:
  """The character that the library has for each byte.

  Printable ones of Latin-1 stand for themselves; the others are counted up from
  256, in their order.
  """
  printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = (byte for byte in range(256) if byte not in printable)
  names = {byte: chr(256 + count) for count, byte in enumerate(others)}
  return [names.get(byte, chr(byte)) for byte in range(256)]
