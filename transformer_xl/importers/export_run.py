"""A run's checkpoint as a folder for other programs; `--mode=export`.

`--format=transformers` is here, `--format=stablehlo` in stablehlo.py and
`--format=peft` in peft.py.
"""

import json
import os
import pathlib
from collections.abc import Mapping

import jax
import numpy as np
import safetensors.numpy
from absl import logging

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.importers import decoders
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.importers import mapping
from transformer_xl.importers import model_card
from transformer_xl.importers import peft
from transformer_xl.importers import stablehlo
from transformer_xl.importers import tokenizer
from transformer_xl.model import network
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record
from transformer_xl.workdir import run_vocabulary
from transformer_xl.workdir import trained_model

# What a folder of a format is for, in the log.
FORMATS = {
  "transformers": (
    "transformer_xl.load({target!r}) and AutoModelForCausalLM."
    "from_pretrained({target!r}{trust})"
  ),
  "peft": "PeftModel.from_pretrained(BASE, {target!r}); docs/sharing.md",
  "stablehlo": "jax.export.deserialize; docs/sharing.md has an example",
}


def run(
  config: schema.ExperimentConfig, workdir: str, *, target: str, format: str
) -> metrics_log.Json:
  """Exports the checkpoint of `config.eval` and writes `results/export.json`.

  Raises:
    UserError: as in `export`, or there are several processes.
  """
  if jax.process_count() > 1:
    raise errors.UserError(
      f"a model is exported by one process, and these are "
      f"{jax.process_count()}: give the command on one host, with "
      "JAX_PLATFORMS=cpu in front and --multihost=false."
    )
  needs_file = False
  if format == "stablehlo":
    _require_new(target)
    stablehlo.export(workdir, target, config)
  elif format == "peft":
    _require_new(target)
    peft.export(workdir, target, config)
  else:
    needs_file = export(workdir, target, config)
  result = {"format": format, "target": storage.absolute(target)}
  metrics_log.write_json(workdir, "results/export.json", result)
  trust = ", trust_remote_code=True" if needs_file else ""
  use = FORMATS[format].format(target=target, trust=trust)
  logging.info("%s is ready for %s.", target, use)
  return result


def export(
  workdir: str, target: str, config: schema.ExperimentConfig | None = None
) -> bool:
  """Writes the checkpoint that `config.eval` names, by default the run's own.

  The folder has model.safetensors, config.json, the model as a Python file for
  transformers, the vocabulary, a model card and the evaluation cards of these
  parameters. Lengths in config.json are those of `config.score`. A model that
  is a llama, mistral, qwen2 or qwen3 is written as one, without the Python
  file.

  Returns:
    Whether transformers needs the Python file.

  Raises:
    UserError: the run has no checkpoint, the file cannot represent its model,
      or the target exists.
  """
  _require_new(target)
  if config is None:
    config = load.from_config_dict(load.saved(workdir))
  config, vocabulary = run_vocabulary.load_for(config, workdir)
  lengths = mapping.lengths_of(config.score, config.eval)
  fields = decoders.config_fields(config.model, lengths)
  is_decoder = fields is not None  # transformers has its code.
  if fields is None:
    fields = huggingface.config_fields(config.model, lengths)
  fields[huggingface.OWN] = huggingface.own_fields(config)
  # Of a model that attends to zeros before a text, none can be padded there.
  has_zeros = config.model.memory_start == "zeros"
  settings = tokenizer.settings(
    vocabulary, padding_side="right" if has_zeros else "left"
  )
  if is_decoder:
    fields |= tokenizer.special_ids(vocabulary, settings)
  model = trained_model.load_on_one_device(config, workdir)
  with import_run.new_folder(target) as folder:
    path = os.path.join(storage.local(folder), "model.safetensors")
    _write(folder, "config.json", json.dumps(fields, indent=2))
    if is_decoder:
      layout = decoders.layout(config.model)
      write_tensors(path, mapping.export_tensors(model.params, layout))
    else:
      write_weights(path, model.params, config.model)
      code = pathlib.Path(__file__).with_name(huggingface.MODELING)
      _write(folder, huggingface.MODELING, code.read_text("utf-8"))
    _write_vocabulary(workdir, folder, vocabulary, settings)
    cards = model_card.evaluations(
      workdir, step=model.step, parameters=config.eval.parameters
    )
    if cards:
      lines = "".join(f"{json.dumps(card)}\n" for card in cards)
      _write(folder, "evaluation_cards.jsonl", lines)
    subject = model_card.Subject(
      os.path.basename(storage.absolute(target)),
      config.model,
      origin=model_card.origin(
        workdir, dataset=config.data.name, step=model.step
      ),
      num_parameters=network.num_parameters(
        network.without_auxiliary(model.params)
      ),
      unit=vocabulary.unit,
      model_type=fields["model_type"] if is_decoder else None,
    )
    _write(folder, "README.md", model_card.render(subject, cards))
  return not is_decoder


def _require_new(target: str) -> None:
  """Raises a UserError unless a folder of this name can be made."""
  if not target:
    raise errors.UserError("--target is empty; name the folder to make.")
  if os.path.exists(target) or storage.names(target):
    raise errors.UserError(f"{target} exists; choose another --target.")
  storage.require_writable(target)


def _write_vocabulary(
  workdir: str,
  folder: str,
  vocabulary: vocabulary_lib.Vocabulary,
  settings: Mapping[str, object],
) -> None:
  """Writes the folder that `load` reads, and what HuggingFace reads."""
  source = os.path.join(storage.local(workdir), run_record.VOCABULARY)
  run_record.keep_vocabulary(source, folder)
  if isinstance(vocabulary, vocabulary_lib.WordVocabulary):
    lines = "".join(f"{symbol}\n" for symbol in vocabulary.symbols)
    _write(folder, "vocab.txt", lines)
  _write(folder, "tokenizer.json", tokenizer.make(vocabulary).to_str())
  _write(folder, "tokenizer_config.json", json.dumps(settings, indent=2))


def _write(folder: str, name: str, text: str) -> None:
  pathlib.Path(storage.local(folder), name).write_text(text, "utf-8")


def write_weights(
  path: str, params: shapes.PyTree, config: schema.ModelConfig
) -> None:
  """Writes every tensor once, under its HuggingFace name."""
  tensors = mapping.export_tensors(params, huggingface.layout(config))
  # A constant buffer that HuggingFace's model expects.
  exponents = np.arange(0, config.model_dim, 2) / config.model_dim
  frequencies = (10000**-exponents).astype(np.float32)
  tensors["transformer.pos_emb.inv_freq"] = frequencies
  write_tensors(path, tensors)


def write_tensors(path: str, tensors: dict[str, np.ndarray]) -> None:
  """Writes a safetensors file that transformers reads."""
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
