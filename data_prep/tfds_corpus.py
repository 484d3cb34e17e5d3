"""Any text dataset of TFDS, read from array_record files without TensorFlow."""

import dataclasses
import functools
import os
import pathlib

import tensorflow_datasets.public_api as tfds

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data_prep import boundaries as boundaries_lib
from transformer_xl.data_prep import corpus as corpus_lib
from transformer_xl.data_prep import piece
from transformer_xl.data_prep import source
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.data_prep.text import holdout
from transformer_xl.data_prep.text import splits as splits_lib

# Single records take over a millisecond each.
_RECORDS_AT_ONCE = 1024


def open_corpus(
  *,
  path: str | None,
  cache: pathlib.Path,
  field: str = "text",
  tokenizer: tokenizer_lib.Tokenizer,
  document_start: str | None = None,
  document_end: str | None = None,
  valid_fraction: float | None = None,
  test_fraction: float | None = None,
) -> corpus_lib.Corpus:
  """Returns the corpus of NAME or NAME/CONFIG in TFDS, or of a prepared folder.

  Every record is a document, unless lines say where these start or end.
  Prepared datasets are beside the cache of downloads. UserError if there is no
  such dataset, or no text in it.
  """
  if path is None:
    raise errors.UserError(
      "--dataset=tfds needs the dataset: --source=NAME, NAME/CONFIG or FOLDER."
    )
  boundaries = boundaries_lib.parse(document_start, document_end)
  builder = _open_builder(path, cache)
  features = builder.info.features
  fields = [n for n, f in features.items() if isinstance(f, tfds.features.Text)]
  if field not in fields:
    raise errors.UserError(
      f"{path} has no text in the field {field!r}, but in"
      f" {', '.join(sorted(fields)) or 'none'}; name the field with --field."
    )
  named = {splits_lib.split_named(name): name for name in builder.info.splits}
  splits = {s: named[s] for s in corpus_lib.SPLITS if s in named}
  if not splits:
    raise errors.UserError(
      f"{path} has the splits {', '.join(builder.info.splits)}, and none is"
      " called train, validation or test."
    )
  corpus = holdout.of_splits(
    {
      s: functools.partial(read, builder, n, field, boundaries)
      for s, n in splits.items()
    },
    valid_fraction=valid_fraction,
    test_fraction=test_fraction,
    name="tfds",
    tokenizer=tokenizer,
    source={"path": path, "dataset": builder.info.full_name},
    fingerprint=source.Source(pathlib.Path(builder.data_dir)).fingerprint,
    options={"field": field, **(boundaries.options() if boundaries else {})},
  )
  read_splits = ", ".join(splits.values())
  report = f"{builder.info.full_name} read; splits: {read_splits}"
  return dataclasses.replace(corpus, report=report)


def read(
  builder: tfds.core.DatasetBuilder,
  split: str,
  field: str,
  boundaries: boundaries_lib.Boundaries | None = None,
) -> piece.Pieces:
  """Yields the text of a split; UserError if a record file is damaged."""
  records = _records(builder, split, field)
  if boundaries is None:
    return records
  return boundaries_lib.divide(boundaries_lib.join(records), boundaries)


def _records(
  builder: tfds.core.DatasetBuilder, split: str, field: str
) -> piece.Pieces:
  records = builder.as_data_source(split)
  for start in range(0, len(records), _RECORDS_AT_ONCE):
    numbers = range(start, min(start + _RECORDS_AT_ONCE, len(records)))
    try:
      texts = [r[field] for r in records.__getitems__(list(numbers))]
      if None in texts:
        raise RuntimeError("it ends before the last record")
    except RuntimeError as error:
      reason = " ".join(str(error).split())[:200]
      raise errors.UserError(
        f"{split} in {builder.data_dir} is damaged ({reason}); make it again."
      ) from None
    for number, text in zip(numbers, texts, strict=True):
      origin = f"{builder.info.full_name}, record {number} of {split}"
      yield from piece.record(text, origin=origin)


def _open_builder(path: str, cache: pathlib.Path) -> tfds.core.DatasetBuilder:
  """Returns a dataset that has its files, and prepares it where it has none."""
  root = cache.parent / "tensorflow_datasets"
  # TFDS keeps lists of community datasets there, by default in the home folder.
  os.environ.setdefault("TFDS_CACHE_DIR", str(root / "cache"))
  place = pathlib.Path(storage.expanded(path))
  try:
    if (place / "dataset_info.json").is_file():
      builder = tfds.builder_from_directory(place)
    else:
      builder = tfds.builder(
        path, data_dir=root, file_format="array_record", try_gcs=False
      )
      config = tfds.download.DownloadConfig(try_download_gcs=False)
      builder.download_and_prepare(download_dir=cache, download_config=config)
    for split in builder.info.splits:
      builder.as_data_source(split)
  except tfds.core.DatasetNotFoundError:
    raise errors.UserError(
      f"TFDS has no dataset {path!r}, nor does {root}; give NAME or"
      " NAME/CONFIG, or the folder of a prepared dataset."
    ) from None
  except OSError:
    raise
  except Exception as error:  # Other people's builders raise anything.
    reason = " ".join(str(error).split())[:200]
    raise errors.UserError(
      f"the TFDS dataset {path} cannot be prepared or read here ({reason});"
      " prepare it with file_format='array_record' on a machine with"
      " TensorFlow, and give its folder with --source."
    ) from None
  return builder
