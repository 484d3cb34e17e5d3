"""Files of the HuggingFace Hub: to its cache, pinned to a commit, never run.

They come through `huggingface_hub`: with its token, and from `HF_ENDPOINT` if
that is set.
"""

from collections.abc import Sequence

from transformer_xl import errors

PREFIX = "hf://"
DATASETS = f"{PREFIX}datasets/"


def fetch(
  name: str,
  revision: str | None,
  patterns: Sequence[str],
  *,
  prefix: str = PREFIX,
) -> str:
  """Returns the folder with some files, as far as the Hub has them.

  The folder is named after the commit. A branch or tag is looked up; without
  network, the cache answers.

  Args:
    name: OWNER/NAME.
    revision: a branch, tag or commit; None for the main branch.
    patterns: names of files, where `*` stands for anything.
    prefix: PREFIX for a model, DATASETS for a dataset.

  Raises:
    UserError: there is no such name or revision, access to it is refused, or
      there is no network.
  """
  import huggingface_hub  # Takes as long to import as a small preparation.
  from huggingface_hub import errors as hub_errors

  address = f"{prefix}{name}"
  try:
    return huggingface_hub.snapshot_download(
      name,
      repo_type="dataset" if prefix == DATASETS else None,
      revision=revision,
      allow_patterns=list(patterns),
    )
  except hub_errors.HFValidationError:
    text = (
      f"{address} is not a name on the Hub; write {prefix}OWNER/NAME"
      "[@REVISION]."
    )
  except hub_errors.GatedRepoError:
    text = (
      f"{address} is gated: accept its terms on its page, then log in with "
      "`hf auth login` or set HF_TOKEN."
    )
  except hub_errors.RevisionNotFoundError:
    text = (
      f"{address} has no revision {revision!r}; name a branch, tag or commit."
    )
  except hub_errors.RepositoryNotFoundError:
    text = (
      f"{address} does not exist or is private; check the name, or log in with "
      "`hf auth login`."
    )
  except hub_errors.LocalEntryNotFoundError:
    text = (
      f"{address} is not in the cache, and "
      f"{huggingface_hub.constants.ENDPOINT} cannot be reached; check the "
      "network, or download the folder elsewhere and give that."
    )
  # Of the transport, and of the disk.
  except (hub_errors.HTTPError, OSError) as error:
    reason = str(error).partition("\n")[0]
    text = (
      f"{address} could not be downloaded ({reason}); try again: files that "
      "have arrived are kept."
    )
  raise errors.UserError(text)
