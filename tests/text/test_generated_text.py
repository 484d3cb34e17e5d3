"""The text of drawn tokens: whole characters, and where it stops."""

from unittest import mock

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests import saved_runs
from tests.text import models
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.text import decoding
from transformer_xl.text import generate
from transformer_xl.text import language_model

BYTES = vocabulary_lib.ByteVocabulary()
WORDS = vocabulary_lib.WordVocabulary(
  ("<eos>", "<unk>", "the", "cat", "sat"), False, "<eos>", "<unk>"
)


@pytest.mark.parametrize(
  ("vocabulary", "prompt", "text"),
  [
    (BYTES, "na", "\u00efve \u20ac\U0001d11e"),
    (WORDS, "the cat", " sat\nthe <unk>\n\ncat"),
    (WORDS, "the cat\n", "sat the"),
  ],
)
def test_a_continuation_is_what_its_tokens_add(vocabulary, prompt, text):
  before = vocabulary.encode(prompt)
  tokens = vocabulary.encode(prompt + text)[len(before) :]
  assert generate.continuation(vocabulary, before, tokens) == text


def test_a_prompt_may_end_inside_a_character():
  ids = BYTES.encode("abcd\u00e9!")
  assert generate.continuation(BYTES, ids[:5], ids[5:]) == "\u00e9!"
  assert generate.continuation(BYTES, ids[4:5], ids[5:]) == "\u00e9!"
  broken = np.array([0x80, 0xE2, 0x82])
  assert generate.continuation(BYTES, broken, np.array([0xAC])) == "\u20ac"


def test_invalid_bytes_are_shown_at_the_end():
  invalid = np.array([98, 0xE2, 0x82])
  text = generate.continuation(BYTES, BYTES.encode("a"), invalid)
  assert text == "b\ufffd"


class Pieces:
  """Subwords of bytes, which need not be whole characters."""

  symbols = tuple(bytes([byte]) for byte in b"ab\xff") + (
    # Parts of characters of two, three and four bytes, and over two of them.
    *(b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b"\xe2\x82", b"\x82\xac"),
    *(b"\xf0", b"\x9f", b"\x98", b"\x80", b"\xf0\x9f", b"\x98\x80\xe2"),
    *(b"a\xe2", b"\x82a", b"\xc3\xa9", b"\xef\xbf\xbd", b"\xed", b"\xf4"),
  )

  unit = "subword"

  def encode(self, text):
    assert not text
    return np.zeros(0, int)

  def decode(self, ids):
    joined = b"".join(self.symbols[index] for index in ids)
    return joined.decode("utf-8", "replace")


SYMBOLS = st.lists(
  st.integers(0, len(Pieces.symbols) - 1), min_size=1, max_size=12
)


@hypothesis.settings(max_examples=500)
@hypothesis.given(SYMBOLS, SYMBOLS, st.integers(1, 5))
def test_pieces_join_to_the_text_however_characters_are_split(
  before, drawn, count
):
  vocabulary = Pieces()
  model = mock.Mock(vocabulary=vocabulary, origin=None)
  before = np.array(before)
  drawn = np.array(drawn)
  state = decoding.TextState(None, None, np.zeros(0, int), before, 0)
  cuts = range(0, len(drawn) + count, count)
  parts = [decoding.Samples([drawn[:end]], [False], 1.0, state) for end in cuts]
  shown = ""
  with mock.patch.object(decoding, "stream", return_value=iter(parts)):
    progress = generate.generate(
      model, "", models.options(), seed=0, state=state
    )
  for end in cuts:
    shown += next(progress).piece
    whole = generate.continuation(vocabulary, before, drawn[:end])
    assert whole.startswith(shown)
    if not whole.endswith("\ufffd"):
      assert shown == whole  # Nothing waits that is complete.
  (last,) = progress
  assert shown + last.piece == last.result.text == whole


class Fallback:
  """Subwords as Llama's: characters, and bytes of all others.

  A run of bytes that is not UTF-8 has a replacement for each of them.
  """

  bytes_alone = tuple(bytes([byte]) for byte in range(256))
  symbols = ("a", "b", "!") + bytes_alone
  unit = "subword"

  def encode(self, text):
    ids = []
    for character in text:
      if character in self.symbols:
        ids.append(self.symbols.index(character))
      else:
        ids += [3 + byte for byte in character.encode()]
    return np.array(ids, int)

  def decode(self, ids):
    text = ""
    run = b""
    for symbol in [*(self.symbols[index] for index in ids), ""]:
      if isinstance(symbol, bytes):
        run += symbol
        continue
      try:
        text += run.decode()
      except UnicodeDecodeError:
        text += "\ufffd" * len(run)
      run = b""
      text += symbol
    return text


@hypothesis.settings(max_examples=300)
@hypothesis.given(
  st.text("ab!\u00e9\u20ac\U0001f600", min_size=2, max_size=9),
  st.integers(1, 20),
  st.integers(1, 5),
  st.sampled_from(["", "!", "b!", "\u20ac"]),
)
def test_a_run_of_bytes_is_shown_once_it_is_whole(text, cut, count, stop):
  vocabulary = Fallback()
  model = mock.Mock(vocabulary=vocabulary, origin=None)
  ids = vocabulary.encode(text)
  cut = min(cut, len(ids) - 1)
  before = ids[:cut]
  drawn = ids[cut:]
  state = decoding.TextState(None, None, np.zeros(0, int), before, 0)
  cuts = range(0, len(drawn) + count, count)
  parts = [decoding.Samples([drawn[:end]], [False], 1.0, state) for end in cuts]
  with mock.patch.object(decoding, "stream", return_value=iter(parts)):
    *pieces, last = generate.generate(
      model, "", models.options(stop=stop), seed=0, state=state
    )
  shown = "".join(one.piece for one in pieces) + last.piece
  assert shown == last.result.text
  wanted = text[len(vocabulary.decode(before).rstrip("\ufffd")) :]
  if stop and stop in wanted:
    wanted = wanted[: wanted.index(stop) + len(stop)]
  assert "\ufffd" not in shown
  assert shown == wanted


@pytest.mark.parametrize(
  ("vocabulary", "stop", "says"),
  [(WORDS, "dog", "unknown words"), (WORDS, " ", "no tokens")],
)
def test_a_stop_text_that_cannot_be_drawn_is_refused(vocabulary, stop, says):
  with pytest.raises(errors.UserError, match=says):
    generate.stop_tokens(vocabulary, stop)
  assert generate.stop_tokens(vocabulary, "cat\n") == (3, 0)
  assert generate.stop_tokens(vocabulary, "") == ()


def subwords(tmp_path, **fields):
  """A model that draws subwords, and their vocabulary."""
  folder = saved_runs.write(tmp_path, kind="subword", **fields)
  config = load.from_config_dict(load.saved(folder))
  lengths = {"mem_len": 8, "segment_len": 4}
  with language_model.loaded(config, folder, **lengths) as model:
    return model


def continued(model, stop, **updates):
  config = models.options(num_tokens=200, stop=stop, **updates)
  *pieces, last = generate.generate(model, "the cat", config, seed=1)
  shown = [*pieces, last]
  return "".join(one.piece for one in shown), last.result


@pytest.mark.rest
def test_a_stop_text_is_found_however_it_is_split_into_subwords(
  tmp_path, monkeypatch
):
  model = subwords(tmp_path, **{"model.tie_weights": False})
  _, free = continued(model, "", num_samples=3)
  # Texts over two tokens, which one would encode otherwise, and within one.
  whole = free.text
  tried = 0
  for first in range(5, 60, 4):
    for length in (1, 2, 3):
      stop = whole[first : first + length]
      if "\ufffd" in stop:
        continue
      tried += 1
      shown, found = continued(model, stop, num_samples=3)
      for sample, other in zip(found.samples, free.samples, strict=True):
        end = other.text.find(stop)
        assert sample.stopped == (end >= 0)
        wanted = other.text[: end + length] if end >= 0 else other.text
        assert sample.text == wanted
        count = len(sample.tokens)
        assert sample.tokens.tolist() == other.tokens[:count].tolist()
        assert stop not in model.vocabulary.decode(sample.tokens[:-1])
      assert shown == found.text
  assert tried > 5


def test_looking_for_a_stop_text_decodes_each_token_a_few_times(
  tmp_path, monkeypatch
):
  model = subwords(tmp_path, **{"model.tie_weights": False})
  counts = []
  decode = vocabulary_lib.SubwordVocabulary.decode
  monkeypatch.setattr(
    vocabulary_lib.SubwordVocabulary,
    "decode",
    lambda self, ids: counts.append(len(ids)) or decode(self, ids),
  )
  totals = []
  for num_tokens in (40, 160):
    counts.clear()
    config = models.options(num_tokens=num_tokens, stop="no such text", top_k=1)
    list(generate.generate(model, "the cat", config, seed=1))
    totals.append(sum(counts))
  assert totals[1] < 6 * totals[0]  # It would be 16 times if all were decoded.
