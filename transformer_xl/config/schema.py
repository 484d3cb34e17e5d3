"""A run's configuration as frozen dataclasses, checked and hashable.

The groups' files declare each field once, with default, rule and remark.
Lengths are in tokens; batch sizes are in lanes and global.
"""

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
  """Seed of the parameters, of dropout and of the order of the data."""
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


FIELDS = {field.name: field for field in fields.walk(ExperimentConfig)}


def choices(name: str) -> tuple[str, ...]:
  """Legal values of a field with a list of them, such as `model.encoding`."""
  rule = FIELDS[name].rule
  return rule.choices if rule else ()
