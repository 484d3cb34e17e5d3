"""Warns of a model that has learned how often tokens occur, and nothing else.

The best prediction that does not look at the text has a loss of the unigram
entropy. A model can stay there for thousands of updates.
"""

import os

import jax
from absl import logging

from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.data import token_file
from transformer_xl.training import log_window
from transformer_xl.workdir import metrics_log

UPDATES = 500  # So long the loss has to stay there, after the warm-up.
_MARGIN = 0.02  # Of the entropy, above and below it.


class UnigramLoss:
  """Looks at the loss of each log line, and warns at most once in a run."""

  def __init__(
    self,
    train: schema.TrainConfig,
    data: schema.DataConfig,
    workdir: str,
    *,
    pre_norm: bool,
  ):
    self._train = train
    self._data = data
    self._workdir = workdir
    self._pre_norm = pre_norm
    self._since: int | None = None  # Updates before the loss was near it.
    self._is_said = False
    # In nats per token; None if the run is too short to warn. Read before the
    # first update, since all of the text takes long.
    self._entropy: float | None = None
    if train.num_steps - train.warmup_steps >= UPDATES:
      self._entropy = self._read_entropy()
      if jax.process_index() == 0:
        self._continue(self._entropy)

  def is_due(self, step: int) -> bool:
    """Whether a log line is due after the warm-up."""
    if self._entropy is None:
      return False
    train = self._train
    is_warm = self._first(step) >= train.warmup_steps
    return log_window.ends(train, step) and is_warm and not self._is_said

  def __call__(
    self, step: int, window: log_window.Window, writer: metrics_log.Writer
  ) -> None:
    """Warns, and writes a line for the report, if the loss has stayed there."""
    loss = window.loss
    if loss is None:
      return
    assert self._entropy is not None
    self._add(step, loss, self._entropy)
    is_long = self._since is not None and step - self._since >= UPDATES
    if self._is_said or not is_long:
      return
    self._is_said = True
    advice = advise(self._train, pre_norm=self._pre_norm)
    logging.warning(
      "Since step %d the loss stays within 2 %% of %.3f nats, which is what "
      "the frequencies of the tokens alone give: the model has learned nothing "
      "else. %s",
      self._since,
      self._entropy,
      advice,
    )
    writer.write(
      {
        "step": step,
        "unigram_entropy": self._entropy,
        "unigram_since": self._since,
        "advice": advice,
      }
    )

  def _read_entropy(self) -> float:
    """The entropy of the targets that count."""
    data = self._data
    file = token_file.open_split(data.dataset_dir, "train")
    return token_file.unigram_entropy(file, targets=data.targets)

  def _continue(self, entropy: float) -> None:
    """Starts from what the run has logged before it was resumed.

    Only the first process has the log.
    """
    path = os.path.join(storage.local(self._workdir), metrics_log.FILE)
    self._is_said = metrics_log.has(path, "unigram_since")
    # Back to the last loss that was not at the entropy, which is seldom far.
    for line in metrics_log.read_lines_back(path):
      step = line.get("step")
      loss = line.get("loss")
      if "split" in line or not isinstance(step, int):
        continue
      if isinstance(loss, float):
        is_cold = self._first(step) < self._train.warmup_steps
        if is_cold or not self._is_at(loss, entropy):
          break
        self._since = self._first(step)

  def _add(self, step: int, loss: float, entropy: float) -> None:
    """Takes the loss of the log line at `step`."""
    if not self._is_at(loss, entropy):
      self._since = None
    elif self._since is None:
      self._since = self._first(step)

  @staticmethod
  def _is_at(loss: float, entropy: float) -> bool:
    """Whether a loss is about the entropy."""
    return abs(loss - entropy) <= _MARGIN * entropy

  def _first(self, step: int) -> int:
    """Updates before the log line that ends at `step`."""
    every = self._train.log_every_steps
    return (step - 1) // every * every


def advise(train: schema.TrainConfig, *, pre_norm: bool) -> str:
  """One sentence with the settings that may help."""
  warmup = max(2 * train.warmup_steps, 1000)
  settings = [
    f"--config.train.warmup_steps={warmup}",
    f"--config.train.learning_rate={train.learning_rate / 2:g}",
    f"--config.train.batch_size={2 * train.batch_size}",
  ]
  if not pre_norm:
    settings.insert(0, "--config.model.pre_norm=True")
  *others, last = settings
  return f"In a new run, try {', '.join(others)} or {last}."
