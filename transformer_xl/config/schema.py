"""A run's configuration as frozen dataclasses, checked and hashable.

The groups' files declare each field once, with default, rule and remark.
Lengths are in tokens; batch sizes are in lanes and global.
"""

import math

from transformer_xl.config import evaluation_fields
from transformer_xl.config import fields
from transformer_xl.config import model_fields
from transformer_xl.config import training_fields

ModelConfig = model_fields.ModelConfig
TrainConfig = training_fields.TrainConfig
EvalConfig = evaluation_fields.EvalConfig
CacheConfig = evaluation_fields.CacheConfig
CheckpointConfig = training_fields.CheckpointConfig
MeshConfig = training_fields.MeshConfig
GenerateConfig = evaluation_fields.GenerateConfig
AnalysisConfig = evaluation_fields.AnalysisConfig


@fields.group
class ExperimentConfig:
  """A run."""

  seed: int = fields.field(0, "0 or more")
  """Seed of the parameters, dropout, drawn segment lengths and samples."""
  model: ModelConfig
  data: training_fields.DataConfig
  train: TrainConfig
  divergence: training_fields.DivergenceConfig
  eval: EvalConfig
  checkpoint: CheckpointConfig
  mesh: MeshConfig
  generate: GenerateConfig
  score: evaluation_fields.ScoreConfig
  analysis: AnalysisConfig
  report: evaluation_fields.ReportConfig

  @property
  def updates_per_call(self) -> int:
    """Number of updates in one compiled call of training.

    It is the largest number up to train.segments_per_call that divides all
    intervals: log lines, validations and checkpoints come between two calls.
    """
    interval = math.gcd(
      self.train.log_every_steps,
      self.train.eval_every_steps,
      self.checkpoint.every_steps,
    )
    small = [n for n in range(1, math.isqrt(interval) + 1) if not interval % n]
    divisors = [*small, *(interval // n for n in small)]
    return max(n for n in divisors if n <= self.train.segments_per_call)


FIELDS = {field.name: field for field in fields.walk(ExperimentConfig)}


def choices(name: str) -> tuple[str, ...]:
  """Legal values of a field with a list of them, such as `model.encoding`."""
  rule = FIELDS[name].rule
  return rule.choices if rule else ()
