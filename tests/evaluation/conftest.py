"""The tiny dataset that the tests of this room share."""

import pytest

from tests import corpus


@pytest.fixture(scope="package")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))
