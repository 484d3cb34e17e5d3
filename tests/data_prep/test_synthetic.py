"""Synthetic tasks: every answer is right, at a distance that was asked for."""

import collections
import hashlib
import itertools
import math
import re
from typing import ClassVar

import numpy as np
import pytest

from tests.data_prep import layouts
from tests.data_prep import solvers
from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data import token_file
from transformer_xl.data_prep.synthetic import passkey
from transformer_xl.data_prep.synthetic import task

NUM_TOKENS = 20_000
OPTIONS = {
  "compression": {"max_distance": 40},
  "copy": {"num_symbols": 5, "max_distance": 40},
  "excerpt": {"max_distance": 40},
  "fuzzy_recall": {"max_distance": 40},
  "listops": {"max_distance": 40},
  "memorization": {"num_questions": 2, "max_distance": 40},
  "mqar": {"num_pairs": 4, "max_distance": 40},
  "noisy_recall": {"max_distance": 40},
  "overwrite": {"num_keys": 5, "max_distance": 40},
  "parity": {"max_distance": 40},
  "passkey": {"num_digits": 3, "max_distance": 40},
  "permutation": {"max_distance": 40},
  "recall": {"num_keys": 5, "max_distance": 40},
  "selective_copying": {"num_symbols": 5, "max_distance": 40},
  "stories": {"max_distance": 40},
}
# `compression` has as many answers as the distance is long, and a story has at
# least a sentence before its question.
LONG_MEDIANS = {"compression": 22, "stories": 22}
TASKS = pytest.mark.parametrize("name", [*registry.tasks])


def prepare(task, tmp_path, source=None, **options):
  options = {"num_tokens": NUM_TOKENS} | OPTIONS[task] | options
  return layouts.prepare(task, tmp_path, source, **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  folder = tmp_path_factory.mktemp("synthetic")
  return {name: prepare(name, folder) for name in registry.tasks}


@TASKS
@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_a_brute_force_solver_finds_every_answer(folders, name, split):
  words, starts = layouts.read(folders[name], split)
  found = []
  for start, stop in zip(starts, [*starts[1:], len(words) - 1], strict=True):
    # A document begins at the end of the one before, and ends before its own.
    first = start + (words[start] == "<eos>")
    document = words[first:stop]
    assert "<eos>" not in document
    for index, word, distance in solvers.SOLVERS[name](document):
      assert document[index] == word
      found.append((first + index, distance))
  answers = token_file.open_split(str(folders[name]), split).answers
  marked = zip(*map(np.ndarray.tolist, answers), strict=True)
  assert [*marked] == found
  assert layouts.meta(folders[name])["splits"][split]["num_answers"] == len(
    found
  )


@TASKS
def test_splits_are_as_long_as_asked_for_and_reach_the_distance(folders, name):
  for split, length in (("train", NUM_TOKENS), ("test", NUM_TOKENS // 10)):
    file = token_file.open_split(str(folders[name]), split)
    # Less than a document of at most 2 * (40 + 5) words is missing.
    assert length - 90 < len(file.tokens) <= length + 1
    assert file.answers.distances.max() <= 40
  train = token_file.open_split(str(folders[name]), "train").answers
  assert train.distances.max() >= 38
  # Half are in the lower half of the logarithms, or below: short ones are
  # frequent, so that all are learned.
  assert np.median(train.distances) <= LONG_MEDIANS.get(name, 20)


@TASKS
def test_a_test_split_of_longer_texts_leaves_the_others_alone(
  folders, tmp_path, name
):
  longer = {"num_tokens": NUM_TOKENS, "test_max_distance": 160}
  folder = prepare(name, tmp_path, **longer)
  near, far = (layouts.everything(each) for each in (folders[name], folder))
  assert near["train"] == far["train"]
  assert near["valid"] == far["valid"]
  answers = token_file.open_split(str(folder), "test").answers
  assert 80 < answers.distances.max() <= 160
  assert layouts.meta(folder)["splits"]["test"]["num_unknown"] == 0


@TASKS
def test_a_text_depends_on_its_seed_and_split_alone(folders, tmp_path, name):
  first = layouts.everything(folders[name])
  other = layouts.everything(prepare(name, tmp_path, name="other", seed=1))
  texts = {text[:500] for run in (first, other) for text in run.values()}
  assert len(texts) == 6
  # The text of a seed is the same everywhere and in later versions, where it
  # is not cut from a text that comes with Python.
  if registry.tasks[name].has_prose:
    assert layouts.everything(prepare(name, tmp_path, name="again")) == first
  else:
    whole = b"".join(first[split] for split in ("train", "valid", "test"))
    digest = hashlib.sha256(whole).hexdigest()
    assert digest.startswith(DIGESTS[name])


DIGESTS = {
  "compression": "fe49600d24de",
  "copy": "125ac1dcb979",
  "fuzzy_recall": "fbbcc195d078",
  "listops": "f009a515515b",
  "memorization": "93316b9209f4",
  "mqar": "31327f9233e5",
  "noisy_recall": "24f2b687f376",
  "overwrite": "54ed460fb8d3",
  "parity": "5f68a27ac572",
  "permutation": "6ff5eb564107",
  "recall": "2a08c203d33e",
  "selective_copying": "0757eebd62c8",
  "stories": "e12e082e07ef",
}


def test_distances_of_recall_have_a_uniform_logarithm(folders):
  file = token_file.open_split(str(folders["recall"]), "train")
  distances = file.answers.distances
  assert (distances.min(), distances.max()) == (4, 40)
  # From 4 to 40 after rounding: half of them are below 12.65.
  near = np.mean(distances <= 12)
  deviation = (0.25 / len(distances)) ** 0.5
  assert abs(near - 0.5) < 5 * deviation


def test_recall_asks_once_and_overwrite_never_for_the_first_value(folders):
  def pairs_before_each_query(name):
    words, _ = layouts.read(folders[name], "test")
    counts = {}
    for word in words:
      if word.startswith("?"):
        yield counts.pop(word[1])
      elif "=" in word:
        counts[word[0]] = counts.get(word[0], 0) + 1

  assert {*pairs_before_each_query("recall")} == {1}
  assert {*pairs_before_each_query("overwrite")} == {2}


def documents_of_four_pairs(folder):
  """With their filler, they are 42 words long."""
  words, starts = layouts.read(folder, "train")
  stops = [*starts[1:], len(words) - 1]
  for start, stop in zip(starts, stops, strict=True):
    document = words[start + 1 : stop]
    if len(document) == 42:
      yield document


def test_documents_of_mqar_have_from_one_pair_to_as_many_as_asked_for(folders):
  words, starts = layouts.read(folders["mqar"], "train")
  lengths = np.diff([*starts, len(words) - 1]) - 1
  # As many slots for queries as fit into a quarter of the distance a pair.
  assert {*lengths.tolist()} == {12, 22, 32, 42}
  shares = [np.mean(lengths == length) for length in (12, 22, 32, 42)]
  assert np.allclose(shares, 0.25, atol=0.1)


def test_gaps_of_mqar_have_a_power_law(folders):
  counts = np.zeros(17)
  for document in documents_of_four_pairs(folders["mqar"]):
    counts += [document[8 + 2 * slot] != "." for slot in range(17)]
  # Four queries take places without going back, which flattens the law; the
  # first place is still the most frequent, and the last third the rarest.
  assert counts[0] == counts.max() > 3 * counts[-5:].mean()


def test_late_answers_of_mqar_can_be_told_by_elimination(folders):
  """The page on memories says so: the value that nobody asked for is left."""
  right: dict[bool, list[float]] = {False: [], True: []}
  for document in documents_of_four_pairs(folders["mqar"]):
    left = {document[i]: document[i + 1] for i in range(0, 8, 2)}
    for key, value in zip(document[8::2], document[9::2], strict=True):
      if key != ".":
        values = [*left.values()]
        share = values.count(value) / len(values)
        right[len(left) == 1].append(share)
        del left[key]
  # Three guesses among four, three and two values; equal values happen.
  assert 0.36 < np.mean(right[False]) < 0.45
  assert np.mean(right[True]) == 1


def test_mqar_at_the_scale_of_its_paper(tmp_path):
  """Vocabulary, numbers of pairs and lengths are those of its docstring."""
  options = {"num_words": 512, "random_filler": 1, "min_pairs": 4}
  options |= {"num_pairs": 16, "max_distance": 126, "num_tokens": 60_000}
  longer = {"test_num_pairs": 64, "test_max_distance": 510}
  folder = prepare("mqar", tmp_path, **options, **longer)
  # With the end of a document, and no filler.
  assert layouts.meta(folder)["vocabulary"]["size"] == 2 * 512 + 1
  longest = {}
  for split in ("train", "test"):
    words, starts = layouts.read(folder, split)
    counts = set()
    lengths = set()
    answers = token_file.open_split(str(folder), split).answers
    for start, stop in zip(starts, [*starts[1:], len(words) - 1], strict=True):
      document = words[start + 1 : stop]
      inside = (answers.positions > start) & (answers.positions < stop)
      for place in answers.positions[inside] - start - 1:
        first = document.index(document[place - 1])
        assert document[first + 1] == document[place]
      counts.add(inside.sum())
      lengths.add(len(document))
    assert min(counts) >= 4
    longest[split] = max(counts), max(lengths)
  assert longest["train"] == (16, 128)
  assert longest["test"][0] > 48
  assert 384 < longest["test"][1] <= 512


def test_keys_of_fuzzy_recall_are_long_where_nothing_is_learned(folders):
  lengths = {}
  for split in ("train", "valid", "test"):
    words, _ = layouts.read(folders["fuzzy_recall"], split)
    keys = re.findall(r"(?:k\d )+", " ".join(words))
    lengths[split] = {len(key.split()) for key in keys}
  assert lengths == {"train": {1, 2, 3}, "valid": {3}, "test": {3}}


def test_a_fifth_of_the_pairs_of_noisy_recall_are_noise(folders):
  words, _ = layouts.read(folders["noisy_recall"], "train")
  counts = collections.Counter(word[0] for word in words)
  assert counts["k"] == counts["v"]
  pairs = counts["k"] + counts["n"] // 2
  deviation = (0.2 * 0.8 / pairs) ** 0.5
  assert abs(counts["n"] / 2 / pairs - 0.2) < 5 * deviation


def test_stories_ask_all_kinds_of_questions_or_those_that_are_named(tmp_path):
  def asked(kinds):
    options = {"kinds": kinds, "max_distance": 96, "name": str(kinds)}
    folder = prepare("stories", tmp_path, **options)
    text = " ".join(layouts.read(folder, "train")[0])
    patterns = ("where is \\w+ \\?", "where is the", "where was the")
    return [len(re.findall(pattern, text)) for pattern in patterns]

  first, second, third = asked(1)
  assert (first > 200, second, third) == (True, 0, 0)
  first, second, third = asked(2)
  assert (first > 100, second > 100, third) == (True, True, 0)
  # A story of fewer than three facts cannot have the third kind.
  assert all(count > 80 for count in asked(3))


def test_a_passkey_hides_in_the_frequent_words_of_a_text(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  source = tmp_path / "text.txt"
  prose = [f"Word{chr(97 + index % 5)}, 12" for index in range(1000)]
  source.write_text("\n".join(prose))
  folder = prepare("passkey", tmp_path, "~/text.txt", name="own")
  words, starts = layouts.read(folder, "train")
  # Only the letters of the text are taken; all of its words are frequent.
  assert {*words} == {
    *(f"word{letter}" for letter in "abcde"),
    *("the", "pass", "key", "is", "<eos>"),
    *map(str, range(10)),
  }
  before = [words[start + 1 :].index("the") for start in starts]
  assert (min(before), max(before)) == (0, 16)
  rare = "".join(chr(97 + i // 26) + chr(97 + i % 26) + " " for i in range(300))
  source.write_text(rare * 3 + "often " * 500)
  folder = prepare("passkey", tmp_path, str(source), name="rare")
  words, _ = layouts.read(folder, "train")
  assert "often" in words
  assert "." in words
  # 200 of the text, the marker, ten digits, the filler and the end of a line.
  assert len({*words}) == 200 + 4 + 10 + 2


def test_no_split_has_words_of_an_excerpt_of_another(tmp_path):
  """Each word of the text is another, so a passage shows where it is from."""
  source = tmp_path / "text.txt"
  letters = "abcdefghijklmnopqrst"
  text = [a + b + c for a in letters for b in letters for c in letters[:10]]
  source.write_text(" ".join(text))
  # The first 1,000 of the 4,000 words are kept, all are equally frequent.
  size = {"num_tokens": 4000, "max_distance": 40, "name": "own"}
  folder = prepare("excerpt", tmp_path, str(source), **size)
  found = {}
  for split in ("train", "valid", "test"):
    words, _ = layouts.read(folder, split)
    found[split] = {*words} & {*text}
    assert found[split]
  assert not found["train"] & (found["valid"] | found["test"])
  assert not found["valid"] & found["test"]


def test_a_text_that_repeats_itself_has_no_excerpts(tmp_path):
  source = tmp_path / "text.txt"
  source.write_text("one two three four five six seven eight " * 2000)
  with pytest.raises(errors.UserError, match="says everything several times"):
    prepare("excerpt", tmp_path, str(source), max_distance=40)


def test_a_passkey_needs_as_many_words_as_its_distance(tmp_path):
  source = tmp_path / "text.txt"
  source.write_text("word " * 1000)
  size = {"num_tokens": 200_000, "max_distance": 1001}
  message = "1000 words, fewer than --max_distance=1001"
  with pytest.raises(errors.UserError, match=message):
    prepare("passkey", tmp_path, str(source), **size)


@pytest.mark.parametrize(
  ("given", "most"), [({}, 16), ({"max_before": 90}, 90)]
)
def test_a_passkey_may_hide_deep_in_its_document(tmp_path, given, most):
  folder = prepare("passkey", tmp_path, **given)
  words, starts = layouts.read(folder, "train")
  before = []
  for start, stop in itertools.pairwise(starts):
    text = " ".join(words[start:stop]).removeprefix("<eos> ")
    prose, _, _ = text.partition(" ".join(passkey.MARKER))
    before.append(len(prose.split()))
  assert max(before) == most
  # Uniform: a mean of a half, up to six standard errors.
  error = most / math.sqrt(12 * len(before))
  assert np.mean(before) == pytest.approx(most / 2, abs=6 * error)


def test_a_passkey_needs_as_many_words_as_are_before_it(tmp_path):
  source = tmp_path / "text.txt"
  source.write_text("a b c d e f g h i j " * 200)
  with pytest.raises(errors.UserError, match="00 words, fewer than --max_bef"):
    prepare("passkey", tmp_path, str(source), max_before=5000)


def test_the_request_is_in_meta_json(folders):
  meta = layouts.meta(folders["recall"])
  asked = {**OPTIONS["recall"], "seed": 0, "num_tokens": NUM_TOKENS}
  assert asked.items() <= meta["source"].items()
  # Pairs, queries and values; filler and the end of the text.
  assert meta["vocabulary"]["size"] == 5 * 10 + 5 + 10 + 2


@pytest.mark.parametrize(
  ("name", "options", "text"),
  [
    ("recall", {"seed": -1}, "--seed=-1 must be between 0 and 4294967295"),
    ("copy", {"num_tokens": 10}, "--num_tokens=10 must be between 1000"),
    ("recall", {"num_keys": 27}, "--num_keys=27 must be between 1 and 26"),
    (
      "recall",
      {"max_distance": 3},
      "--max_distance=3 must be between 4 and 20",
    ),
    ("mqar", {"num_pairs": 12}, "--max_distance=40 leaves no room .* least 46"),
    ("mqar", {"min_pairs": 5}, "=5, --num_pairs=4 and --num_words=16 must not"),
    (
      "mqar",
      {"num_pairs": 17},
      "=17 and --num_words=16 must not become smaller",
    ),
    (
      "mqar",
      {"test_num_pairs": 12},
      "in the test split, --max_distance=40 leaves no room .* least 46",
    ),
    (
      "mqar",
      {"test_max_distance": 201},
      "--test_max_distance=201 must be between 2 and 200",
    ),
    ("parity", {"test_num_keys": 2}, "--test_num_keys is for --dataset=overwr"),
    (
      "fuzzy_recall",
      {"max_distance": 5},
      "=5 leaves no room .*3; .* least 6",
    ),
    (
      "selective_copying",
      {"num_symbols": 40},
      "--max_distance=40 must be above --num_symb",
    ),
    ("passkey", {"num_digits": 40}, "=40 leaves no room for .* at least 44"),
    ("passkey", {"source": "/missing"}, "=/missing must be a text file in UTF"),
    ("copy", {"num_symbols": 40}, "--max_distance=40 must be above --num_symb"),
    ("parity", {"num_keys": 2}, "--num_keys is for --dataset=overwrite or rec"),
    ("parity", {"source": "a"}, "makes its text itself; leave --source out"),
    (
      "parity",
      {"tokenizer": "byte"},
      "words, not in .*; leave --tokenizer out",
    ),
    ("parity", {"max_size": 5}, "a task needs all of its words; leave --max_s"),
    ("recall", {"field": "text"}, "--field is for --dataset=text or tfds, not"),
  ],
)
def test_a_mistake_is_one_line(tmp_path, name, options, text):
  with pytest.raises(errors.UserError, match=text):
    prepare(name, tmp_path, **options)


def wrong_task(written):
  """A task whose only document is what `written` returns."""

  class Wrong(task.Task):
    options: ClassVar = {"max_distance": task.Option(4, 1, 9, "distance")}
    write = staticmethod(
      lambda num_tokens, generator, *, max_distance: written()
    )

  return Wrong


@pytest.mark.parametrize(
  ("words", "answers", "said"),
  [
    (["a", 3], [], "writes 3, which is no word"),
    (["a b"], [], "writes 'a b', which is no word"),
    (["a", "b"], [(2, 1)], "an answer at index 2 of a document of 2 words"),
    (["a", "b"], [(1, 0)], "at the distance 0, which must be at least 1"),
    (
      ["a", "b"],
      [(1, 5)],
      "at the distance 5, which must be at least 1 and",
    ),
  ],
)
def test_what_a_task_may_not_write_is_one_line(words, answers, said):
  wrong = wrong_task(lambda: [task.Document(words, answers)])
  corpus = task.open_corpus("wrong", wrong, path=None)
  with pytest.raises(errors.UserError, match=said):
    corpus.answers["train"]()


def test_a_task_that_fails_is_one_line_with_the_place():
  corpus = task.open_corpus("wrong", wrong_task(lambda: 1 // 0), path=None)
  said = "'wrong' cannot write its text: .*line .*ZeroDivisionError"
  with pytest.raises(errors.UserError, match=said):
    corpus.answers["train"]()
