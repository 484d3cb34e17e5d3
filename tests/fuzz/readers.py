"""Every reader of files, with valid files to start from."""

from tests.fuzz import campaign
from tests.fuzz import imported_files
from tests.fuzz import prepared_files
from tests.fuzz import raw_texts
from tests.fuzz import run_files


def all_readers() -> dict[str, campaign.Reader]:
  """By name; the shares add up to a thousand."""
  return {
    **prepared_files.readers(),
    **imported_files.readers(),
    **run_files.readers(),
    **raw_texts.readers(),
  }
