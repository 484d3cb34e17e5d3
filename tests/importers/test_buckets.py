"""Imports and exports in a bucket are those on disk."""

import os

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

from tests import emulator
from tests.importers import stored_files
from transformer_xl import errors
from transformer_xl import pretrained
from transformer_xl import storage
from transformer_xl.config import load as load_lib
from transformer_xl.importers import export_run
from transformer_xl.importers import import_run
from transformer_xl.workdir import trained_model


def parameters(workdir):
  config = load_lib.from_config_dict(load_lib.saved(workdir))
  return config, trained_model.load(config, workdir).params


def make(source, workdir):
  request = import_run.Request("tensorflow", str(source))
  return import_run.make(request, str(workdir))


@pytest.mark.rest
@pytest.mark.slow
def test_an_import_from_a_bucket_into_a_bucket_is_that_of_a_folder(
  bucket, tmp_path
):
  published = stored_files.as_published("wt103", tmp_path / "source")
  emulator.upload(published, f"{bucket}/source")
  report = make(f"{bucket}/source", f"{bucket}/run")
  expected = make(published, tmp_path / "run")
  assert report.pop("source") == f"{bucket}/source"
  assert expected.pop("source") == str(published)
  vocabulary = report["vocabulary"]
  assert vocabulary.pop("path") == f"{bucket}/source/data/cache.pkl"
  del expected["vocabulary"]["path"]
  assert report == expected
  config, params = parameters(f"{bucket}/run")
  expected_config, expected_params = parameters(str(tmp_path / "run"))
  assert config == expected_config
  jax.tree.map(np.testing.assert_array_equal, params, expected_params)
  texts = [" ".join(("w1", "w2", "w3")), "w5"]
  one, other = (
    pretrained.load(folder).score(texts)
    for folder in (f"{bucket}/run", tmp_path / "run")
  )
  assert one == other
  with pytest.raises(errors.UserError, match=f"{bucket}/run is not empty"):
    make(published, f"{bucket}/run")


def test_the_start_of_file_names_is_a_source(bucket, tmp_path):
  emulator.upload(stored_files.tensorflow("wt103"), f"{bucket}/source")
  request = import_run.Request(
    "tensorflow",
    f"{bucket}/source/model.ckpt-{stored_files.STEP}",
    vocabulary=f"{bucket}/source/cache.pkl",
  )
  found = import_run.read(request)
  expected = import_run.read(
    import_run.Request("tensorflow", str(stored_files.tensorflow("wt103")))
  )
  jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def test_a_refused_import_names_the_bucket_and_writes_nothing(bucket):
  with pytest.raises(errors.UserError, match=f"^{bucket}/none/config.json is"):
    import_run.make(
      import_run.Request("huggingface", f"{bucket}/none"), f"{bucket}/run"
    )
  assert storage.names(f"{bucket}/run") == []


def test_an_export_into_a_bucket_is_that_into_a_folder(bucket, tmp_path):
  run, folder = str(tmp_path / "run"), tmp_path / "exported"
  make(stored_files.as_published("wt103", tmp_path / "source"), run)
  export_run.export(run, f"{bucket}/exported")
  export_run.export(run, str(folder))
  uploaded = epath.Path(bucket) / "exported"
  assert sorted(storage.names(str(uploaded))) == sorted(os.listdir(folder))
  for name in ("config.json", "README.md", "vocab.txt"):
    assert (uploaded / name).read_text() == (folder / name).read_text()
  weights = (uploaded / "model.safetensors").read_bytes()
  expected = safetensors.numpy.load((folder / "model.safetensors").read_bytes())
  jax.tree.map(
    np.testing.assert_array_equal, safetensors.numpy.load(weights), expected
  )
  model = pretrained.load(str(uploaded))
  assert model.source == f"{bucket}/exported"
  assert model.score(["w1 w2"]) == pretrained.load(folder).score(["w1 w2"])
  with pytest.raises(errors.UserError, match=f"{bucket}/exported exists"):
    export_run.export(run, f"{bucket}/exported")
