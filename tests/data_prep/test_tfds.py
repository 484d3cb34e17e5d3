"""Datasets of TFDS, built here and read without TensorFlow."""

import functools
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.config import registry
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import preparation

tfds = pytest.importorskip("tensorflow_datasets")
tfds.disable_progress_bar()
prepare = functools.partial(layouts.prepare, "tfds")

TEXTS = {
  "train": ["first\n", "", "zw\u00f6lf", "third"],
  "validation": ["held out\n"],
  "unsupervised": ["never read\n"],
}


class TinyText(tfds.core.GeneratorBasedBuilder):
  """A dataset as others write them: two configurations, several fields."""

  VERSION = tfds.core.Version("2.0.0")
  BUILDER_CONFIGS = [  # noqa: RUF012
    tfds.core.BuilderConfig(name="plain"),
    tfds.core.BuilderConfig(name="train_only"),
  ]

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict(
        {
          "body": tfds.features.Text(),
          "text": tfds.features.Text(),
          "stars": tfds.features.Scalar(np.int64),
        }
      ),
      disable_shuffling=True,
    )

  def _split_generators(self, dl_manager):
    only = self.builder_config.name == "train_only"
    return {
      split: self._generate_examples(texts * (100 if only else 1))
      for split, texts in TEXTS.items()
      if split == "train" or not only
    }

  def _generate_examples(self, texts):
    for key, text in enumerate(texts):
      yield key, {"body": "another field", "text": text, "stars": 5}


def build(root, config="plain", file_format="array_record"):
  builder = TinyText(data_dir=str(root), config=config, file_format=file_format)
  builder.download_and_prepare(
    download_dir=str(root / "downloads"),
    download_config=tfds.download.DownloadConfig(try_download_gcs=False),
  )
  return builder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  """A prepared dataset, which tests leave as it is."""
  return build(tmp_path_factory.mktemp("elsewhere"))


def read(folder, split):
  vocab = vocabulary.load(str(folder))
  text = vocab.decode_bytes(np.load(folder / f"{split}.npy"))
  starts = np.load(folder / f"{split}_documents.npy").tolist()
  return text.decode(), starts


def test_a_dataset_that_lies_below_the_folder_is_found_by_its_name(tmp_path):
  build(tmp_path / "data" / "tensorflow_datasets")
  folder = prepare(tmp_path, "tiny_text/plain")
  assert read(folder, "train") == ("first\n\nzw\u00f6lf\nthird", [0, 6, 7, 14])
  assert read(folder, "valid") == ("held out\n", [0])
  meta = layouts.meta(folder)
  assert list(meta["splits"]) == ["train", "valid"]
  assert meta["source"]["dataset"] == "tiny_text/plain/2.0.0"


def test_the_folder_of_a_prepared_dataset_is_a_source(tmp_path, built):
  folder = prepare(tmp_path, str(built.data_dir), field="body")
  assert read(folder, "valid") == ("another field", [0])


def test_text_is_held_out_where_the_dataset_has_none(tmp_path):
  builder = build(tmp_path / "elsewhere", "train_only")
  folder = prepare(
    tmp_path,
    str(builder.data_dir),
    tokenizer="word",
    valid_fraction=0.2,
    test_fraction=0,
  )
  entries = layouts.meta(folder)["splits"]
  documents = {s: entry["num_documents"] for s, entry in entries.items()}
  assert set(documents) == {"train", "valid"}
  assert sum(documents.values()) == 400
  assert documents["valid"] == pytest.approx(80, abs=5)
  symbols, _ = layouts.read(folder, "train")
  assert set(symbols) == {"first", "zw\u00f6lf", "third", "<eos>"}


def test_what_our_own_builders_wrote_is_the_text_itself(tmp_path):
  from transformer_xl.data_prep.text import text_dataset_builder

  files = {f"{i:03d}.txt": b"document %03d\n" % i for i in range(120)}
  source = layouts.write_files(tmp_path / "manual", files)
  builder = text_dataset_builder.Builder(
    data_dir=str(tmp_path / "elsewhere"), file_format="array_record"
  )
  builder.download_and_prepare(
    download_config=tfds.download.DownloadConfig(
      manual_dir=str(source), try_download_gcs=False
    )
  )
  through = prepare(tmp_path, str(builder.data_dir))
  direct = preparation.prepare(
    dataset="text", data_dir=str(tmp_path / "data"), source=str(source)
  )
  for name in ("train.npy", "valid_documents.npy", "test.npy"):
    assert (through / name).read_bytes() == (direct / name).read_bytes()


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"source": None}, "needs the dataset: --source=NAME"),
    ({"source": "no_such_dataset"}, "TFDS has no dataset 'no_such_dataset'"),
    ({"source": "../text"}, "cannot be prepared or read here"),
    ({"field": "stars"}, "no text in the field 'stars', but in body, text"),
    ({"valid_source": "a.txt"}, "--valid_source is for --dataset=text, not"),
  ],
)
def test_what_does_not_fit_is_refused(tmp_path, built, options, message):
  with pytest.raises(errors.UserError, match=message) as raised:
    prepare(tmp_path, **({"source": str(built.data_dir)} | options))
  assert "\n" not in str(raised.value)
  assert not (tmp_path / "data" / "tfds" / "meta.json").exists()


def test_files_that_only_tensorflow_reads_are_refused(tmp_path, built):
  copy = shutil.copytree(built.data_path, tmp_path / built.data_path.name)
  path = copy / "dataset_info.json"
  info = json.loads(path.read_text())
  path.write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
  with pytest.raises(errors.UserError, match="file_format='array_record'"):
    prepare(tmp_path, str(copy))


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_damaged_record_file_is_refused_in_one_line(tmp_path, built, part):
  copy = shutil.copytree(built.data_path, tmp_path / built.data_path.name)
  path = next(copy.glob("*train.array_record*"))
  data = path.read_bytes()
  path.write_bytes(data[: int(len(data) * part)])
  with pytest.raises(errors.UserError, match="is damaged") as raised:
    prepare(tmp_path, str(copy))
  assert "\n" not in str(raised.value)
  assert not (tmp_path / "data" / "tfds").exists()


def test_neither_the_home_folder_nor_tensorflow_is_used(tmp_path, built):
  home = tmp_path / "home"
  home.mkdir()
  builders = "\n".join(
    f"import transformer_xl.data_prep.{name}.{name}_dataset_builder"
    for name in registry.datasets
  )
  program = f"""
import sys
import transformer_xl.data_prep.main
from transformer_xl.data_prep import preparation
{builders}
from transformer_xl.data_prep.text import text_dataset_builder
for source in ({str(built.data_dir)!r}, "no_such_dataset", "a:b"):
  try:
    preparation.prepare(dataset="tfds", data_dir="data", source=source)
  except preparation.catalog.errors.UserError as error:
    print(error)
print(text_dataset_builder.Builder().data_dir)
print("tensorflow_datasets" in sys.modules, "tensorflow" in sys.modules)
"""
  result = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    check=True,
    cwd=tmp_path,
    env={"HOME": str(home), "PYTHONPATH": ":".join(sys.path)},
    text=True,
  )
  lines = result.stdout.splitlines()
  folder = "data/tensorflow_datasets/text/1.0.0"
  assert lines[-2:] == [folder, "True False"]
  assert (tmp_path / "data" / "tfds" / "meta.json").exists()
  assert list(home.iterdir()) == []


def test_names_in_tfds_are_its_own_datasets():
  from transformer_xl.data_prep.lm1b import lm1b_dataset_builder

  assert lm1b_dataset_builder.Builder.name == "lm1b"
  theirs = tfds.builder_cls("lm1b")
  assert theirs is not lm1b_dataset_builder.Builder
  assert theirs.__module__.startswith("tensorflow_datasets.")
