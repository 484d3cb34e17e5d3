"""Folders of HuggingFace: TransfoXL, what is exported here, and decoders.

docs/specification.md, section 21.1, says more of the format. Exported folders
also have the model as a Python file, `modeling_transformer_xl.py`, since
transformers 5 has no TransfoXL. `decoders` describes models of today.
"""

import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

import numpy as np
import safetensors
import safetensors.numpy

from transformer_xl import errors
from transformer_xl.config import fields as fields_lib
from transformer_xl.config import schema
from transformer_xl.formats import torch_file
from transformer_xl.importers import decoders
from transformer_xl.importers import mapping
from transformer_xl.importers import pytorch
from transformer_xl.model.encodings import rope

# In the order in which transformers looks for them. An index names the files
# over which large weights are spread.
WEIGHTS = (
  "model.safetensors",
  "model.safetensors.index.json",
  "pytorch_model.bin",
  "pytorch_model.bin.index.json",
)
INDEX = ".index.json"
IGNORED = f"{pytorch.IGNORED}|{decoders.IGNORED}"
VOCABULARY = "vocabulary"  # A folder that an export adds: it is of any kind.
VOCABULARIES = (VOCABULARY, "vocab.pkl", "vocab.bin", "vocab.txt")
# The entry of config.json for fields of ours without a counterpart, and all
# that it may have. Files are the reader's own.
OWN = "transformer_xl"
REQUIRED = (
  "model.num_kv_heads",
  "model.memory_start",
  "model.same_length_window",
  "model.dtype",
  "eval.segment_len",
  "eval.mem_len",
  "score.segment_len",
  "score.mem_len",
  "generate.segment_len",
  "generate.mem_len",
)
# Options that TransfoXL had not and the file for transformers has.
CARRIED = (
  "model.encoding",
  *(field.name for field in fields_lib.walk(rope.Rope.Fields, "model.rope.")),
  "model.project_equal_width",
  "model.norm",
  "model.final_norm",
  "model.feed_forward",
  "model.qk_norm",
)
# The `model_type` of TransfoXL, and of what is exported here.
PUBLISHED_TYPE = "transfo-xl"
MODEL_TYPE = "transformer-xl"
ENCODINGS = ("relative", "rope", "alibi", "none")
# The file with the model, which stands beside this one.
MODELING = "modeling_transformer_xl.py"
_MODEL = "TransformerXLForCausalLM"
# By name: the default of transformers 4.35.2, for a config.json that omits it,
# and our field of the same value.
FIELDS: dict[str, tuple[object, str | None]] = {
  "vocab_size": (267735, "vocab_size"),
  "cutoffs": ([20000, 40000, 200000], None),
  "d_model": (1024, "model_dim"),
  "d_embed": (1024, "embed_dim"),
  "n_head": (16, "num_heads"),
  "d_head": (64, "head_dim"),
  "d_inner": (4096, "ff_dim"),
  "div_val": (4, "div_val"),
  "pre_lnorm": (False, "pre_norm"),
  "n_layer": (18, "num_layers"),
  "mem_len": (1600, None),
  "clamp_len": (1000, None),
  "same_length": (True, None),
  "proj_share_all_but_first": (True, None),
  "attn_type": (0, None),
  "sample_softmax": (-1, None),
  "dropout": (0.1, "dropout_rate"),
  "dropatt": (0.0, "attention_dropout_rate"),
  "untie_r": (True, "untie_biases"),
  "init_std": (0.02, "init_std"),
  "proj_init_std": (0.01, None),
  "layer_norm_epsilon": (1e-5, "layer_norm_epsilon"),
  "tie_word_embeddings": (True, "tie_weights"),
}
# Older versions of transformers wrote it.
_SEGMENT_LEN = "tgt_len"
DEFAULTS = {theirs: default for theirs, (default, _) in FIELDS.items()}
OURS = {theirs: ours for theirs, (_, ours) in FIELDS.items() if ours}


def read(path: str) -> mapping.Source:
  """Reads a folder that `save_pretrained` wrote.

  Raises:
    UserError: a file is missing or damaged, or the model is of another kind.
  """
  fields = read_config(path)
  file = mapping.find(path, WEIGHTS)
  if file is None:
    raise errors.UserError(
      f"{path} has no weights; it needs one of {', '.join(WEIGHTS)}."
    )
  files: tuple[str, ...] = (file,)
  if file.endswith(INDEX):
    tensors, files = _read_shards(file)
  else:
    tensors = _read_tensors(file)
  config_path = os.path.join(path, "config.json")
  if fields["model_type"] in decoders.KINDS:
    return mapping.Source(
      tensors,
      files,
      decoders.model(fields, config_path),
      decoders.lengths(fields, config_path),
      mapping.find(path, (VOCABULARY, *decoders.TOKENIZERS)),
      fields.get(OWN, {}),
      layout=decoders.layout,
    )
  lengths = mapping.Lengths(
    segment_len=fields[_SEGMENT_LEN] or 128,
    mem_len=fields["mem_len"],
    clamp_len=max(fields["clamp_len"], 0),
    same_length=fields["same_length"],
  )
  # Beside an export, vocab.txt has neither the case nor the roles of symbols.
  is_export = fields["model_type"] == MODEL_TYPE
  vocabularies = (VOCABULARY,) if is_export else VOCABULARIES
  return mapping.Source(
    tensors,
    files,
    _model(fields, config_path),
    lengths,
    mapping.find(path, vocabularies),
    fields.get(OWN, {}),
  )


def layout(config: schema.ModelConfig) -> Iterator[mapping.Tensor]:
  """Lists the tensors of a language model with its softmax."""
  return pytorch.layout(config, prefix="transformer.", reverse_clusters=False)


class _Tensors(Mapping[str, np.ndarray]):
  """The tensors of safetensors files, each read when it is asked for.

  No file stays open: what was read of it would count as memory of the process.
  """

  def __init__(self, *paths: str):
    self._files: dict[str, str] = {}
    for path in paths:
      with safetensors.safe_open(path, framework="numpy") as file:
        self._files |= dict.fromkeys(file.keys(), path)

  def __getitem__(self, name: str) -> np.ndarray:
    with safetensors.safe_open(self._files[name], framework="numpy") as file:
      return file.get_tensor(name)

  def __contains__(self, name: object) -> bool:
    return name in self._files  # By default it would be read.

  def __iter__(self) -> Iterator[str]:
    return iter(self._files)

  def __len__(self) -> int:
    return len(self._files)


def read_safetensors(path: str) -> Mapping[str, np.ndarray]:
  """Opens a file of tensors; the format cannot contain code."""
  try:
    return _Tensors(path)
  except (safetensors.SafetensorError, OSError, KeyError) as error:
    raise errors.UserError(
      f"{path} is truncated, damaged or no safetensors file ({error}); copy "
      "it again."
    ) from None


def shards(index: str) -> dict[str, list[str]]:
  """Reads an index: the names of tensors by the name of their file beside it.

  Raises:
    UserError: it is missing or damaged.
  """
  try:
    files = json.loads(pathlib.Path(index).read_text("utf-8"))["weight_map"]
    result: dict[str, list[str]] = {}
    for tensor, file in files.items():
      # Nothing outside the folder, and no pattern.
      if not re.fullmatch(r"\w[\w.-]*", file):
        raise ValueError(f"{file!r} is no name of a file beside it")
      result.setdefault(file, []).append(tensor)
  except (
    *(ValueError, LookupError, TypeError, AttributeError),
    RecursionError,
  ) as error:
    raise errors.UserError(
      f"{index} is damaged ({type(error).__name__}: {error}); restore the file "
      "that save_pretrained wrote."
    ) from None
  return result


def _read_shards(
  index: str,
) -> tuple[Mapping[str, np.ndarray], tuple[str, ...]]:
  """Reads all tensors that an index lists, and names the files read."""
  tensors: dict[str, np.ndarray] = {}
  files = [index]
  for name, listed in shards(index).items():
    path = os.path.join(os.path.dirname(index), name)
    if not os.path.exists(path):
      raise errors.UserError(
        f"{index} names {name}, which is missing; copy it to the same folder."
      )
    found = _read_tensors(path)
    if found.keys() != set(listed):
      different = sorted(found.keys() ^ set(listed))
      raise errors.UserError(
        f"{index} lists other tensors for {name} than are in it "
        f"({different[0]}); copy the whole folder again."
      )
    files.append(path)
    if path.endswith(".bin"):
      tensors |= found
  return tensors or _Tensors(*files[1:]), tuple(files)


def _read_tensors(path: str) -> Mapping[str, np.ndarray]:
  if path.endswith(".bin"):
    return torch_file.read(path).tensors()
  return read_safetensors(path)


def optional_fields() -> tuple[str, ...]:
  """Fields that an export has where they differ from their defaults."""
  own = (
    path
    for path, field in schema.all_fields().items()
    if path.partition(".")[0] in ("seed", "generate", "score")
    and path not in REQUIRED
    and field.names != "file"
  )
  return (*CARRIED, *own)


def own_fields(config: schema.ExperimentConfig) -> mapping.Fields:
  """Fields, by group, that `load` needs and config.json has no names for.

  Fields of `optional_fields` that have their default are left out.
  """
  result: mapping.Fields = {}
  for path in (*REQUIRED, *optional_fields()):
    value = config.value_of(path)
    if path in REQUIRED or value != schema.all_fields()[path].default:
      *groups, name = path.split(".")
      target = result
      for group in groups:
        target = target.setdefault(group, {})
      target[name] = value
  return result


def config_fields(
  config: schema.ModelConfig, lengths: mapping.Lengths
) -> mapping.Fields:
  """Returns the fields of config.json for a model.

  Raises:
    UserError: the file for transformers cannot represent it.
  """
  for name in ("qkv_bias", "scale_embeddings", "softmax_bias"):
    default = schema.all_fields()[f"model.{name}"].default
    if getattr(config, name) != default:
      raise errors.UserError(
        f"model.{name}={getattr(config, name)} can be exported in a model that "
        "is a llama, mistral, qwen2 or qwen3 in all else, and this one is not."
      )
  if config.residual != "add":
    raise errors.UserError(
      f"model.residual={config.residual} cannot be exported; the file for "
      "transformers has add."
    )
  if config.num_memory_tokens:
    raise errors.UserError(
      f"model.num_memory_tokens={config.num_memory_tokens} cannot be exported; "
      "the file for transformers has none."
    )
  if config.encoding not in ENCODINGS:
    raise errors.UserError(
      f"model.encoding={config.encoding} cannot be exported; the file for "
      f"transformers has {', '.join(ENCODINGS)}."
    )
  if not config.attends_everywhere:
    raise errors.UserError(
      f"model.layers={config.layers} cannot be exported; in the file for "
      "transformers all layers attend to one mem_len: ('attention',)."
    )
  style = config.tie_projections
  module = MODELING.removesuffix(".py")
  return {
    "architectures": [_MODEL],
    "auto_map": {
      "AutoConfig": f"{module}.TransformerXLConfig",
      "AutoModelForCausalLM": f"{module}.{_MODEL}",
    },
    "model_type": MODEL_TYPE,
    **DEFAULTS,
    **{theirs: getattr(config, ours) for theirs, ours in OURS.items()},
    "cutoffs": list(config.cutoffs),
    "segment_len": lengths.segment_len,
    "mem_len": lengths.mem_len,
    "clamp_len": lengths.clamp_len or -1,
    "same_length": lengths.same_length,
    "proj_share_all_but_first": style == "all_but_first",
    "tie_projs": mapping.shared_projections(style, len(config.cutoffs) + 1),
  }


def read_config(folder: str) -> mapping.Fields:
  """Reads config.json; fields that it omits have HuggingFace's defaults.

  Raises:
    UserError: it is missing or damaged, or the model is of another kind.
  """
  path = os.path.join(folder, "config.json")
  try:
    fields = json.loads(pathlib.Path(path).read_text("utf-8"))
  except FileNotFoundError:
    raise errors.UserError(
      f"{path} is missing; --format=huggingface needs the folder that "
      "save_pretrained wrote."
    ) from None
  except (ValueError, RecursionError) as error:
    raise errors.UserError(f"{path} is not JSON ({error}).") from None
  kind = fields.get("model_type") if isinstance(fields, dict) else None
  if kind in decoders.KINDS:
    return fields
  if kind not in (PUBLISHED_TYPE, MODEL_TYPE):
    raise errors.UserError(
      f"{path} describes a model of the type {kind!r}; only "
      f"{', '.join((*decoders.KINDS, PUBLISHED_TYPE))} and what was exported "
      "here can be imported."
    )
  for name, default in (DEFAULTS | {_SEGMENT_LEN: 128}).items():
    value = fields.setdefault(name, default)
    allowed = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, allowed):
      raise errors.UserError(
        f"{path} has {name}={value!r}, which must be like {default!r}; restore "
        "the file that save_pretrained wrote."
      )
  _check_lengths(fields, path)
  return fields


def _check_lengths(fields: mapping.Fields, path: str) -> None:
  """Raises a UserError if one of two equal lengths of an export was edited."""
  own = fields.get(OWN)
  score = own.get("score") if isinstance(own, dict) else None
  if not isinstance(score, dict):
    return
  for name in ("segment_len", "mem_len"):
    outer = fields.get(name)
    inner = score.get(name)
    if outer != inner:
      raise errors.UserError(
        f"{path} has {name}={outer} for transformers and {OWN}.score.{name}="
        f"{inner} for this program; make them equal, or restore the file and "
        f"give --config.score.{name}."
      )


def _model(fields: mapping.Fields, path: str) -> mapping.Fields:
  """Fields of our `ModelConfig`."""
  if fields["attn_type"] != 0 or fields["sample_softmax"] > 0:
    raise errors.UserError(
      f"{path} has attn_type={fields['attn_type']} and sample_softmax="
      f"{fields['sample_softmax']}; only relative attention (0) and the full "
      "softmax (-1) can be imported."
    )
  cutoffs = tuple(fields["cutoffs"])
  style = "all_but_first" if fields["proj_share_all_but_first"] else "none"
  tied = mapping.shared_projections(style, len(cutoffs) + 1)
  tied = fields.get("tie_projs", tied)
  if not isinstance(tied, list) or len(tied) != len(cutoffs) + 1:
    raise errors.UserError(
      f"{path} has cutoffs={list(cutoffs)}, which make {len(cutoffs) + 1} "
      f"clusters, and tie_projs={tied!r}, which must be a list of true or "
      "false for each cluster; restore the file that save_pretrained wrote."
    )
  return {
    **{ours: fields[theirs] for theirs, ours in OURS.items()},
    "cutoffs": cutoffs,
    "attention_dropout_rate": float(fields["dropatt"]),
    "tie_projections": mapping.tie_projections(tied),
    "project_equal_width": True,
    "memory_start": "zeros",
    "same_length_window": "mem_len",
  }
