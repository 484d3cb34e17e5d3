"""Models of the Hub, from a local server that speaks its protocol."""

import json
import shutil
import subprocess
import sys

import pytest
import safetensors.numpy

import transformer_xl
from tests import saved_runs
from tests.importers import hub
from tests.importers import stored_files
from transformer_xl.importers import export_run

MAIN, OLD = hub.COMMITS["main"], hub.COMMITS["v1"]
CASES = {
  "a branch": "hf://me/tiny",
  "a tag": "hf://me/tiny@v1",
  "a commit": f"hf://me/tiny@{OLD}",
  "loaded": "load hf://me/tiny",
  "imported": "import huggingface hf://me/tiny",
  "imported as another format": "import pytorch hf://me/tiny",
  "missing": "hf://me/none",
  "gated": "hf://me/gated",
  "no revision": "hf://me/tiny@v9",
  "another kind": "hf://me/bert",
  "no name": "hf://me/tiny/model.safetensors",
  "no weights": "hf://me/empty",
  "spread": "hf://me/spread",
  "spread, loaded": "load hf://me/spread",
  "uploaded": "upload me/pushed FOLDER",
  "loaded again": "load hf://me/pushed",
  "stop": "offline",
  "cached": "hf://me/tiny",
  "not cached": "hf://me/other",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
  """The folder of models, and the result of each case."""
  folder = tmp_path_factory.mktemp("hub")
  run = saved_runs.write(tmp_path_factory.mktemp("run"))
  export_run.export(run, str(folder / "me" / "tiny" / "main"))
  tiny = folder / "me" / "tiny"
  (tiny / "main" / "train.bin").write_bytes(b"not needed")
  shutil.copytree(tiny / "main", tiny / "v1")
  for name in ("bert", "gated", "empty", "spread"):
    shutil.copytree(tiny / "main", folder / "me" / name / "main")
  (folder / "me/empty/main/model.safetensors").unlink()
  stored_files.spread(folder / "me/spread/main/model.safetensors")
  (folder / "me/bert/main/config.json").write_text('{"model_type": "bert"}')
  # The tag has weights of the kind that is second choice, and cannot be read.
  (tiny / "v1" / "model.safetensors").rename(tiny / "v1" / "pytorch_model.bin")
  finished = subprocess.run(
    [
      *(sys.executable, "-m", "tests.importers.hub", str(folder)),
      str(tmp_path_factory.mktemp("cache")),
    ],
    input=json.dumps(
      [one.replace("FOLDER", str(tiny / "main")) for one in CASES.values()]
    ),
    capture_output=True,
    text=True,
    check=False,
  )
  assert finished.returncode == 0, finished.stderr
  results = json.loads(finished.stdout)
  return tiny, dict(zip(CASES, results, strict=True))


def test_a_branch_is_pinned_and_only_what_is_needed_comes(served):
  _, results = served
  found = results["a branch"]
  assert found["address"] == f"hf://me/tiny@{MAIN}"
  assert found["files"] == [
    *("config.json", "meta.json", "model.safetensors", "vocabulary"),
    "vocabulary",
  ]
  assert "GET /api/models/me/tiny/revision/main" in found["asked"]
  assert f"GET /me/tiny/resolve/{MAIN}/model.safetensors" in found["asked"]


def test_weights_of_pytorch_come_if_there_are_no_others(served):
  _, results = served
  for name in ("a tag", "a commit"):
    assert results[name]["address"] == f"hf://me/tiny@{OLD}"
    assert "pytorch_model.bin" in results[name]["files"]
  assert (
    f"HEAD /me/tiny/resolve/{OLD}/pytorch_model.bin"
    in (results["a tag"]["asked"])
  )
  assert results["a commit"]["asked"] == []  # All is in the cache.


def test_files_that_an_index_names_come(served):
  _, results = served
  names = {"model.safetensors.index.json", "a.safetensors", "b.safetensors"}
  assert names < set(results["spread"]["files"])
  assert results["spread, loaded"]["nll"] == results["loaded"]["nll"]


def test_a_model_of_the_hub_scores_as_its_folder(served):
  tiny, results = served
  (score,) = transformer_xl.load(tiny / "main").score(["abc"])
  assert results["loaded"]["nll"] == score.nll
  assert results["loaded"]["source"] == f"hf://me/tiny@{MAIN}"
  assert safetensors.numpy.load_file(tiny / "main" / "model.safetensors")


def test_a_model_of_the_hub_is_imported(served):
  results = served[1]
  assert results["imported"]["nll"] == results["loaded"]["nll"]
  assert results["imported"]["source"] == f"hf://me/tiny@{MAIN}"


def test_what_is_uploaded_is_loaded(served):
  tiny, results = served
  assert results["uploaded"]["status"] == 0, results["uploaded"]["output"]
  assert results["loaded again"]["nll"] == results["loaded"]["nll"]
  names = {path.name for path in (tiny.parent / "pushed/main").iterdir()}
  assert {"modeling_transformer_xl.py", "tokenizer.json"} < names


def test_without_network_the_cache_answers(served):
  _, results = served
  assert results["stop"] is None
  assert results["cached"]["address"] == f"hf://me/tiny@{MAIN}"
  assert results["cached"]["asked"] == []


@pytest.mark.parametrize(
  ("case", "says"),
  [
    ("missing", "hf://me/none does not exist or is private"),
    ("gated", "hf://me/gated is gated: accept its terms"),
    ("no revision", "hf://me/tiny has no revision 'v9'"),
    ("another kind", "the type 'bert'; only llama, mistral"),
    ("no name", "is not a name on the Hub"),
    ("imported as another format", "the HuggingFace Hub: set --format=huggi"),
    ("no weights", "has no weights"),
    ("not cached", "not in the cache, and http://127.0.0.1"),
  ],
)
def test_a_failure_is_one_line(served, case, says):
  found = served[1][case]
  assert says in found["error"]
  assert "\n" not in found["error"]
  weights = [path for path in found["asked"] if "model.safetensors" in path]
  assert not weights  # Nothing large was asked for in vain.
