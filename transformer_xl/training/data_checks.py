"""Checks of the data of a run, before its first update."""

from absl import logging

from transformer_xl import errors
from transformer_xl.config import extensions
from transformer_xl.config import schema
from transformer_xl.data import segment_lengths
from transformer_xl.data import token_file
from transformer_xl.workdir import run_record

_MANY_READS = 10  # From here on, a run is warned that it may overfit.


def require(
  data: schema.DataConfig, train: schema.TrainConfig, workdir: str
) -> None:
  """Raises a UserError without data, or for data of another vocabulary.

  Also for data without a split to validate on. Called first, since later checks
  would blame something else, such as a prompt.
  """
  data_dir = data.dataset_dir
  splits = token_file.read_meta(data_dir).get("splits", {})
  if train.eval_every_steps and "valid" not in splits:
    raise errors.UserError(
      f"train.eval_every_steps={train.eval_every_steps} validates on a "
      f"split 'valid', and {data_dir} has only {', '.join(splits)}: prepare it "
      "with one, or set --config.train.eval_every_steps=0."
    )
  run_record.check_vocabulary(data_dir, workdir)
  if train.init_from:
    run_record.check_vocabulary(data_dir, train.init_from, may_be_extended=True)


def warn_of_another_writer(data: schema.DataConfig) -> None:
  """Warns of text of a task whose file, from outside, was another one then."""
  now = extensions.version_of_dataset(data.name)
  request = token_file.read_meta(data.dataset_dir).get("request", {})
  if now is not None and request.get("extension") != now:
    logging.warning(
      "%s was written with another version of the file that registers %s; "
      "delete it to have it written again.",
      data.dataset_dir,
      data.name,
    )


def warn_of_overfitting(
  data: schema.DataConfig, train: schema.TrainConfig, model: schema.ModelConfig
) -> None:
  """Warns of a run on other text than a benchmark that may overfit it."""
  if token_file.is_named(data.name):
    return
  values = vars(model).items()
  rates = (value for name, value in values if name.endswith("dropout_rate"))
  if not train.eval_every_steps and not any(rates):
    logging.warning(
      "This run has no validation and no dropout, so it may overfit %s "
      "unnoticed; try --config.train.eval_every_steps=100 "
      "--config.model.dropout_rate=0.1.",
      data.name,
    )
  num_tokens = len(token_file.open_split(data.dataset_dir, "train").tokens)
  per_update = segment_lengths.tokens_per_update(train)
  reads = train.num_steps * per_update / num_tokens
  if reads > _MANY_READS:
    fewer = int(_MANY_READS * num_tokens / per_update)
    logging.warning(
      "This run reads the %d training tokens of %s %.1f times and may overfit "
      "them; %s.",
      num_tokens,
      data.name,
      reads,
      f"--config.train.num_steps={fewer} reads them {_MANY_READS} times"
      if fewer
      else "more text would help",
    )
