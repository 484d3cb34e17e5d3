"""A run's folder for the tests of generating and scoring."""

import pytest

from tests import corpus
from tests import tiny
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record


@pytest.fixture(scope="package")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="package")
def workdir(data_dir, tmp_path_factory):
  """A folder with parameters and a vocabulary."""
  workdir = str(tmp_path_factory.mktemp("run"))
  run_record.keep_vocabulary(f"{data_dir}/{corpus.NAME}", workdir)
  params = tiny.params(corpus.config(data_dir).model)
  params_writer.save(workdir, params, step=1)
  return workdir
