"""Datasets of the Hub, from a local server that speaks its protocol."""

import gzip
import json
import subprocess
import sys

import pytest

from tests.data_prep import layouts
from tests.data_prep import test_tables
from tests.importers import hub

MAIN, OLD = hub.COMMITS["main"], hub.COMMITS["v1"]
CARD = """---
license: mit
configs:
- config_name: small
  data_files:
  - split: train
    path: small/train-*
  - split: validation
    path:
    - "**/held_out.jsonl"
  - split: unsupervised
    path: small/other.jsonl
- config_name: lists
  data_files: "*.csv"
  default: true
- config_name: by_folder
  data_dir: folder
---
# A card, which is no text
"""
NO_DEFAULT = CARD.replace("  default: true\n", "")
CASES = {
  "default": "prepare default hf://datasets/me/data",
  "small": "prepare small hf://datasets/me/data/small",
  "folder": "prepare folder hf://datasets/me/data/by_folder",
  "tag": "prepare tag hf://datasets/me/data@v1/small",
  "pattern": "prepare pattern hf://datasets/me/data/small/train-*",
  "converted": "prepare converted "
  "hf://datasets/me/program@refs/convert/parquet/default",
  "mixed": "prepare mixed hf://datasets/me/data/small:1,hf://datasets/me/bare:3",
  "unweighted": "prepare x hf://datasets/me/data,hf://datasets/me/bare",
  "no card": "prepare bare hf://datasets/me/bare",
  "again": "prepare bare hf://datasets/me/bare",
  "no default": "prepare x hf://datasets/me/no_default",
  "no text": "prepare x hf://datasets/me/program",
  "no files": "prepare x hf://datasets/me/data/elsewhere",
  "damaged": "prepare x hf://datasets/me/damaged",
  "other splits": "prepare x hf://datasets/me/other_splits/small",
  "no path": "prepare x hf://datasets/me/no_path/small",
  "missing": "prepare x hf://datasets/me/none",
  "no name": "prepare x hf://datasets/squad",
  "overlap": "prepare overlap hf://datasets/me/overlap/small",
  "stop": "offline",
  "cached": "prepare cached hf://datasets/me/data",
}


def jsonl(*texts):
  return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def files(card):
  """A dataset with every format, most of which no configuration names."""
  return {
    "README.md": card.encode(),
    "data.py": b"raise SystemExit",
    "small/train-00000-of-00002.jsonl": jsonl("eins"),
    "small/train-00001-of-00002.jsonl.gz": gzip.compress(jsonl("zwei")),
    "small/other.jsonl": jsonl("never read"),
    "held_out.jsonl": jsonl("held out"),
    "small/lists.csv": b"text\nnever read\n",
    "lists.csv": b'id,text\r\n1,"a, ""b""\nc"\r\n2,d\r\n',
    "folder/train.txt": b"plain",
    "folder/test.txt": b"plain test",
  }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
  """The folder of prepared datasets, and the result of each case."""
  folder = tmp_path_factory.mktemp("hub") / "me"
  cards = {
    "data": CARD,
    "no_default": NO_DEFAULT,
    "overlap": CARD.replace("small/train-*", '"**/*.jsonl*"'),
    "no_path": CARD.replace("    path: small/train-*\n", ""),
  }
  for name, card in cards.items():
    layouts.write_files(folder / name / "main", files(card))
  tagged = files(CARD) | {"small/train-00000-of-00002.jsonl": jsonl("old")}
  layouts.write_files(folder / "data/v1", tagged)
  layouts.write_files(folder / "program/main", {"x.py": b"x", "README.md": b""})
  damaged = {"README.md": b"---\nconfigs: [\n---\n", "a.txt": b"x"}
  layouts.write_files(folder / "damaged/main", damaged)
  pool = CARD.replace("split: train", "split: pool")
  pool = pool.replace("split: validation", "split: rest")
  layouts.write_files(folder / "other_splits/main", files(pool))
  converted = folder / "program/refs/convert/parquet/default/train/0000.parquet"
  test_tables.write_parquet(converted, ["made by", "a program"])
  for split in ("train", "validation"):
    path = folder / f"bare/main/data/{split}-00000-of-00001.parquet"
    test_tables.write_parquet(path, [f"{split} 1", f"{split} 2"])
  (folder / "bare/main/README.md").write_text("No metadata")
  cache = tmp_path_factory.mktemp("cache")
  finished = subprocess.run(
    [sys.executable, "-m", "tests.importers.hub", str(folder.parent), cache],
    input=json.dumps([*CASES.values()]),
    capture_output=True,
    text=True,
    check=False,
  )
  assert finished.returncode == 0, finished.stderr
  results = json.loads(finished.stdout)
  return cache, dict(zip(CASES, results, strict=True))


@pytest.mark.rest
def test_a_configuration_brings_its_splits(served):
  cache, _ = served
  assert layouts.everything(cache / "small") == {
    "train": b"eins\nzwei",
    "valid": b"held out",
  }


def test_held_out_text_is_not_trained_on_where_patterns_overlap(served):
  cache, _ = served
  assert layouts.everything(cache / "overlap") == {
    "train": b"never read\neins\nzwei",
    "valid": b"held out",
  }


def test_a_configuration_may_be_the_default_or_a_folder(served):
  cache, _ = served
  text = layouts.everything(cache / "default")
  assert text == {"train": b'a, "b"\nc\nd'}
  assert layouts.everything(cache / "folder") == {
    "train": b"plain",
    "test": b"plain test",
  }


def test_a_pattern_names_files(served):
  cache, _ = served
  text = layouts.everything(cache / "pattern")
  assert text == {"train": b"eins\nzwei"}


def test_without_configurations_names_of_files_tell_the_splits(served):
  cache, _ = served
  assert layouts.everything(cache / "bare") == {
    "train": b"train 1\ntrain 2",
    "valid": b"validation 1\nvalidation 2",
  }


def test_the_hubs_own_conversion_is_a_revision(served):
  cache, _ = served
  folder = cache / "converted"
  assert layouts.everything(folder) == {"train": b"made by\na program"}
  revision = layouts.meta(folder)["source"]["revision"]
  assert revision == f"hf://datasets/me/program@{'c' * 40}/default"


def test_the_commit_is_in_meta(served):
  cache, _ = served
  assert layouts.meta(cache / "small")["source"] == {
    "path": "hf://datasets/me/data/small",
    "revision": f"hf://datasets/me/data@{MAIN}/small",
  }
  revision = layouts.meta(cache / "tag")["source"]["revision"]
  assert revision == f"hf://datasets/me/data@{OLD}/small"
  assert layouts.everything(cache / "tag")["train"] == b"old\nzwei"


def test_datasets_are_mixed_by_weight(served):
  cache, _ = served
  meta = layouts.meta(cache / "mixed")
  assert [one["revision"] for one in meta["source"]["sources"]] == [
    f"hf://datasets/me/data@{MAIN}/small",
    f"hf://datasets/me/bare@{MAIN}",
  ]
  assert [one["weight"] for one in meta["mixture"]] == [0.25, 0.75]


def test_only_what_is_needed_comes(served):
  _, results = served
  asked = [one for one in results["default"]["asked"] if "/resolve/" in one]
  assert {one.split("/")[-1] for one in asked} == {"README.md", "lists.csv"}


def test_the_same_command_reads_nothing_again(served):
  _, results = served
  assert not [one for one in results["again"]["asked"] if "/resolve/" in one]


def test_without_network_the_cache_answers(served):
  cache, results = served
  assert results["cached"] == {"asked": []}
  text = layouts.everything(cache / "cached")
  assert text == layouts.everything(cache / "default")


@pytest.mark.parametrize(
  ("case", "says"),
  [
    ("no default", "configurations small, lists, by_folder; name one, as in"),
    ("no text", "hf://datasets/me/program has no files of text"),
    ("no files", "has no files of text in elsewhere/**/*.txt"),
    ("damaged", "has damaged metadata"),
    ("other splits", "splits pool, rest, unsupervised, and none is called"),
    ("no path", "names no files for its split train; name them"),
    ("missing", "hf://datasets/me/none does not exist or is private"),
    ("unweighted", "names several sources; give each its share"),
    ("no name", "not a dataset of the Hub; write hf://datasets/OWNER/NAME"),
  ],
)
def test_a_failure_is_one_line(served, case, says):
  assert says in served[1][case]["error"]
  assert "\n" not in served[1][case]["error"]
