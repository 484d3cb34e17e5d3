"""Records: a corpus as the examples of a TFDS builder, in the text's order."""

import pathlib
from collections.abc import Iterator
from typing import Any

import tensorflow_datasets.public_api as tfds

from data_prep import corpus
from data_prep import piece as piece_lib

MANUAL_DOWNLOAD_INSTRUCTIONS = """
Without internet, put the archive as published, or its files, into the folder.
Otherwise it is downloaded, and nothing need be done.
"""
RELEASE_NOTES = {"1.0.0": "First release."}


def features() -> tfds.features.FeaturesDict:
  """Returns what a record holds: bytes of text."""
  return tfds.features.FeaturesDict({"text": tfds.features.Text()})


def manual_source(dl_manager: tfds.download.DownloadManager) -> str | None:
  """Returns the folder of files given by the user, or None if there is none."""
  try:
    return str(dl_manager.manual_dir)
  except AssertionError:  # What TFDS raises for a folder that is not there.
    return None


def cache(dl_manager: tfds.download.DownloadManager) -> pathlib.Path:
  """Returns where downloads are kept."""
  return pathlib.Path(dl_manager.download_dir)


def by_piece(split: corpus.Split) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields records of a megabyte or so, for text without documents."""
  for key, piece in enumerate(split()):
    yield key, {"text": piece.data}


def by_document(split: corpus.Split) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields one record a document."""
  for key, document in enumerate(piece_lib.documents(split())):
    yield key, {"text": document}


def by_line(split: corpus.Split) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields one record a line, without its end."""
  key = 0
  for piece in split():
    for line in piece.data.removesuffix(b"\n").split(b"\n"):
      yield key, {"text": line}
      key += 1
