"""A small run is the stored one, and faults of a run are found."""

import types

import jax
import numpy as np
import pytest

from tests import own_process
from transformer_xl import mesh as mesh_lib
from transformer_xl import storage
from transformer_xl.check import on_mesh
from transformer_xl.check import small_run
from transformer_xl.config import schema
from transformer_xl.workdir import checkpoint


@pytest.fixture(scope="module")
def mesh():
  one = schema.MeshConfig(data=1, fsdp=1, tensor=1)
  return mesh_lib.make_mesh(one, devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def whole(mesh):
  with on_mesh.exact_products("float32"):
    return small_run.train("float32", mesh)


def test_a_run_is_the_stored_one(mesh, whole):
  expected = small_run.read_reference()["float32"]
  findings = small_run.compare(whole, expected, "float32", mesh)
  assert [str(found) for found in findings if not found.passed] == []
  assert [found.part for found in findings] == [
    "training",
    "evaluation",
    "generation",
  ]


def test_another_loss_evaluation_or_token_is_found(mesh, whole):
  """Each by so little that a plot would not show it."""
  expected = small_run.read_reference()["float32"]
  tokens = whole.tokens.copy()
  tokens[-1] += 1
  changed = {
    "training": whole._replace(losses=whole.losses * (1 + 1e-4)),
    "evaluation": whole._replace(evaluation=whole.evaluation * (1 + 1e-4)),
    "generation": whole._replace(tokens=tokens),
    "nothing else": whole._replace(losses=whole.losses * np.nan),
  }
  wrong = {
    name: [
      found.part
      for found in small_run.compare(run, expected, "float32", mesh)
      if not found.passed
    ]
    for name, run in changed.items()
  }
  assert wrong == {
    "training": ["training"],
    "evaluation": ["evaluation"],
    "generation": ["generation"],
    "nothing else": ["training"],
  }


@pytest.mark.rest
@pytest.mark.slow
def test_a_run_resumes_bit_for_bit(mesh, whole, tmp_path):
  with on_mesh.exact_products("float32"):
    resumed = small_run.train("float32", mesh, workdir=str(tmp_path))
  assert small_run.compare_resumed(resumed, whole).error == 0
  assert list(tmp_path.iterdir()) == []


@pytest.mark.rest
@pytest.mark.slow
def test_a_run_resumes_from_a_bucket_and_leaves_nothing(mesh, whole, bucket):
  with on_mesh.exact_products("float32"):
    resumed = small_run.train("float32", mesh, workdir=bucket)
  assert small_run.compare_resumed(resumed, whole).error == 0
  assert not storage.names(bucket)


@pytest.mark.rest
@pytest.mark.slow
def test_a_resume_without_its_memory_is_found(
  mesh, whole, tmp_path, monkeypatch
):
  restore = checkpoint.Checkpoints.restore_newest

  def forget(self, state, memory):
    run = restore(self, state, memory)
    empty = run.memory._replace(length=run.memory.length * 0)
    return run._replace(memory=empty)

  monkeypatch.setattr(checkpoint.Checkpoints, "restore_newest", forget)
  with on_mesh.exact_products("float32"):
    resumed = small_run.train("float32", mesh, workdir=str(tmp_path))
  assert not small_run.compare_resumed(resumed, whole).passed


@pytest.mark.parametrize("repeats", [True, False])
def test_a_gpu_whose_runs_differ_does_not_compare_a_resumed_one(
  monkeypatch, whole, repeats
):
  other = whole._replace(losses=whole.losses + 1)
  runs = iter([whole, other, whole if repeats else other])
  monkeypatch.setattr(small_run, "train", lambda *_, **__: next(runs))
  monkeypatch.setattr(small_run, "compare", lambda *_: [])
  gpu = types.SimpleNamespace(platform="gpu")
  mesh = types.SimpleNamespace(devices=np.array([gpu]))
  [found] = small_run.check_run("float32", mesh, "workdir")
  assert found.is_compared == repeats
  assert found.passed != repeats
  assert (f"differ in {len(whole.losses)} arrays" in found.case) != repeats


@pytest.mark.rest
@pytest.mark.slow
def test_meshes_compute_the_same_and_a_dropped_all_reduce_is_found(tmp_path):
  found = own_process.result("check.on_meshes", tmp_path)
  assert found["wrong"] == []
  assert found["meshes"] == ["mesh of data 4", "mesh of fsdp 2, tensor 2"]
  assert max(found["errors"].values()) > 0
  assert {"training", "evaluation"} <= {*found["wrong without the all-reduce"]}
