"""tokenizer.json gives the ids, and the texts, that the vocabulary gives."""

import hypothesis
import pytest
import tokenizers
from hypothesis import strategies as st

from transformer_xl.data import vocabulary
from transformer_xl.data_prep import vocabulary_file
from transformer_xl.importers import tokenizer

CHARACTERS = "abc \n\t\x00\x1c\x85\u2028\u00e9\u4e2d\U0001f600'<>"
WORDS = ("<eos>", "<unk>", "a", "ab", "b<eos>", "\u4e2d", "c'")


def subwords(*, lower_case):
  texts = iter(["the cat sat on the mat\n"] * 9)
  content = vocabulary_file.train_subwords(texts, 262)
  return vocabulary.parse(
    content, tokenizer={"kind": "subword", "lower_case": lower_case}
  )


VOCABULARIES = {
  "bytes": vocabulary.ByteVocabulary(),
  "some bytes": vocabulary.ByteVocabulary(tuple("ba\n \xe9\xc3\xa9")),
  "characters": vocabulary.CharacterVocabulary(tuple(CHARACTERS), False),
  "lower case": vocabulary.CharacterVocabulary(tuple(CHARACTERS), True),
  "words": vocabulary.WordVocabulary(WORDS, False, "<eos>", "<unk>"),
  "lower words": vocabulary.WordVocabulary(WORDS, True, "<eos>", "<unk>"),
  "words in one line": vocabulary.WordVocabulary(WORDS, False, None, "<unk>"),
  "subwords": subwords(lower_case=False),
  "lower subwords": subwords(lower_case=True),
}
TEXTS = dict.fromkeys(VOCABULARIES, CHARACTERS) | {
  "some bytes": "ba\n \u00e9",
  "lower case": CHARACTERS + "ABC",
  "words": [*WORDS, " ", "\n", "\x1c", "\u2028", "other"],
  "lower words": [*WORDS, "AB", " ", "\n", "\x85", "Other"],
  "words in one line": [*WORDS, " ", "\n", "other"],
  "lower subwords": CHARACTERS + "THE CAT",
}


@pytest.mark.parametrize("name", VOCABULARIES)
@hypothesis.given(st.data())
def test_ids_and_texts_are_those_of_the_vocabulary(name, data):
  ours = VOCABULARIES[name]
  symbols = st.sampled_from(list(TEXTS[name]))
  text = "".join(data.draw(st.lists(symbols, max_size=30)))
  written = tokenizer.make(ours).to_str()
  theirs = tokenizers.Tokenizer.from_str(written)
  ids = ours.encode(text).tolist()
  assert theirs.encode(text).ids == ids
  assert theirs.decode(ids) == ours.decode(ids)


@pytest.mark.parametrize(
  "ours",
  [
    vocabulary.ByteVocabulary(tuple("ab")),
    vocabulary.CharacterVocabulary(tuple("ab"), False),
    vocabulary.WordVocabulary(("a", "b"), False, None, None),
  ],
)
def test_a_symbol_without_an_id_is_an_error_there_too(ours):
  with pytest.raises(Exception, match="Missing"):
    tokenizer.make(ours).encode("c")


def with_special_tokens(*names):
  ours = subwords(lower_case=False)
  model = tokenizers.Tokenizer.from_str(ours.model.to_str())
  model.add_special_tokens(list(names))
  content = model.to_str().encode()
  return vocabulary.parse(
    content, tokenizer={"kind": "subword", "lower_case": False}
  )


@pytest.mark.parametrize(
  ("ours", "start", "end", "padding"),
  [
    (VOCABULARIES["bytes"], *["\u0100"] * 3),  # Its name of NUL.
    (VOCABULARIES["subwords"], *["\u0100"] * 3),
    (VOCABULARIES["characters"], *["\0"] * 3),
    # Without NUL the rarest, which is the last one.
    (VOCABULARIES["some bytes"], *["\u00a9"] * 3),
    (vocabulary.CharacterVocabulary(tuple("\n ab"), True), *["b"] * 3),
    (VOCABULARIES["words"], "<eos>", "<eos>", "<unk>"),
    (VOCABULARIES["words in one line"], *["<unk>"] * 3),
    (vocabulary.WordVocabulary(("a", "b"), False, None, None), *["b"] * 3),
    (with_special_tokens("<x>", "<|endoftext|>"), *["<|endoftext|>"] * 3),
    (with_special_tokens("<pad>", "</s>", "<s>"), "<s>", "</s>", "<pad>"),
    (with_special_tokens("<x>", "<y>"), *["<x>"] * 3),
  ],
)
def test_ends_and_padding_are_symbols_that_a_vocabulary_has(
  ours, start, end, padding
):
  found = tokenizer.settings(ours, padding_side="left")
  assert found["bos_token"] == start
  assert found["eos_token"] == end
  assert found["pad_token"] == padding
  assert found["padding_side"] == "left"
  assert {start, end, padding} <= tokenizer.make(ours).get_vocab().keys()
  # What a file declares is found in texts, as ours does, and nothing else.
  assert found["split_special_tokens"] == (not ours.special)
