"""A run's configuration as frozen dataclasses, checked and hashable.

The groups' files declare each field once, with default, rule and remark. Fields
of a single mixer, encoding, optimizer or schedule are declared in its own file
and form a group of its name in `config.model` or `config.train`.
Lengths are in tokens; batch sizes are in lanes and global.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transformer_xl import errors
from transformer_xl.config import evaluation_fields
from transformer_xl.config import fields
from transformer_xl.config import model_fields
from transformer_xl.config import registry
from transformer_xl.config import training_fields

ModelConfig = model_fields.ModelConfig
TrainConfig = training_fields.TrainConfig
EvalConfig = evaluation_fields.EvalConfig
CacheConfig = evaluation_fields.CacheConfig
CheckpointConfig = training_fields.CheckpointConfig
DataConfig = training_fields.DataConfig
DivergenceConfig = training_fields.DivergenceConfig
MeshConfig = training_fields.MeshConfig
GenerateConfig = evaluation_fields.GenerateConfig
AnalysisConfig = evaluation_fields.AnalysisConfig


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings that, besides arrays, determine parameters and updates.

  Attributes:
    model: the network.
    train: how it is trained.
    seed: of parameters, dropout and drawn lengths.
  """

  model: ModelConfig
  train: TrainConfig
  seed: int


@dataclasses.dataclass(frozen=True)
class Scoring:
  """The settings that, besides parameters, determine the scores of a text.

  Attributes:
    model: the network.
    data: the text.
    eval: how it is read.
  """

  model: ModelConfig
  data: DataConfig
  eval: EvalConfig


class ExperimentConfig(fields.Group):
  """A run."""

  seed: int = fields.field(0, "0 or more")
  """Seed of the parameters, dropout, drawn segment lengths and samples."""
  model: ModelConfig
  data: DataConfig
  train: TrainConfig
  divergence: DivergenceConfig
  eval: EvalConfig
  checkpoint: CheckpointConfig
  mesh: MeshConfig
  generate: GenerateConfig
  score: evaluation_fields.ScoreConfig
  analysis: AnalysisConfig
  report: evaluation_fields.ReportConfig

  @property
  def recipe(self) -> Recipe:
    """The settings that determine the run's parameters and updates."""
    return Recipe(self.model, self.train, self.seed)

  @property
  def scoring(self) -> Scoring:
    """The settings that determine the scores of the run's texts."""
    return Scoring(self.model, self.data, self.eval)

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

  def value_of(self, name: str) -> Any:
    """The value of a field by its path, such as `model.num_layers`."""
    return operator.attrgetter(name)(self)

  def is_set(self, name: str) -> bool:
    """Whether a field has another value than its default, and not zero.

    Zero turns off what a setting does, so nothing is lost without its effect.
    """
    value = self.value_of(name)
    default = all_fields()[name].default
    if isinstance(default, fields.SameAs):
      group, _, _ = name.rpartition(".")
      default = self.value_of(f"{group}.{default.leader}")
    return bool(value) and value != default

  def as_saved(self) -> dict[str, Any]:
    """The values as `config.json` has them.

    Fields of extensions that the run does not use are left out, so that it can
    be read without them.
    """
    tree = dataclasses.asdict(self)
    for group in unused_groups(self.model, self.train):
      if group.is_foreign:
        tree[group.section].pop(group.name, None)
    return tree


def config_type() -> type[ExperimentConfig]:
  """The class of a run's configuration, with the fields of all that there is.

  Imports whatever the registry lists.
  """
  for parts in OWN_GROUPS.values():
    for kind in parts:
      kind.groups()  # An import may register more.
  return _config_type(registry.version())


def all_fields() -> dict[str, fields.Field]:
  """Every field by its path below `config`, such as `model.num_layers`.

  Imports whatever the registry lists.
  """
  config_type()
  return _all_fields(registry.version())


def common_fields() -> Iterator[fields.Field]:
  """The fields that everybody has; nothing is imported for them."""
  return fields.walk(ExperimentConfig)


# What may have fields of its own, in a group of its name, by where that is.
OWN_GROUPS: Mapping[str, tuple[registry.Registry[Any], ...]] = {
  "model": (registry.mixers, registry.encodings),
  "train": (registry.optimizers, registry.schedules),
}


@functools.lru_cache(maxsize=1)
def _config_type(version: int) -> type[ExperimentConfig]:
  del version  # Of the registry; another one is another class.
  model = _with_own_groups(ModelConfig, "model")
  train = _with_own_groups(TrainConfig, "train")
  return fields.with_groups(ExperimentConfig, {"model": model, "train": train})


def _with_own_groups(
  kind: type[fields.GroupT], path: str
) -> type[fields.GroupT]:
  """A group with the groups of what is registered, by name.

  Raises:
    UserError: two have the same name, or one that of a field.
  """
  groups: dict[str, type[fields.Group]] = {}
  taken = {declared.name for declared in fields.walk(kind)}
  for parts in OWN_GROUPS[path]:
    for name, group in parts.groups().items():
      if name in taken:
        raise errors.UserError(
          f"the {parts.kind} {name!r} has fields config.{path}.{name}.*, but "
          f"there is a config.{path}.{name} already; register it under another "
          "name."
        )
      taken.add(name)
      groups[name] = group
  return fields.with_groups(kind, groups)


@functools.lru_cache(maxsize=1)
def _all_fields(version: int) -> dict[str, fields.Field]:
  return {field.name: field for field in fields.walk(_config_type(version))}


class Part(NamedTuple):
  """Something registered that a configuration uses."""

  kind: str  # Of its registry.
  name: str


def parts_of_model(model: ModelConfig) -> list[Part]:
  """The mixers and the encoding of a model."""
  return [
    *(Part(registry.mixers.kind, name) for name in sorted(model.mixers)),
    Part(registry.encodings.kind, model.encoding),
  ]


def parts(model: ModelConfig, train: TrainConfig) -> list[Part]:
  """Everything registered that a run uses, apart from its data."""
  return [
    *parts_of_model(model),
    Part(registry.optimizers.kind, train.optimizer),
    Part(registry.schedules.kind, train.schedule),
    Part(registry.trackers.kind, train.tracker),
  ]


class OwnGroup(NamedTuple):
  """A group of fields that something registered has alone."""

  section: str  # "model" or "train".
  name: str
  is_foreign: bool  # Registered from outside of the package.


def unused_groups(model: ModelConfig, train: TrainConfig) -> list[OwnGroup]:
  """The groups of fields that nothing in a configuration reads.

  A class without fields of its own reads those of the class that it inherits
  from.
  """
  used = parts(model, train)
  found = []
  for section, kinds in OWN_GROUPS.items():
    for kind in kinds:
      read = [kind[part.name].Fields for part in used if part.kind == kind.kind]
      for name, group in kind.groups().items():
        if group not in read:
          found.append(OwnGroup(section, name, kind.is_foreign(name)))
  return found


def choices(name: str) -> tuple[str, ...]:
  """Legal values of a field with a list of them, such as `model.encoding`."""
  rule = all_fields()[name].rule
  return rule.choices if rule else ()
