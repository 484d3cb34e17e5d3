r"""Command line: exports a run's checkpoint as a HuggingFace folder.

    python -m transformer_xl.importers.export --workdir=runs/wt103 \
      --target=wt103_huggingface

The folder loads with `TransfoXLLMHeadModel.from_pretrained`.
"""

import json
import os
import pathlib

import numpy as np
import safetensors.numpy
from absl import flags

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.importers import mapping
from transformer_xl.workdir import run_record
from transformer_xl.workdir import trained_model

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run.", required=True
)
_TARGET = flags.DEFINE_string("target", None, "Folder to make.", required=True)


def export(workdir: str, target: str) -> None:
  """Writes model.safetensors, config.json and, for words, vocab.txt.

  The lengths in config.json are those of the run's evaluation.

  Raises:
    UserError: the run has no checkpoint, HuggingFace's model cannot represent
      it, or the target exists.
  """
  if os.path.exists(target):
    raise errors.UserError(f"{target} exists; choose another --target.")
  config = load.from_config_dict(load.saved(workdir))
  lengths = mapping.Lengths(
    config.eval.segment_len,
    config.eval.mem_len[0],
    config.eval.clamp_len,
    config.eval.same_length,
  )
  fields = huggingface.config_fields(config.model, lengths)
  model = trained_model.load_on_one_device(config, workdir)
  vocabulary = vocabulary_lib.load(os.path.join(workdir, run_record.VOCABULARY))
  with import_run.new_folder(target) as folder:
    path = os.path.join(folder, "model.safetensors")
    write_weights(path, model.params, config.model)
    text = json.dumps(fields, indent=2)
    pathlib.Path(folder, "config.json").write_text(text, "utf-8")
    if isinstance(vocabulary, vocabulary_lib.WordVocabulary):
      text = "".join(f"{symbol}\n" for symbol in vocabulary.symbols)
      pathlib.Path(folder, "vocab.txt").write_text(text, "utf-8")


def write_weights(
  path: str, params: shapes.PyTree, config: schema.ModelConfig
) -> None:
  """Writes every tensor once, under its HuggingFace name."""
  tensors = mapping.export_tensors(params, huggingface.layout(config))
  # A constant buffer that HuggingFace's model expects.
  exponents = np.arange(0, config.model_dim, 2) / config.model_dim
  frequencies = (10000**-exponents).astype(np.float32)
  tensors["transformer.pos_emb.inv_freq"] = frequencies
  safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def main(argv: list[str]) -> None:
  """Exports the run that the flags name."""
  del argv
  export(_WORKDIR.value, _TARGET.value)
  print(f"{_TARGET.value} is ready for TransfoXLLMHeadModel.from_pretrained")


if __name__ == "__main__":
  command_line.run(main)
