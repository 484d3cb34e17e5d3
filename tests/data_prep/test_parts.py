"""The parts that every corpus goes through, each alone."""

import io
import pathlib
import tempfile

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import cutoffs
from transformer_xl.data_prep import describe
from transformer_xl.data_prep import encoding
from transformer_xl.data_prep import piece as piece_lib
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep.text import holdout

TEXT = st.text(st.sampled_from("a \n\u00fc\U0001f600"), max_size=80)


@hypothesis.given(TEXT, st.integers(1, 9), st.integers(9, 20))
def test_pieces_join_to_the_text_and_cut_no_character(text, block, longest):
  with pytest.MonkeyPatch.context() as patch:
    layouts.small_pieces(patch, block=block, longest=longest)
    cut = list(piece_lib.cut(io.BytesIO(text.encode()), origin="it"))
  assert "".join(piece.text() for piece in cut) == text
  assert [p.starts_document for p in cut] == [i == 0 for i in range(len(cut))]
  ends = np.cumsum([0] + [len(piece.data) for piece in cut])
  assert [piece.offset for piece in cut] == ends[:-1].tolist()


@hypothesis.given(st.binary(max_size=60), st.integers(1, 9))
def test_pieces_of_any_bytes_join_to_them(data, block):
  with pytest.MonkeyPatch.context() as patch:
    layouts.small_pieces(patch, block=block, longest=12)
    cut = list(piece_lib.cut(io.BytesIO(data), origin="it"))
  assert b"".join(piece.data for piece in cut) == data
  assert all(piece.data for piece in cut)


@hypothesis.given(
  st.binary(max_size=40), st.integers(0, 50), st.integers(0, 50)
)
def test_a_stretch_is_a_slice(data, start, length):
  text = piece_lib.cut(io.BytesIO(data), origin="it")
  cut = list(piece_lib.stretch(text, start, start + length))
  assert b"".join(p.data for p in cut) == data[start : start + length]
  assert all(p.data == data[p.offset : p.offset + len(p.data)] for p in cut)


def document(data, starts_document=True):
  return piece_lib.Piece(data, starts_document, "it", 0)


def test_documents_are_kept_apart_by_newlines():
  text = [
    document(b"a"),
    document(b"b\n"),
    document(b"c"),
    document(b"d", False),
  ]
  joined = [
    p.data for p in piece_lib.separated(iter(text), final_newline=False)
  ]
  assert joined == [b"a\n", b"b\n", b"c", b"d"]
  joined = [p.data for p in piece_lib.separated(iter(text), final_newline=True)]
  assert joined == [b"a\n", b"b\n", b"c", b"d\n"]
  assert list(piece_lib.documents(text)) == [b"a", b"b\n", b"cd"]


@hypothesis.given(
  st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=40),
  st.floats(0, 0.45),
  st.floats(0, 0.45),
)
def test_held_out_text_and_the_rest_are_the_whole_text(documents, valid, test):
  def text():
    return (document(data) for data in documents)

  splits = holdout.divide(text, valid_fraction=valid, test_fraction=test)
  parts = {s: [p.data for p in split()] for s, split in splits.items()}
  found = b"".join(data for part in parts.values() for data in part)
  assert sorted(found) == sorted(b"".join(documents))
  shares = {"train": 1, "valid": valid, "test": test}
  assert list(splits) == [s for s, share in shares.items() if share > 0]
  for split in splits.values():
    first = next(iter(split()), None)
    assert first is None or first.starts_document


@hypothesis.given(st.lists(st.integers(0, 2**16 - 1)), st.integers(0, 30))
def test_an_array_file_holds_what_was_appended(numbers, first):
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "a.npy"
    values = np.array(numbers, np.uint16)
    with encoding.ArrayFile(path, np.uint16) as file:
      file.append(values[:first])
      file.append(values[first:])
    loaded = np.load(path)
    counts = cutoffs.count(path, size=2**16)
  assert loaded.tolist() == numbers
  assert loaded.dtype == np.uint16
  assert counts.tolist() == np.bincount(values, minlength=2**16).tolist()


def zipf(size):
  return (1e9 / np.arange(1, size + 1)).astype(np.int64)


def test_the_head_of_suggested_cutoffs_covers_nine_tokens_in_ten():
  counts = zipf(50_000) ** 2 // 10**9
  cuts = cutoffs.suggest(counts)
  shares = cutoffs.coverage(counts, cuts)
  assert shares[0] >= 0.9
  assert cutoffs.coverage(counts, [cuts[0] - 128])[0] < 0.9


def test_suggested_cutoffs_need_fewer_multiplications_than_others():
  counts = zipf(500_000)
  cuts = cutoffs.suggest(counts)
  covered = np.concatenate([[0], np.cumsum(counts)]) / counts.sum()
  best = cutoffs._cost(covered, tuple(cuts))
  assert len(cuts) == 3
  assert cuts == sorted(set(cuts))
  assert cuts[-1] < len(counts)
  head = cuts[0]
  for tails in ((), (2 * head,), (head + 128, head + 256), (400_000, 450_000)):
    assert best < cutoffs._cost(covered, (head, *tails))
  # One softmax over all symbols is what they save.
  assert best < len(counts) / 2


def test_a_small_vocabulary_gets_no_cutoffs():
  assert cutoffs.suggest(zipf(10_000)) == []


def test_coverage_is_the_share_of_the_tokens_in_each_bin():
  counts = np.array([2, 1, 0, 1, 0])
  assert cutoffs.coverage(counts, [1, 3]) == [0.5, 0.25, 0.25]


def test_long_passes_show_their_progress(capsys, monkeypatch):
  monkeypatch.setattr(piece_lib, "_SECONDS_BEFORE_PROGRESS", 0.0)
  text = [document(b"x" * 50_000_000) for _ in range(4)]
  assert list(piece_lib.with_progress(text, "counting")) == text
  lines = capsys.readouterr().err.split("\r")
  assert len(lines) >= 2
  assert lines[-1].startswith("counting: 200MB [")
  assert "B/s" in lines[-1]


def test_short_passes_show_nothing(capsys):
  assert len(list(piece_lib.with_progress([document(b"x")], "counting"))) == 1
  assert capsys.readouterr().err == ""


def test_a_description_shows_counts_symbols_and_a_sample(tmp_path, capsys):
  path = tmp_path / "a.txt"
  path.write_text("the cat @-@ like dog , sat .\n" * 30)
  folder = preparation.prepare(
    dataset="text",
    data_dir=str(tmp_path),
    source=str(path),
    tokenizer="word",
    name="mine",
    **layouts.WHOLE,
  )
  shown = describe.describe(folder)
  assert "the cat @-@ like dog , sat .\n" in shown
  assert f"{30 * 9:,}" in shown
  assert "<eos>" in shown
  assert "no cutoffs are suggested" in shown
  with pytest.raises(errors.UserError, match="json is missing"):
    describe.describe(tmp_path / "nothing")


@pytest.fixture
def described(tmp_path):
  """Returns a maker of prepared datasets, by their text."""

  def make(text, **options):
    path = tmp_path / "a.txt"
    path.write_text(text, "utf-8")
    return layouts.prepare("text", tmp_path, path, **options, **layouts.WHOLE)

  return make


def flipped(data):
  return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
  ("name", "damage", "message"),
  [
    ("train.npy", lambda data: data[:100], "is truncated or not a token file"),
    ("train.npy", lambda data: data[:-1], "is truncated or not a token file"),
    ("train.npy", lambda data: b"", "is truncated or not a token file"),
    ("train.npy", flipped, "has the SHA-256"),
    ("meta.json", lambda data: b"[]", "is damaged"),
    ("meta.json", lambda data: b"[" * 100_000, "is damaged"),
    (
      "meta.json",
      lambda data: data.replace(b"suggested_", b"other_"),
      r"is damaged .*\(KeyError: 'suggested_cutoffs'\)",
    ),
    (
      "meta.json",
      lambda data: data.replace(b'_lines": ', b'_x": '),
      "num_lines",
    ),
    ("meta.json", lambda data: data.replace(b'"train"', b'"valid"'), "missing"),
  ],
)
def test_a_damaged_dataset_is_not_described(described, name, damage, message):
  folder = described("the cat sat\n" * 99)
  path = folder / name
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(errors.UserError, match=message) as raised:
    describe.describe(folder)
  assert "\n" not in str(raised.value)


def test_a_description_of_bytes_begins_with_the_most_frequent(described):
  lines = describe.describe(described("eeet eat\n" * 9)).splitlines()
  start = (
    lines.index("vocabulary: 256 symbols (id, symbol, count in train)") + 1
  )
  shown = [line.split()[1:] for line in lines[start : start + 5]]
  assert shown == [
    *(["e", "36"], ["t", "18"], [r"\x0a", "9"], [r"\x20", "9"], ["a", "9"]),
  ]
  assert lines[start + 5].startswith("adaptive softmax")


def test_a_description_sends_nothing_to_a_terminal_but_text(described):
  folder = described("tab\tred \x1b]0;owned\x07 \x9b31m caf\u00e9\n" * 9)
  shown = describe.describe(folder)
  assert "tab\tred \\x1b]0;owned\\x07 \\x9b31m caf\u00e9\n" in shown
  assert not {*shown} & {"\x1b", "\x07", "\x9b"}


def test_a_description_shows_the_coverage_of_each_bin(tmp_path):
  path = tmp_path / "a.txt"
  words = [f"w{i}" for i in range(30_000)]
  path.write_text(" ".join(words + words[:100] * 3000))
  folder = preparation.prepare(
    dataset="text",
    data_dir=str(tmp_path),
    source=str(path),
    tokenizer="word",
    **layouts.WHOLE,
  )
  shown = describe.describe(folder)
  assert "suggested cutoffs [" in shown
  assert shown.count("%") >= 2
