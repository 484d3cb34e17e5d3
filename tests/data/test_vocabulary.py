import functools
import hashlib
import json

import hypothesis
import numpy as np
import pytest
import tokenizers
from hypothesis import strategies as st

from tests import spaced_subwords
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import vocabulary_file

# Characters of every Unicode plane, and some that are awkward in a file.
PLANES = "".join(chr(plane * 0x10000 + 0x1234) for plane in range(17))
UNICODE = st.characters(exclude_categories=["Cs"])
AWKWARD = "\\ \n\r\t\x00\x1c\x85\xa0\u2028\ufeff'\"\\x41_é"


def words(*symbols, unk=None, lower_case=False):
  return vocabulary.WordVocabulary(symbols, lower_case, "<eos>", unk)


def reread(symbols, **tokenizer):
  content = vocabulary_file.content(symbols, tokenizer["kind"])
  return vocabulary.parse(content, tokenizer=tokenizer)


@hypothesis.given(st.binary())
def test_any_bytes_come_back_exactly_and_ids_are_their_values(data):
  vocab = vocabulary.ByteVocabulary()
  ids = vocab.encode_bytes(data)
  assert ids.tolist() == list(data)
  assert vocab.decode_bytes(ids) == data


@hypothesis.given(st.text(UNICODE, max_size=50))
def test_any_text_comes_back_from_bytes(text):
  vocab = vocabulary.ByteVocabulary()
  assert vocab.decode_bytes(vocab.encode(text)) == text.encode()


@pytest.mark.parametrize("kind", ["byte", "character", "subword"])
def test_every_unicode_plane_comes_back(kind):
  text = PLANES + AWKWARD
  if kind == "byte":
    vocab = vocabulary.ByteVocabulary()
  elif kind == "character":
    vocab = reread(sorted(set(text)), kind=kind, lower_case=False)
  else:
    content = vocabulary_file.train_subwords(iter(["some text"]), 300)
    meta = {"kind": kind, "lower_case": False}
    vocab = vocabulary.parse(content, tokenizer=meta)
  ids = vocab.encode(text)
  assert vocab.unit == kind
  assert vocab.decode(ids) == text
  assert vocab.decode_bytes(ids) == text.encode()
  assert ids.dtype == vocab.dtype
  assert int(ids.max()) < vocab.size


@functools.cache
def subwords():
  content = vocabulary_file.train_subwords(iter(["some text of words"]), 300)
  meta = {"kind": "subword", "lower_case": False}
  return vocabulary.parse(content, tokenizer=meta)


SCRIPTS = (
  "the cat sat on\nthe mat, words of some text",
  "言語モデルは次の語を予測する。",
  "语言模型预测下一个词",
  "γλώσσα ΔΣ λ ΔΣΔ",
  "שפה\u200f e\u0301ta\u0301t 👩\u200d🔬",
)
# Every place between two characters of each.
CUTS = [
  (text[:end], text[end:]) for text in SCRIPTS for end in range(1, len(text))
]


def lossless(kind):
  if kind == "byte":
    return vocabulary.ByteVocabulary()
  if kind == "character":
    symbols = sorted(set("".join(SCRIPTS)))
    return reread(symbols, kind=kind, lower_case=False)
  return subwords()


@pytest.mark.parametrize("kind", ["byte", "character", "subword"])
def test_a_continuation_has_all_of_its_text_wherever_it_is_cut(kind):
  vocab = lossless(kind)
  joined = 0
  for context, text in CUTS:
    before, after = vocab.encode_after(context, text)
    np.testing.assert_array_equal(before, vocab.encode(context))
    assert vocab.decode(after) == text
    whole = vocab.encode(context + text)
    together = np.concatenate([before, after])
    joined += np.array_equal(together, whole)
  is_cut = joined < len(CUTS)
  assert is_cut == (kind == "subword")  # Some cuts are inside a subword.
  assert joined > len(CUTS) / 2


def test_a_continuation_inside_a_word_is_a_word_of_its_own():
  """Unknown words before and after the cut have the same id."""
  vocab = words("the", "cat", "sat", "<eos>", "<unk>", unk="<unk>")
  names = vocab.symbols
  text = "the cat\nsat unknown the"
  for end in range(1, len(text)):
    context, rest = text[:end], text[end:]
    before, after = vocab.encode_after(context, rest)
    found = [names[i] for i in [*before, *after]]
    separate = (context + " " + rest).replace("\n", " <eos> ").split()
    assert found == [one if one in names else "<unk>" for one in separate]
    assert len(after) == len(rest.replace("\n", " <eos> ").split()) > 0
  before, after = vocab.encode_after("the cat", " \t")
  assert [len(before), len(after)] == [2, 0]


@pytest.mark.parametrize("kind", ["words", "pieces", "unigram"])
def test_a_continuation_inside_an_unknown_token_is_not_lost(kind):
  symbols = ["[UNK]", "the", "cat", "ca", "##r", "t", "r"]
  table = {symbol: index for index, symbol in enumerate(symbols)}
  models = tokenizers.models
  model = {
    "words": models.WordLevel(table, unk_token="[UNK]"),
    "pieces": models.WordPiece(table, unk_token="[UNK]"),
    "unigram": models.Unigram(
      [(symbol, -1.0 - i) for symbol, i in table.items()], unk_id=0
    ),
  }[kind]
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  content = tokenizer.to_str().encode()
  meta = {"kind": "subword", "lower_case": True}
  vocab = vocabulary.parse(content, tokenizer=meta)

  def pieces(context, text):
    found = vocab.encode_after(context, text)
    return [[vocab.symbols[i] for i in ids] for ids in found]

  assert pieces("the", " cat") == [["the"], ["cat"]]
  assert pieces("THE XX", "YY") == [["the", "[UNK]"], ["[UNK]"]]
  assert pieces("the xx", "yy the") == [["the", "[UNK]"], ["[UNK]", "the"]]
  assert pieces("the ca", "t") == [["the", "ca"], ["t"]]  # The whole has "cat".
  if kind == "pieces":  # The context keeps its tokens.
    assert pieces("the ca", "r") == [["the", "ca"], ["##r"]]
  for text in SCRIPTS:
    for end in range(1, len(text)):
      rest = text[end:]
      _, after = vocab.encode_after(text[:end], rest)
      assert len(after) or not rest.strip()


@pytest.mark.parametrize("kind", spaced_subwords.KINDS)
def test_a_continuation_inside_a_word_has_no_space_of_its_own(kind):
  """Although a text of its own would begin with one."""
  content = spaced_subwords.make(kind).to_str().encode()
  meta = {"kind": "subword", "lower_case": False}
  vocab = vocabulary.parse(content, tokenizer=meta)
  text = "Hello world\n\nhelp me 00-help \u00e9"
  cut = 0
  for start in range(len(text)):
    for end in range(start + 1, len(text)):
      context, rest = text[start:end], text[end:]
      before, after = vocab.encode_after(context, rest)
      np.testing.assert_array_equal(before, vocab.encode(context))
      whole = vocab.encode(context + rest)
      assert vocab.decode([*before, *after]) == vocab.decode(whole)
      cut += len(before) + len(after) != len(whole)
  assert cut


def test_a_tokenizer_that_was_saved_to_cut_text_reads_all_of_it():
  """Its file keeps the truncation and the padding of its last call."""
  content = vocabulary_file.train_subwords(iter(["some text of words"]), 300)
  model = tokenizers.Tokenizer.from_str(content.decode())
  model.enable_truncation(3)
  model.enable_padding(length=64)
  cutting = model.to_str().encode()
  meta = {"kind": "subword", "lower_case": False}
  vocab = vocabulary.parse(cutting, tokenizer=meta)
  text = "some words of text"
  np.testing.assert_array_equal(vocab.encode(text), subwords().encode(text))
  assert vocab.decode(vocab.encode("s")) == "s"


@hypothesis.given(st.text(UNICODE))
def test_any_text_comes_back_from_subwords(text):
  vocab = subwords()
  ids = vocab.encode(text)
  assert vocab.decode(ids) == text
  assert vocab.decode_bytes(ids) == text.encode()


@pytest.mark.parametrize("kind", ["byte", "character", "word", "subword"])
def test_what_is_no_character_is_refused(kind):
  vocab = {
    "byte": vocabulary.ByteVocabulary(),
    "character": vocabulary.CharacterVocabulary(("a", "\ud800"), False),
    "word": words("<eos>", "a", unk="a"),
    "subword": subwords(),
  }[kind]
  for half in ("\ud800", "\udcff"):
    with pytest.raises(errors.UserError, match="at position 1 of the text is"):
      vocab.encode(f"a{half}")


@hypothesis.given(st.sets(UNICODE, min_size=1))
def test_any_characters_survive_the_vocabulary_file(characters):
  symbols = sorted(characters)
  vocab = reread(symbols, kind="character", lower_case=False)
  text = "".join(symbols)
  assert vocab.symbols == tuple(symbols)
  assert vocab.encode(text).tolist() == list(range(len(symbols)))
  assert vocab.decode(vocab.encode(text)) == text


@hypothesis.given(st.text(st.characters(), min_size=1))
def test_an_escaped_symbol_is_one_printable_word(symbol):
  escaped = vocabulary.escape(symbol)
  assert escaped.isprintable()
  assert len(escaped.split()) == 1
  assert vocabulary.unescape(escaped) == symbol


def test_a_byte_vocabulary_file_lists_any_subset_in_any_order():
  symbols = [chr(value) for value in (200, 10, 92, 97, 255)]
  vocab = reread(symbols, kind="byte", lower_case=False)
  data = bytes([97, 10, 255, 200, 92])
  assert vocab.encode_bytes(data).tolist() == [3, 1, 4, 0, 2]
  assert vocab.decode_bytes([3, 1, 4, 0, 2]) == data
  assert [vocab.symbol(i) for i in range(5)] == [
    "\\xc8",
    "\\x0a",
    "\\\\",
    "a",
    "\\xff",
  ]


def test_a_byte_outside_the_vocabulary_is_named_with_its_position():
  vocab = vocabulary.ByteVocabulary(("a", "b"))
  with pytest.raises(errors.UserError, match="byte 0x0a at position 2"):
    vocab.encode("ab\n")


def test_a_character_outside_the_vocabulary_is_named_with_its_position():
  vocab = vocabulary.CharacterVocabulary(("a", "b"), False)
  with pytest.raises(errors.UserError, match="'é' at position 1"):
    vocab.encode("aé")


def test_a_word_outside_the_vocabulary_is_named_with_its_position():
  with pytest.raises(errors.UserError, match="'cat' at position 2"):
    words("<eos>", "a", "b").encode("a b cat b")


def test_a_word_outside_the_vocabulary_becomes_the_unknown_word():
  vocab = words("<eos>", "a", "?", unk="?")
  assert vocab.encode("a cat\n").tolist() == [1, 2, 0]


def test_every_newline_is_an_end_marker_and_comes_back():
  vocab = words("<eos>", "a", "b")
  text = "a b\n\nb\n"
  assert vocab.encode(text).tolist() == [1, 2, 0, 0, 2, 0]
  assert vocab.decode(vocab.encode(text)) == text
  assert vocab.decode([]) == ""


@hypothesis.given(st.lists(st.sampled_from(["a", "b", "\n"])))
def test_words_come_back_up_to_white_space(symbols):
  vocab = words("<eos>", "a", "b")
  ids = vocab.encode(" ".join(symbols))
  assert vocab.encode(vocab.decode(ids)).tolist() == ids.tolist()
  assert len(ids) == len(symbols)


def test_lower_case_is_applied_to_new_text():
  assert words("<eos>", "é", lower_case=True).encode("É").tolist() == [1]
  characters = vocabulary.CharacterVocabulary(("é",), True)
  assert characters.encode("É").tolist() == [0]


@pytest.mark.parametrize(
  ("size", "dtype"),
  [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")],
)
def test_ids_take_the_smallest_integers_that_hold_them(size, dtype):
  symbols = tuple(str(i) for i in range(size - 1))
  vocab = words("<eos>", *symbols)
  ids = vocab.encode(symbols[-1])
  assert ids.dtype == np.dtype(dtype)
  assert ids.tolist() == [size - 1]


def write_dataset(folder, content=b"a\nb\n", sha256=None, kind="character"):
  digest = hashlib.sha256(content).hexdigest()
  meta = {
    "vocabulary": {"file": "vocabulary.txt", "sha256": sha256 or digest},
    "tokenizer": {"kind": kind, "lower_case": False},
  }
  (folder / "vocabulary.txt").write_bytes(content)
  (folder / "meta.json").write_text(json.dumps(meta))


def test_a_datasets_vocabulary_is_loaded(tmp_path):
  write_dataset(tmp_path)
  vocab = vocabulary.load(str(tmp_path))
  assert (vocab.size, vocab.unit) == (2, "character")


def test_a_vocabulary_that_was_changed_is_refused(tmp_path):
  write_dataset(tmp_path, sha256="0" * 64)
  with pytest.raises(errors.UserError, match=r"SHA-256 .* expected 0000"):
    vocabulary.load(str(tmp_path))


@pytest.mark.parametrize("point", ["00110000", "ffffffff", "wide wid"])
def test_an_escape_that_is_no_character_is_refused(tmp_path, point):
  write_dataset(tmp_path, content=f"a\n\\U{point}\n".encode())
  with pytest.raises(errors.UserError, match="or its vocabulary is damaged"):
    vocabulary.load(str(tmp_path))


def test_a_folder_without_a_dataset_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match=r"meta\.json is missing"):
    vocabulary.load(str(tmp_path))


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"vocabulary": 1}'])
def test_a_damaged_description_is_refused(tmp_path, content):
  (tmp_path / "meta.json").write_text(content)
  with pytest.raises(errors.UserError, match="damaged"):
    vocabulary.load(str(tmp_path))


@pytest.mark.parametrize("text", [3, None, b"abc", ["abc"]])
def test_a_vocabulary_encodes_texts_alone(text):
  bytes_ = vocabulary.ByteVocabulary()
  with pytest.raises(errors.UserError, match="encodes texts, which Python"):
    bytes_.encode(text)
