"""A run's configuration as frozen dataclasses, checked and hashable.

The groups' files declare each field once, with its default, its remark and the
rule for its value. Lengths are in tokens; batch sizes are in lanes and global.
"""

from transformer_xl.config import evaluation_fields
from transformer_xl.config import fields
from transformer_xl.config import model_fields
from transformer_xl.config import text_fields
from transformer_xl.config import training_fields

ModelConfig = model_fields.ModelConfig
DataConfig = training_fields.DataConfig
TrainConfig = training_fields.TrainConfig
DivergenceConfig = training_fields.DivergenceConfig
EvalConfig = evaluation_fields.EvalConfig
DynamicConfig = evaluation_fields.DynamicConfig
CacheConfig = evaluation_fields.CacheConfig
CheckpointConfig = training_fields.CheckpointConfig
MeshConfig = training_fields.MeshConfig
GenerateConfig = text_fields.GenerateConfig
ScoreConfig = text_fields.ScoreConfig
AnalysisConfig = text_fields.AnalysisConfig


@fields.group
class ExperimentConfig:
  """A run."""

  seed: int = fields.field(
    0,
    "Seed of the parameters, of dropout and of the order of the data.",
    fields.NOT_NEGATIVE,
  )
  model: ModelConfig
  data: DataConfig
  train: TrainConfig
  divergence: DivergenceConfig
  eval: EvalConfig
  checkpoint: CheckpointConfig
  mesh: MeshConfig
  generate: GenerateConfig
  score: ScoreConfig
  analysis: AnalysisConfig


FIELDS = {field.name: field for field in fields.walk(ExperimentConfig)}


def choices(name: str) -> tuple[str, ...]:
  """Legal values of a field with a list of them, such as `model.encoding`."""
  rule = FIELDS[name].rule
  return rule.choices if rule else ()
