"""Meshes of two, four and eight devices against one; what is split."""

import re

import jax
import pytest
from jax import P

from tests import comparison
from tests import corpus
from tests import kinds
from tests import oracles
from tests import own_process
from tests import tiny
from transformer_xl import errors
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.model import network
from transformer_xl.model import parameters
from transformer_xl.model import reader as reader_lib
from transformer_xl.training import programs

MESHES = ("data", "fsdp", "tensor", "mixed", "accumulation")
FEWER = {"two": 2, "four": 4}
# What an optimizer keeps of each parameter.
KEPT = {"adam": ("mu", "nu")}


# `accumulation`, `adaptive` and `evaluations` are also in `test_uneven_lanes`.
REST = (
  *("data", "fsdp", "tensor", "accumulation", "adaptive", "collectives"),
  *("compressed", "evaluations", "mixers", "mixers_evaluations", "initial"),
  *FEWER,
)


def marked(names):
  """Some meshes are always tried, the others in `make test-all`."""
  return [
    pytest.param(name, marks=pytest.mark.rest if name in REST else ())
    for name in names
  ]


class Results(dict):
  """What `tests/sharded.py` finds; a group is run when it is asked for."""

  def __init__(self, make_folder):
    self.make_folder = make_folder

  def __missing__(self, name):
    group = "others" if name in REST else "characteristic"
    folder = self.make_folder("sharded")
    self.update(own_process.result("sharded", folder, group))
    return self[name]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
  return Results(tmp_path_factory.mktemp)


@pytest.mark.slow
@pytest.mark.parametrize(
  "mesh", marked([*MESHES, *FEWER, "compressed", "mixers"])
)
def test_every_mesh_makes_the_updates_of_one_device(result, mesh):
  assert result[mesh]["devices"] == FEWER.get(mesh, 8)
  assert result["moved"] > 1e-2
  # The same sums in another order. SGD does not magnify their rounding.
  assert result[mesh]["loss"] < 20 * comparison.FLOAT32
  assert result[mesh]["parameters"] < 20 * comparison.FLOAT32


@pytest.mark.slow
def test_parameters_do_not_depend_on_where_they_are_drawn(result):
  assert result["drawn"] == 0


@pytest.mark.rest
@pytest.mark.slow
def test_parameters_of_another_run_are_split_as_those_of_the_mesh(result):
  found = result["initial"]
  # The table of the tail has 7 rows in the source, and 8 with a new symbol.
  assert found["whole"]["shards"] == {"table_0": [16, 16], "table_1": [8, 8]}
  assert found["halves"]["shards"] == {"table_0": [4, 16], "table_1": [2, 8]}
  assert found["whole"]["sha256"] == found["halves"]["sha256"]
  # Means of rows of size 1, in another order.
  assert found["moved"] < 10 * comparison.FLOAT32


@pytest.mark.rest
@pytest.mark.slow
def test_arrays_are_split_on_either_axis_alone(result):
  whole = {"query": [2, 16, 16], "output": [2, 16, 16], "table_0": [16, 16]}
  data, fsdp = (result[name]["shards"] for name in ("data", "fsdp"))
  assert {name: data[name] for name in whole} == whole
  assert fsdp["query"] == [2, 2, 16]
  assert fsdp["output"] == [2, 16, 2]
  assert fsdp["table_0"] == [2, 16]


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.skipif(
  jax.__version_info__ >= (0, 12),
  reason="This XLA keeps no names of what gathers the slices of parameters.",
)
def test_every_collective_has_the_name_of_what_needs_it(result):
  found = result["collectives"]
  assert len(found) > 20
  assert all('op_name="jit(train_chunk)/' in line for line in found)
  gathered = [line for line in found if " all-gather(" in line]
  parts = re.compile("/(embedding|layers|head|softmax|tail_1|optimizer)/")
  assert len(gathered) > 10
  assert not [line for line in gathered if not parts.search(line)]


@pytest.mark.slow
def test_arrays_are_split_and_stay_so(result):
  mixed = result["mixed"]["shards"]
  assert mixed["query"] == [2, 8, 8]
  assert mixed["output"] == [2, 8, 8]
  assert mixed["table_0"] == [4, 16]
  assert mixed["bias"] == [23]  # Nothing divides it.


@pytest.mark.slow
@pytest.mark.parametrize("mesh", marked(["data", "fsdp", "tensor", "mixed"]))
def test_lanes_are_split_and_stay_so(result, mesh):
  lanes = {"data": 2, "fsdp": 2, "tensor": 4, "mixed": 4}[mesh]
  assert result[mesh]["shards"]["memory"] == [2, lanes, 8, 16]
  assert result[mesh]["shards"]["length"] == [lanes]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", marked(MESHES))
def test_the_old_state_and_memory_are_given_away(result, mesh):
  assert result[mesh]["all_given_away"]


@pytest.mark.slow
def test_a_checkpoint_of_eight_devices_goes_on_on_four(result):
  assert result["restored"]["devices"] == [4, 5, 6, 7]
  assert result["restored"]["step"] == 6
  assert result["restored"]["loss"] < 20 * comparison.FLOAT32
  assert result["restored"]["parameters"] < 20 * comparison.FLOAT32


@pytest.mark.rest
@pytest.mark.slow
def test_evaluation_is_the_same_on_every_mesh_and_by_either_memory(result):
  found = result["evaluations"]
  expected = found["data"]["hidden"]
  # Sums of the same float32 numbers in another order.
  for losses in found.values():
    assert losses["hidden"] == pytest.approx(expected, rel=2e-6)
    assert losses["key_value"] == pytest.approx(expected, rel=2e-6)
  # Lanes and heads, width, slots (of 12 in segments of 8, and one more).
  for name in ("data", "tensor", "mixed"):
    assert found[name]["shard"] == [8, 4, 24]


@pytest.mark.rest
@pytest.mark.slow
def test_evaluation_of_every_mixer_is_the_same_on_a_mesh(result):
  found = result["mixers_evaluations"]
  expected = found["data"]["hidden"]
  for losses in found.values():
    assert losses["hidden"] == pytest.approx(expected, rel=2e-6)
    assert losses["key_value"] == pytest.approx(expected, rel=2e-6)


@pytest.mark.rest
@pytest.mark.slow
def test_evaluation_that_learns_is_the_same_on_a_mesh(result):
  alone, mixed = (result["adaptive"][name] for name in ("alone", "mixed"))
  # Sums in another order, in some twenty updates by SGD.
  assert mixed["nll"] == pytest.approx(alone["nll"], rel=1e-5)
  # Each lane has a copy of its own, which `tensor` alone splits.
  assert alone["query"] == [4, 2, 16, 16]
  assert mixed["query"] == [1, 2, 16, 8]


def mesh_config(**updates):
  values = {"mesh." + name: value for name, value in updates.items()}
  return load.from_config_dict(tiny.config_dict(**values)).mesh


@pytest.mark.parametrize(
  ("axes", "says"),
  [
    ({"data": 3}, "must use all 1 devices"),
    ({"fsdp": 2}, "mesh.fsdp=2"),
    ({"tensor": 2}, "that divides 1: 1\\."),
    ({"data": 2, "tensor": 2}, "--config.mesh.data=-1"),
  ],
)
def test_a_mesh_of_other_than_all_devices_is_one_line(axes, says):
  with pytest.raises(errors.UserError, match=says) as caught:
    mesh_lib.make_mesh(mesh_config(**axes))
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("optimizer", "kept"), KEPT.items())
def test_what_the_optimizer_keeps_is_split_as_its_parameters(
  optimizer, kept, tmp_path
):
  updates = {"train.ema_decay": 0.9, "train.optimizer": optimizer}
  config = corpus.config(corpus.write(tmp_path), **updates)
  mesh = mesh_lib.make_mesh(config.mesh)
  state, _ = programs.sharded_abstract_state(config.recipe, mesh)
  names = (*kept, "average", "params")
  found = {name: {} for name in names}
  for path, leaf in jax.tree_util.tree_leaves_with_path(state):
    text = jax.tree_util.keystr(path, simple=True, separator="/")
    for name in names:
      prefix, is_there, rest = text.partition(f"{name}/")
      if is_there and (prefix == "" or name in kept):
        found[name][rest] = leaf.sharding.spec
  assert any(
    spec != jax.sharding.PartitionSpec() for spec in found["params"].values()
  )
  assert all(found[name] == found["params"] for name in names)


@pytest.mark.parametrize(
  ("sides", "axes", "shards"),
  [
    ((20, 6), (1, 4, 1), (5, 6)),  # Words, where they divide.
    ((7, 128), (1, 4, 1), (7, 32)),  # Else the width.
    ((6, 128), (1, 4, 2), (3, 32)),  # Words on one axis, width on the other.
    ((7, 64), (1, 4, 1), (7, 64)),  # But not where it is narrow.
    ((7, 130), (1, 4, 1), (7, 130)),  # Neither divides.
  ],
)
def test_a_table_is_split_by_words_or_else_by_width(sides, axes, shards):
  mesh = jax.sharding.AbstractMesh(axes, mesh_lib.AXES)
  tree = {"embedding": {"table_0": jax.ShapeDtypeStruct(sides, "float32")}}
  splits = {("embedding", "table_0"): mesh_lib.Split("table")}
  place = mesh_lib.shardings(mesh, tree, splits)["embedding"]["table_0"]
  assert place.shard_shape(sides) == shards


OTHERS = [name for name in registry.mixers if name != kinds.USUAL]
MIXED_LAYERS = {
  "layers": ("attention", *OTHERS),
  "num_layers": 1 + len(OTHERS),
  "cutoffs": (16,),
  "div_val": 2,
  "untie_biases": True,
}
# Of layers without the axis in front that stacks them.
SPECS = {
  "embedding/table_0": P(("tensor", "fsdp")),
  "embedding/projection_1": P(None, "fsdp"),
  "softmax/cluster_kernel": P(),
  "layers/0/attention/query": P("fsdp", "tensor"),
  "layers/0/attention/position": P("fsdp", "tensor"),
  "layers/0/attention/output": P("tensor", "fsdp"),
  "layers/0/attention/content_bias": P("tensor"),
  "layers/0/feed_forward/in_kernel": P("fsdp", "tensor"),
  "layers/0/feed_forward/in_bias": P("tensor"),
  "layers/0/feed_forward/out_kernel": P("tensor", "fsdp"),
  "layers/0/feed_forward/out_bias": P(),
  "layers/0/mixer_norm/scale": P(),
  **{
    f"layers/{place}/{name}/{path}": P(*axes)
    for place, name in enumerate(OTHERS, 1)
    for path, axes in oracles.get(name, "SPLITS", {}).items()
  },
}


def by_path(shardings):
  """The specs of shardings by path, without the axes at their ends."""
  found = {}
  for path, sharding in jax.tree_util.tree_leaves_with_path(shardings):
    axes = list(sharding.spec)
    while axes and axes[-1] is None:
      axes.pop()
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    found[name] = P(*axes)
  return found


def test_every_kind_of_parameter_is_split_as_it_says_where_it_is_made():
  config = tiny.model_config(model_dim=16, ff_dim=16, **MIXED_LAYERS)
  mesh = jax.sharding.AbstractMesh((2, 2, 2), mesh_lib.AXES)
  splits = network.splits(config)
  params = network.abstract_params(config)
  found = by_path(mesh_lib.shardings(mesh, params, splits))
  expected = {
    name: P(None, *spec) if name.startswith("layers") and spec else spec
    for name, spec in SPECS.items()
  }
  assert {name: found[name] for name in SPECS} == expected


def test_layers_that_are_read_one_by_one_are_split_without_the_stacked_axis():
  """But what streaming attention makes of its parameters is whole."""
  config = tiny.model_config(model_dim=16, ff_dim=16, **MIXED_LAYERS)
  reader = reader_lib.Reader(
    config, mem_len=4, segment_len=2, clamp_len=0, same_length=False
  )
  params = network.abstract_params(config)
  frozen = jax.eval_shape(reader.freeze, params)
  mesh = jax.sharding.AbstractMesh((2, 2, 2), mesh_lib.AXES)
  shardings = reader.shardings(mesh, frozen)
  found = by_path({"layers": shardings.layers, **shardings.outside})
  expected = dict(SPECS)
  of_attention = [name for name in SPECS if "/attention/" in name]
  for name in of_attention:
    del expected[name]
  expected["layers/0/attention/output"] = P()
  assert {name: found[name] for name in expected} == expected


def test_a_word_that_splits_nothing_is_one_line():
  with pytest.raises(errors.UserError, match="'colums'; give one of whole, c"):
    parameters.with_split(jax.nn.initializers.zeros, "colums")(None, (2, 2))
