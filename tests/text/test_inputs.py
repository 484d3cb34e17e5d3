"""Files of texts, and the streams of tokens that lanes read."""

import io
import sys
import types

import numpy as np
import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.data import vocabulary
from transformer_xl.text import inputs

BYTES = vocabulary.ByteVocabulary(corpus.SYMBOLS)


def test_a_line_is_a_text_and_empty_ones_are_too():
  parsed = inputs.parse("ab\n\nc d\n", memory="carry")
  assert parsed == [inputs.Text(text, "carry") for text in ("ab", "", "c d")]
  assert inputs.parse("ab\n\n", memory="fresh")[1:] == [
    inputs.Text("", "fresh")
  ]


def test_objects_name_texts_with_newlines_and_their_memory():
  content = (
    '{"text": "a\\nb", "id": 3, "context": 4, "texts": 5}\n'
    '{"text": "c", "memory": "carry"}\n'
  )
  assert inputs.parse(content, memory="fresh") == [
    inputs.Text("a\nb", "fresh"),
    inputs.Text("c", "carry"),
  ]


def test_files_of_windows_have_the_same_texts(tmp_path):
  path = tmp_path / "file"
  for lines, texts in (
    (["ab", "", "c d"], ["ab", "", "c d"]),
    (["", ' {"text": "a\\nb"}', "", '{"text": "c"}'], ["a\nb", "c"]),
  ):
    for start in (b"", b"\xef\xbb\xbf"):
      for end in ("\n", "\r\n"):
        path.write_bytes(start + "".join(line + end for line in lines).encode())
        content = inputs.read_file(str(path), field="score.file")
        parsed = inputs.parse(content, memory="fresh")
        assert [entry.text for entry in parsed] == texts


def test_a_file_that_is_json_by_its_name_has_no_other_lines():
  with pytest.raises(errors.UserError, match="line 1 must be"):
    inputs.parse('ab\n{"text": "c"}\n', memory="fresh", is_json=True)
  with pytest.raises(errors.UserError, match="the file is empty"):
    inputs.parse("\n", memory="fresh", is_json=True)


@pytest.mark.parametrize(
  ("content", "says"),
  [
    ("", "no texts to score"),
    ('{"text": "a"}\nb\n', 'line 2 must be {"text"'),
    ('{"text": 3}', "line 1"),
    ('{"words": "a"}', "line 1"),
    ('{"text": "a", "memory": "none"}', "line 1"),
    ('{"text": "a", "memory": []}', "line 1"),
    ('{"text": "a", "memry": "carry"}', "line 1 .*; did you mean memory"),
    ('{"text": "a", "Memory": "carry"}', "line 1 .*; did you mean memory"),
  ],
)
def test_an_invalid_text_is_named_by_its_line(content, says):
  with pytest.raises(errors.UserError, match=says) as caught:
    inputs.parse(content, memory="fresh")
  assert "\n" not in str(caught.value)


def test_a_fresh_text_starts_a_stream_that_others_carry_on():
  entries = [("ab", "carry"), ("", "carry"), ("c", "fresh"), ("a", "carry")]
  entries = [inputs.Text(*entry) for entry in entries]
  first, second = inputs.streams(entries, BYTES, prefix="\n")
  assert BYTES.decode(first.tokens) == "\nab\n"
  assert first.texts == {0: slice(1, 3), 1: slice(4, 4)}
  assert BYTES.decode(second.tokens) == "\nc\na"
  assert second.texts == {2: slice(1, 2), 3: slice(3, 4)}
  with pytest.raises(errors.UserError, match="text 2: the byte 0x5a"):
    inputs.streams([entries[0], inputs.Text("Z", "fresh")], BYTES, prefix="")
  what_helps = r"score.prefix: the byte 0x5a.* set --config.score.prefix to"
  with pytest.raises(errors.UserError, match=what_helps):
    inputs.streams(entries, BYTES, prefix="Z")
  words = vocabulary.WordVocabulary(("a", "b"), False, None, None)
  with pytest.raises(errors.UserError, match="has no tokens in this vocabula"):
    inputs.streams([inputs.Text("a", "fresh")], words, prefix="\n")


def test_files_are_utf_8(tmp_path, monkeypatch):
  path = tmp_path / "file"
  path.write_bytes("\u00e4\r\n".encode())
  assert inputs.read_file(str(path), field="score.file") == "\u00e4\r\n"
  path.write_bytes(b"abc\xff")
  with pytest.raises(errors.UserError, match="not UTF-8 at byte 3"):
    inputs.read_file(str(path), field="score.file")
  with pytest.raises(errors.UserError, match=r"--config\.score\.file=FILE"):
    inputs.read_file(str(tmp_path), field="score.file")
  stdin = types.SimpleNamespace(buffer=io.BytesIO(b"from a pipe"))
  monkeypatch.setattr(sys, "stdin", stdin)
  assert inputs.read_file("-", field="score.file") == "from a pipe"
  assert np.all(BYTES.encode("") == [])
