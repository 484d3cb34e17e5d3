"""The tiny dataset that the tests of this room read."""

import pytest

from tests import corpus


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))
