"""The settings that a result depends on, made in one place for all results.

Evaluation cards, scores, texts and analyses state these settings. Whatever
changes a number at evaluation time has to be here.
"""

import dataclasses

from transformer_xl.config import extensions
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.model import visibility
from transformer_xl.workdir import metrics_log


def of_reading(
  model: schema.ModelConfig,
  *,
  segment_len: int,
  mem_len: int,
  clamp_len: int,
  same_length: bool,
) -> metrics_log.Json:
  """States how a model reads text."""
  return {
    "layers": list(model.layers),
    "segment_len": segment_len,
    "mem_len": mem_len,
    "mixer_fields": _mixer_fields(model),
    "clamp_len": clamp_len,
    "encoding": model.encoding,
    "encoding_fields": _own_fields(model, registry.encodings, model.encoding),
    "pre_norm": model.pre_norm,
    "scale_embeddings": model.scale_embeddings,
    "layer_norm_epsilon": model.layer_norm_epsilon,
    "same_length": visibility.has_window(mem_len, same_length=same_length),
    "same_length_window": model.same_length_window,
    "memory_start": model.memory_start,
    "dtype": model.dtype,
    "extensions": [one._asdict() for one in extensions.needed_by_model(model)],
  }


def of_data(
  scoring: schema.Scoring, *, segment_len: int, mem_len: int
) -> metrics_log.Json:
  """States how a run reads prepared data, with lengths that an analysis has."""
  return {
    **of_reading(
      scoring.model,
      segment_len=segment_len,
      mem_len=mem_len,
      clamp_len=scoring.eval.clamp_len,
      same_length=scoring.eval.same_length,
    ),
    "reset_at_documents": scoring.data.reset_at_documents,
    "targets": scoring.data.targets,
    "parameters": scoring.eval.parameters,
  }


def of_evaluation(scoring: schema.Scoring, mem_len: int) -> metrics_log.Json:
  """States how a split is scored, with the first temperature."""
  evaluation = scoring.eval
  return {
    **of_data(scoring, segment_len=evaluation.segment_len, mem_len=mem_len),
    "context_len": evaluation.context_len,
    "temperature": evaluation.temperature[0],
    "batch_size": evaluation.batch_size,
    "warmup_len": evaluation.warmup_len,
  }


def _mixer_fields(model: schema.ModelConfig) -> dict[str, metrics_log.Json]:
  """The fields of the model's mixers, by mixer, where there are some."""
  found = {
    name: _own_fields(model, registry.mixers, name)
    for name in sorted(model.mixers)
  }
  return {name: fields for name, fields in found.items() if fields}


def _own_fields(
  model: schema.ModelConfig, parts: registry.Registry, name: str
) -> metrics_log.Json:
  """The values of the fields that one mixer or encoding has for itself."""
  kind = parts[name].Fields
  return {} if kind is None else dataclasses.asdict(model.own(kind))


def usual_encoding_fields(encoding: str) -> metrics_log.Json:
  """The defaults of the fields that an encoding has for itself."""
  prefix = f"model.{encoding}."
  return {
    name.removeprefix(prefix): field.default
    for name, field in schema.all_fields().items()
    if name.startswith(prefix)
  }


def memory_text(settings: metrics_log.Json) -> str:
  """The memory behind a number, for people."""
  text = str(settings["mem_len"])
  if settings["layers"] != ["attention"]:
    text += f" in layers {','.join(settings['layers'])}"
  groups = settings["mixer_fields"] if settings["mem_len"] else {}
  for fields in groups.values():
    values = ", ".join(f"{name} {value}" for name, value in fields.items())
    text += f" ({values})"
  return text
