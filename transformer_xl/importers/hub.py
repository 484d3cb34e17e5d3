"""Downloads models from the HuggingFace Hub, pinned to a commit.

Files come through `huggingface_hub`: to its cache, with its token, and from
`HF_ENDPOINT` if that is set. None of them is run.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import huggingface_hub
from absl import logging
from huggingface_hub import errors as hub_errors

from transformer_xl import errors
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping

PREFIX = "hf://"
_SMALL = (
  "config.json",
  *huggingface.VOCABULARIES,
  f"{huggingface.VOCABULARY}/*",
)


class Snapshot(NamedTuple):
  """A downloaded model."""

  folder: str
  address: str  # hf://OWNER/NAME@COMMIT, the same files for ever.


def download(address: str) -> Snapshot:
  """Downloads `hf://OWNER/NAME[@REVISION]`, and of its files what is needed.

  A branch or tag is looked up once; without network, the cache answers.

  Raises:
    UserError: there is no such model, access to it is refused, there is no
      network, or it is of another kind.
  """
  name, _, revision = address.removeprefix(PREFIX).partition("@")
  folder = _fetch(name, revision or None, _SMALL)
  huggingface.read_config(folder)  # Before the weights, which are large.
  commit = os.path.basename(folder)
  for weights in huggingface.WEIGHTS:
    _fetch(name, commit, (weights,))
    if mapping.find(folder, (weights,)):
      break
  else:
    raise errors.UserError(
      f"{address} has no weights; it needs one of "
      f"{', '.join(huggingface.WEIGHTS)}."
    )
  pinned = f"{PREFIX}{name}@{commit}"
  logging.info("%s is %s.", address, pinned)
  return Snapshot(folder, pinned)


def _fetch(name: str, revision: str | None, files: Sequence[str]) -> str:
  """Returns the folder with these files, as far as the model has them."""
  model = f"{PREFIX}{name}"
  try:
    return huggingface_hub.snapshot_download(
      name, revision=revision, allow_patterns=list(files)
    )
  except hub_errors.HFValidationError:
    text = (
      f"{model} is not a name on the Hub; write hf://OWNER/NAME[@REVISION]."
    )
  except hub_errors.GatedRepoError:
    text = (
      f"{model} is gated: accept its terms on its page, then log in with "
      "`hf auth login` or set HF_TOKEN."
    )
  except hub_errors.RevisionNotFoundError:
    text = (
      f"{model} has no revision {revision!r}; name a branch, tag or commit."
    )
  except hub_errors.RepositoryNotFoundError:
    text = (
      f"{model} does not exist or is private; check the name, or log in with "
      "`hf auth login`."
    )
  except hub_errors.LocalEntryNotFoundError:
    text = (
      f"{model} is not in the cache, and {huggingface_hub.constants.ENDPOINT} "
      "cannot be reached; check the network, or download the folder elsewhere "
      "and load that."
    )
  # Of the transport, and of the disk.
  except (hub_errors.HTTPError, OSError) as error:
    reason = str(error).partition("\n")[0]
    text = (
      f"{model} could not be downloaded ({reason}); try again: files that have "
      "arrived are kept."
    )
  raise errors.UserError(text)
