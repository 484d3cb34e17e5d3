"""Imports that must fail: one line each, and nothing is written."""

import json
import os
import shutil
from unittest import mock

import pytest
import safetensors.numpy

from tests.importers import stored_files
from tests.parity import configurations
from tests.parity import ours
from transformer_xl import errors
from transformer_xl.formats import torch_file
from transformer_xl.importers import export_run
from transformer_xl.importers import huggingface
from transformer_xl.importers import import_run
from transformer_xl.importers import mapping


def write_huggingface(folder, **changes):
  """A folder as `save_pretrained` writes it, with some fields changed."""
  drawn = configurations.draw(5)
  folder.mkdir()
  export_run.write_weights(
    str(folder / "model.safetensors"), ours.draw_params(drawn), drawn.model
  )
  fields = huggingface.config_fields(
    drawn.model, mapping.Lengths(4, 4, 0, True)
  )
  fields["model_type"] = huggingface.PUBLISHED_TYPE
  (folder / "config.json").write_text(json.dumps(fields | changes))
  stored_files.write_words(folder, drawn.model.vocab_size)
  return folder


def truncate(path):
  path.write_bytes(path.read_bytes()[:-20])


def rename_a_tensor(path):
  tensors = safetensors.numpy.load_file(path)
  tensors["crit.other"] = tensors.pop("crit.cluster_bias")
  safetensors.numpy.save_file(tensors, path)


def untie(path):
  tensors = safetensors.numpy.load_file(path)
  name = "word_emb.emb_layers.1.weight"
  tensors["crit.out_layers.1.weight"] = tensors[f"transformer.{name}"] + 1
  safetensors.numpy.save_file(tensors, path)


def lose_a_number(path):
  tensors = safetensors.numpy.load_file(path)
  tensors["crit.cluster_bias"][0] = float("nan")
  safetensors.numpy.save_file(tensors, path)


def lose_a_shard(path):
  stored_files.spread(path)
  path.with_name("b.safetensors").unlink()


def mix_shards(path):
  index = stored_files.spread(path)
  listed = json.loads(index.read_text())
  listed["weight_map"]["crit.cluster_bias"] = "b.safetensors"
  index.write_text(json.dumps(listed))


def point_outside(path):
  index = stored_files.spread(path)
  index.write_text(index.read_text().replace("b.safe", "../b.safe"))


def list_nothing(path):
  stored_files.spread(path).write_text("{}")


@pytest.mark.parametrize(
  ("changes", "damage", "message"),
  [
    ({}, truncate, "truncated, damaged or no safetensors"),
    ({}, os.remove, "has no weights"),
    (
      {},
      rename_a_tensor,
      r"1 \(crit.cluster_bias\) missing, 1 \(crit.other\) unused",
    ),
    ({}, lose_a_number, r"^1 of the \d+ numbers of crit.cluster_bias are inf"),
    ({"tie_word_embeddings": True}, untie, "should be shared but have"),
    ({"d_inner": 999}, None, "has the shape"),
    ({"n_layer": 7}, None, "missing"),
    ({"n_layer": 1}, None, "unused"),
    ({"model_type": "bert"}, None, "of the type 'bert'"),
    ({"attn_type": 1}, None, r"config\.json has attn_type=1"),
    ({"tie_projs": [True, False, True]}, None, "shares the projections"),
    ({"d_model": "wide"}, None, "d_model='wide'"),
    ({"vocab_size": 30}, None, "has the shape"),
    ({"vocab_size": 10**9, "d_model": 10**9}, None, "has the shape"),
    ({"n_head": 2**30, "d_head": 2**30}, None, "not fit into memory"),
    ({"n_layer": 10**7}, None, "has 10000000 layers, but there"),
    ({"tgt_len": "abc"}, None, "tgt_len='abc'"),
    ({"tie_projs": 5}, None, "tie_projs=5, which must be a list"),
    ({"tie_projs": [False]}, None, "which must be a list of true"),
    ({"tie_projs": None}, None, "tie_projs=None, which must be a list"),
    ({"div_val": True}, None, "describes no model|div_val"),
    ({"cutoffs": ["a"]}, None, r"cutoffs=\['a'\], which make 2 clusters, and"),
    ({"cutoffs": [5]}, None, r"cutoffs=\[5\], which make 2 clusters, and"),
    ({"cutoffs": [5, 9, 12]}, None, "which make 4 clusters, and tie_projs"),
    ({"cutoffs": [9, 5]}, None, "cutoffs must rise"),
    ({}, lose_a_shard, "json names b.safetensors, which is missing; copy it"),
    (
      {},
      mix_shards,
      r"other tensors for b.safetensors .*\(crit.cluster_bias\)",
    ),
    ({}, point_outside, r"index.json is damaged .*'\.\./b.safetensors' is no"),
    ({}, list_nothing, "index.json is damaged .*KeyError: 'weight_map'"),
  ],
)
def test_a_wrong_folder_ends_in_one_line(tmp_path, changes, damage, message):
  folder = write_huggingface(tmp_path / "folder", **changes)
  if damage is not None:
    damage(folder / "model.safetensors")
  refuse(tmp_path, message, format_name="huggingface", source=str(folder))


@pytest.mark.parametrize(
  ("options", "message"),
  [
    # A file of another format.
    ({"format_name": "tensorflow", "source": "hf"}, "model.ckpt|is missing"),
    ({"format_name": "huggingface", "source": "tf"}, "config.json is missing"),
    ({"format_name": "pytorch", "source": "tf"}, "model.pt is missing"),
    ({"format_name": "pytorch", "source": "hf/model.safetensors"}, "pickled"),
    ({"format_name": "pytorch", "source": "hf/nothing"}, "is missing"),
    # Options that contradict each other.
    ({"format_name": "tensorflow", "published": "wt103"}, "num_layers is 2"),
    ({"format_name": "tensorflow", "cutoffs": (3,)}, "--cutoffs and"),
    ({"format_name": "tensorflow", "vocabulary": "hf/vocab.txt"}, "symbols"),
    ({"format_name": "tensorflow", "vocabulary": "none"}, "is missing"),
    ({"format_name": "tensorflow", "vocabulary": "hf/config.json"}, "symbols"),
  ],
)
def test_wrong_options_end_in_one_line(tmp_path, options, message):
  write_huggingface(tmp_path / "hf")
  shutil.copytree(stored_files.tensorflow("wt103"), tmp_path / "tf")
  options = {"source": "tf"} | options
  for name in {"source", "vocabulary"} & options.keys():
    options[name] = str(tmp_path / options[name])
  refuse(tmp_path, message, **options)


def test_data_of_another_model_are_refused(tmp_path):
  folder = shutil.copytree(stored_files.tensorflow("wt103"), tmp_path / "tf")
  info = {"vocab_size": 23, "cutoffs": [0, 7, 14, 23], "dataset": "wt103"}
  (folder / "corpus-info.json").write_text(json.dumps(info))
  refuse(tmp_path, "belong to", format_name="tensorflow", source=str(folder))


def test_a_source_without_vocabulary_is_refused(tmp_path):
  refuse(
    tmp_path,
    "--vocabulary=PATH",
    format_name="pytorch",
    source=str(stored_files.ORIGINAL / "model.pt"),
  )


@pytest.mark.parametrize("name", ["r_w_bias", "word_emb.emb_layers.0.weight"])
def test_other_attention_of_the_original_code_is_refused(
  tmp_path, monkeypatch, name
):
  """Its attn_type 1 has biases for each layer in one array."""
  read = torch_file.read

  def changed(path):
    file = read(path)
    tensors = {**file.tensors()}
    (key,) = [key for key in tensors if key.endswith(name)]
    tensors[key] = tensors[key][None]
    return mock.Mock(tensors=lambda: tensors, attributes=file.attributes)

  monkeypatch.setattr(torch_file, "read", changed)
  refuse(
    tmp_path,
    "relative attention .* must have two axes",
    format_name="pytorch",
    source=str(stored_files.ORIGINAL / "model.pt"),
  )


def refuse(folder, message, **options):
  """Asserts that the import fails with one line and writes nothing."""
  before = sorted(os.listdir(folder))
  with pytest.raises(errors.UserError, match=message) as caught:
    import_run.make(import_run.Request(**options), str(folder / "run"))
  assert "\n" not in str(caught.value)
  assert sorted(os.listdir(folder)) == before
