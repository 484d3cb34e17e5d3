"""The tiny dataset that the tests of this room share."""

import pytest

from tests import corpus
from tests import shared_programs


@pytest.fixture(scope="module", autouse=True)
def programs_are_shared():
  """Members of a study are trained and evaluated by the same programs."""
  with shared_programs.sharing():
    yield


@pytest.fixture(scope="package")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))
