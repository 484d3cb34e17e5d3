"""The tiny dataset that the tests of this room train on."""

import pytest

from tests import corpus
from tests import shared_programs


@pytest.fixture(scope="module", autouse=True)
def programs_are_shared():
  """Runs of one file often differ only in when they save, log and stop."""
  with shared_programs.sharing():
    yield


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))
