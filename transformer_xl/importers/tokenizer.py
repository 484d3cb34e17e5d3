"""A vocabulary as a tokenizer.json, which HuggingFace's libraries read.

It gives the ids that `Vocabulary.encode` gives, and `decode` gives the same
text. Only the lower case of a few letters differs, which depends on their
neighbours in Python (a Greek sigma at the end of a word).
"""

import re
from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers

from transformer_xl import errors
from transformer_xl.data import vocabulary as vocabulary_lib

# Special tokens that a vocabulary may have, the most usual names first.
_ENDS = (
  *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "[SEP]"),
  "<|im_end|>",
)
_STARTS = ("<|begin_of_text|>", "<s>", "<bos>", "[BOS]", "[CLS]")
# What special tokens are, as tokenizer_config.json names it.
ROLES = ("bos_token", "eos_token", "pad_token")
_PADDINGS = ("<|pad|>", "<pad>", "[PAD]", "<|padding|>")
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


def settings(
  vocabulary: vocabulary_lib.Vocabulary, *, padding_side: str
) -> dict[str, object]:
  """What tokenizer_config.json says.

  The start and end of a text, and padding, are special tokens of the
  vocabulary, those that an import says or the usual ones. Without any they are
  the end of a line among words, or else what texts have least of, since
  HuggingFace's libraries may leave them out of what they decode: NUL, unknown
  tokens, or the last symbol. `encode` adds none of these, and in a text they
  are symbols like any other.
  """
  result: dict[str, object] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
    "padding_side": padding_side,
    # Its own special tokens are single symbols wherever they stand in a text.
    "split_special_tokens": not vocabulary.special,
  }
  template = getattr(vocabulary, "chat_template", None)  # Of subwords alone.
  if template is not None:
    result["chat_template"] = template
  if vocabulary.special:
    names = list(vocabulary.special.values())
    roles = getattr(vocabulary, "roles", {})  # Of imported subwords alone.
    end = roles.get("eos_token") or _first(_ENDS, names) or names[0]
    usual = {
      "bos_token": _first(_STARTS, names) or end,
      "eos_token": end,
      "pad_token": _first(_PADDINGS, names) or end,
    }
    return result | usual | roles
  # Symbols of other vocabularies are by decreasing count.
  rarest = vocabulary.size - 1
  ids = (_single(vocabulary, "\0"), vocabulary.unknown, rarest)
  end_id = padding = next(index for index in ids if index is not None)
  end_of_line = getattr(vocabulary, "end_of_line", None)  # Of words alone.
  if end_of_line is not None:
    end_id = vocabulary.symbols.index(end_of_line)
  tokens = {"bos_token": end_id, "eos_token": end_id, "pad_token": padding}
  if vocabulary.unknown is not None:
    tokens["unk_token"] = vocabulary.unknown
  name = make(vocabulary).id_to_token
  return result | {role: name(index) for role, index in tokens.items()}


def special_ids(
  vocabulary: vocabulary_lib.Vocabulary, settings: Mapping[str, object]
) -> dict[str, int | None]:
  """What config.json says of the special tokens in `settings`.

  Without any, the symbols that stand for them are symbols of texts, at which no
  text ends. A type of model has ids of its own where its file says nothing.
  """
  tokenizer = make(vocabulary)
  return {
    f"{role}_id": (
      tokenizer.token_to_id(str(settings[role])) if vocabulary.special else None
    )
    for role in ROLES
  }


def _first(usual: Sequence[str], names: Sequence[str]) -> str | None:
  return next((name for name in usual if name in names), None)


def _single(vocabulary: vocabulary_lib.Vocabulary, text: str) -> int | None:
  """The id of a text that is one token and comes back; else None."""
  try:
    ids = vocabulary.encode(text)
  except errors.UserError:
    return None
  is_single = len(ids) == 1 and vocabulary.decode(ids) == text
  return int(ids[0]) if is_single else None


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
