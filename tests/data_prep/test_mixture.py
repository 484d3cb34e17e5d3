"""Several sources in one training text, by their shares of its tokens."""

import functools
import re

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data_prep import mixture

prepare = functools.partial(layouts.prepare, "text")


def greedy(lengths, weights):
  """Documents one by one, always of the source that is most behind."""
  counts = [0] * len(lengths)
  total = [sum(each) for each in lengths]
  longest = max(n / w for n, w in zip(total, weights, strict=True))
  order = []
  while True:
    behind = [sum_of(each, n) for each, n in zip(lengths, counts, strict=True)]
    ratios = [n / w for n, w in zip(behind, weights, strict=True)]
    source = ratios.index(min(ratios))
    if ratios[source] >= longest:
      return order
    order.append(source)
    counts[source] += 1


def sum_of(lengths, count):
  """Tokens of the first documents of a source that is read again and again."""
  return sum(lengths[i % len(lengths)] for i in range(count))


@pytest.mark.parametrize(
  "weights", [(0.5, 0.5), (0.7, 0.3), (0.2, 0.3, 0.5), (1.0,), (0.05, 0.95)]
)
def test_the_next_document_is_of_the_source_that_is_most_behind(weights):
  generator = np.random.default_rng(len(weights))
  lengths = [
    generator.integers(1, 40, size=generator.integers(3, 12)) for _ in weights
  ]
  order = mixture.schedule(lengths, weights)
  assert order.tolist() == greedy([e.tolist() for e in lengths], weights)
  assert len(order) >= sum(map(len, lengths))


def write(tmp_path):
  """Texts of words a and b in documents of unequal lengths; b has more."""
  for word, sizes in {"a": range(1, 30), "b": range(5, 120)}.items():
    lines = (f'{{"text": "{(word + " ") * size}"}}\n' for size in sizes)
    path = tmp_path / f"{word}.jsonl"
    path.write_text("".join(lines))
  return f"{tmp_path}/a.jsonl:3,{tmp_path}/b.jsonl:1"


def test_a_weight_is_the_share_of_training_tokens(tmp_path):
  folder = prepare(tmp_path, write(tmp_path), tokenizer="word")
  tokens, documents = layouts.read(folder, "train")
  is_a = np.array([tokens[start] == "a" for start in documents])
  sizes = np.diff([*documents, len(tokens)])
  before = np.cumsum(sizes)[:-1]
  shares = np.cumsum(sizes * is_a)[:-1] / before
  # Within the longest document, from wherever training starts and stops.
  assert (np.abs(shares - 0.75) * before <= sizes.max()).all()
  first, second = layouts.meta(folder)["mixture"]
  assert (first["weight"], second["weight"]) == (0.75, 0.25)
  assert first["num_tokens"] == (sizes * is_a).sum()
  assert first["num_tokens"] + second["num_tokens"] == len(tokens)
  assert second["passes"] == 1  # It has more than its share, and all is read.
  assert first["passes"] > 10


def test_no_held_out_text_is_trained_on(tmp_path):
  for word, count in {"a": 100, "b": 900}.items():
    lines = (f'{{"text": "{word} {i}"}}\n' for i in range(count))
    (tmp_path / f"{word}.jsonl").write_text("".join(lines))
  source = f"{tmp_path}/a.jsonl:1,{tmp_path}/b.jsonl:1"
  folder = prepare(tmp_path, source, valid_fraction=0.2)
  text = layouts.everything(folder)
  parts = {split: {*one.splitlines()} for split, one in text.items()}
  assert not parts["train"] & (parts["valid"] | parts["test"])
  assert len(set().union(*parts.values())) == 1000
  assert {line[:1] for line in parts["valid"]} == {b"a", b"b"}
  num_documents = layouts.meta(folder)["splits"]["train"]["num_documents"]
  assert num_documents == text["train"].count(b"\n") > len(parts["train"])


def test_a_file_of_two_sources_is_refused(tmp_path):
  """Each source holds documents out for itself, and the other has them."""
  write(tmp_path)
  (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.jsonl")
  for name in ("*.jsonl", "link.jsonl", "a.jsonl"):
    other = f"{tmp_path}/{name}"
    source = f"{tmp_path}/a.jsonl:1,{other}:1"
    with pytest.raises(errors.UserError, match=r"both have .*\.jsonl, so text"):
      prepare(tmp_path, source)


def test_newlines_between_documents_are_in_the_vocabulary(tmp_path):
  """A mixture puts them there, also where no text has one."""
  for name in ("a", "b"):
    (tmp_path / f"{name}.txt").write_text(name * 500)
  source = f"{tmp_path}/a.txt:1,{tmp_path}/b.txt:1"
  folder = prepare(
    tmp_path, source, tokenizer="character", valid_fraction=0, test_fraction=0
  )
  text = layouts.everything(folder)["train"]
  assert {*text.decode()} == {"a", "b", "\n"}


def test_the_same_command_makes_the_same_text(tmp_path):
  source = write(tmp_path)
  first = prepare(tmp_path, source, tokenizer="subword", max_size=258)
  again = prepare(
    tmp_path, source, tokenizer="subword", max_size=258, name="again"
  )
  names = ("train.npy", "train_documents.npy", "valid.npy")
  for name in names:
    assert (first / name).read_bytes() == (again / name).read_bytes()
  sizes = layouts.meta(first)["splits"]["train"]
  assert sizes["num_bytes"] == len(layouts.everything(first)["train"])


@pytest.mark.parametrize(
  ("source", "says"),
  [
    ("A:0.5,B", "B needs a weight above 0"),
    ("A:0.5,B:0", "B:0 needs a weight above 0"),
    ("A:0.5,", "an empty part needs a weight"),
    ("A:1,none.txt:1", "none.txt does not exist"),
    ("A:1,B:0.0001", "it would be read more than 100 times"),
    ("A:1,empty.txt:1", "empty.txt has no training text"),
  ],
)
def test_wrong_weights_are_refused(tmp_path, source, says):
  write(tmp_path)
  (tmp_path / "empty.txt").write_text("")
  paths = {name: f"{tmp_path}/{name.lower()}.jsonl" for name in "AB"}
  paths["empty.txt"] = f"{tmp_path}/empty.txt"
  source = re.sub(r"A|B|empty\.txt", lambda found: paths[found[0]], source)
  with pytest.raises(errors.UserError, match=says.replace("B", r"b\.jsonl")):
    prepare(tmp_path, source)
  assert layouts.remains(tmp_path) == []


def test_a_file_whose_name_ends_like_a_weight_is_a_file(tmp_path):
  path = tmp_path / "notes.txt:2"
  path.write_text("one\ntwo\n")
  folder = prepare(tmp_path, str(path), **layouts.WHOLE)
  assert layouts.everything(folder) == {"train": b"one\ntwo\n"}
