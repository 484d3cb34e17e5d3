"""Downloads models from the HuggingFace Hub, pinned to a commit."""

import os
from typing import NamedTuple

from absl import logging

from transformer_xl import errors
from transformer_xl.formats import hub_files
from transformer_xl.importers import decoders
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping
from transformer_xl.importers import vocabulary

PREFIX = hub_files.PREFIX
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
  folder = hub_files.fetch(name, revision or None, _SMALL)
  fields = huggingface.read_config(folder)  # Before the large weights.
  commit = os.path.basename(folder)
  if fields["model_type"] in decoders.KINDS:
    beside = (*decoders.TOKENIZERS, *vocabulary.CHAT_TEMPLATES)
    hub_files.fetch(name, commit, beside)
  for weights in huggingface.WEIGHTS:
    hub_files.fetch(name, commit, (weights,))
    path = mapping.find(folder, (weights,))
    if path is not None:
      if path.endswith(huggingface.INDEX):
        hub_files.fetch(name, commit, list(huggingface.shards(path)))
      break
  else:
    raise errors.UserError(
      f"{address} has no weights, or none in the cache while the Hub cannot be "
      f"reached; it needs one of {', '.join(huggingface.WEIGHTS)}."
    )
  pinned = f"{PREFIX}{name}@{commit}"
  logging.info("%s is %s.", address, pinned)
  return Snapshot(folder, pinned)
