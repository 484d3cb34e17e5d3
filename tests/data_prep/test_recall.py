"""The recall task: every answer is right, at a distance that was asked for."""

import hashlib

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import recall
from transformer_xl.data import vocabulary

OPTIONS = {"num_tokens": 20_000, "num_keys": 5, "max_distance": 40}


def prepare(tmp_path, **options):
  return layouts.prepare("recall", tmp_path, None, **OPTIONS | options)


def read_slowly(words):
  """Places and distances of the queries, word by word.

  Fails unless every query is for a pair that nobody has asked for, and its
  answer is the pair's value.
  """
  values, places, answers = {}, {}, []
  rest = iter(enumerate(words))
  for place, word in rest:
    if word.startswith("?"):
      key = word[1:]
      assert next(rest)[1] == values.pop(key)
      answers.append((place, place - places[key]))
      places[key] = place
    elif word != ".":
      key, value = word.split("=")
      assert key not in values
      # Its older pair is farther than any query looks.
      assert place - places.get(key, -40) >= 40
      values[key], places[key] = value, place
  return answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return prepare(tmp_path_factory.mktemp("recall"))


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_queries_are_those_of_a_slow_reading(folder, split):
  *words, end = layouts.read(folder, split)[0]
  assert end == "<eos>"
  assert len(words) == OPTIONS["num_tokens"] // (1 if split == "train" else 10)
  vocab = vocabulary.load(str(folder))
  found = recall.queries(np.load(folder / f"{split}.npy"), vocab)
  pairs = [*zip(*map(np.ndarray.tolist, found), strict=True)]
  assert pairs == read_slowly(words)
  # Log-uniform from 4 to 40 after rounding: half of them are below 12.65.
  assert {min(found.distances), max(found.distances)} == {4, 40}
  near = np.mean(found.distances <= 12)
  assert abs(near - 0.5) < 5 * (0.25 / len(pairs)) ** 0.5  # Five deviations.


def test_a_text_depends_on_its_seed_and_split_alone(folder, tmp_path):
  first = layouts.everything(folder)
  assert layouts.everything(prepare(tmp_path, name="again")) == first
  other = layouts.everything(prepare(tmp_path, name="other", seed=1))
  texts = {text[:500] for run in (first, other) for text in run.values()}
  assert len(texts) == 6
  # The text of a seed is the same everywhere and in later versions.
  digest = hashlib.sha256(first["test"]).hexdigest()
  assert digest.startswith("acf5b72627cb")


def test_the_request_is_in_meta_json(folder):
  meta = layouts.meta(folder)
  assert {**OPTIONS, "seed": 0}.items() <= meta["source"].items()
  # Pairs, queries and values; filler and the end of the text.
  assert meta["vocabulary"]["size"] == 5 * 10 + 5 + 10 + 2


def test_a_query_needs_a_pair_before_it_and_an_answer_behind(folder):
  vocab = vocabulary.load(str(folder))
  tokens = vocab.encode("?b 4 a=1 a=2 . ?a 2 ?c 5 c=5 ?a")
  found = recall.queries(tokens, vocab)
  assert found.positions.tolist() == [5]
  assert found.distances.tolist() == [2]  # From the newer pair.


@pytest.mark.parametrize(
  ("options", "text"),
  [
    ({"seed": -1}, "--seed=-1 must be between 0 and 4294967295"),
    ({"num_tokens": 10}, "--num_tokens=10 must be between 1000"),
    ({"num_keys": 27}, "--num_keys=27 must be between 1 and 26"),
    ({"max_distance": 3}, "--max_distance=3 must be between 4 and 200"),
    ({"source": "a.txt"}, "makes its text itself; leave --source out"),
    ({"field": "text"}, "--field is for --dataset=text or tfds, not recall"),
  ],
)
def test_a_mistake_is_one_line(tmp_path, options, text):
  source = options.pop("source", None)
  with pytest.raises(errors.UserError, match=text):
    layouts.prepare("recall", tmp_path, source, **OPTIONS | options)
