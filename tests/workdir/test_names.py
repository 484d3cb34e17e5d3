"""A workdir may have any name; the few that cannot work are refused at once."""

import functools
import json
import os

import jax.numpy as jnp
import pytest
import tensorstore

import transformer_xl
from tests import corpus
from tests import shared_programs
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis import study
from transformer_xl.config import load as load_lib
from transformer_xl.evaluation import evaluate
from transformer_xl.importers import export_run
from transformer_xl.importers import import_run
from transformer_xl.training import loop
from transformer_xl.workdir import params_reader
from transformer_xl.workdir import params_writer

# What shells, globs, addresses, formats and other programs give a meaning to.
NAMES = (
  "run[lr=1]",
  "[[]a-z]",
  "a*b?c",
  "]a[",
  "100%25 of {x,y}",
  "日本 rün \U0001f600",
  'it\'s "quoted"',
  "$HOME ~ `id` & | ;",
  "...",
  ".hidden.",
  "gs:a::b#c",
  "-dash",
  "new\nline\t\x01",
  "x" * 200,
  "ocdbt.process_0",
  "5.orbax-checkpoint-tmp",
)
REFUSED = {  # What is said of it.
  "back\\slash": "has a backslash",
  "back\\": "has a backslash",
  "run.__lock": "ends in .__lock",
  "logs:": "ends in gs:",
  "lat\udcfcin": "is not UTF-8",
  "/".join(["deep"] * (os.pathconf("/", "PC_PATH_MAX") // 5 - 100)): (
    "bytes, more than"
  ),
}


@pytest.fixture(scope="module", autouse=True)
def programs_are_shared():
  with shared_programs.sharing():
    yield


@pytest.mark.some(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_any_name_trains_resumes_and_is_evaluated(
  tmp_path, data_dir, name
):
  workdir = str(tmp_path / name / "run")
  for num_steps in (4, 8):
    config = corpus.config(
      data_dir,
      **{"train.num_steps": num_steps, "train.eval_every_steps": 4},
    )
    assert loop.train(config, workdir) == num_steps
  lines = (tmp_path / name / "run" / "metrics.jsonl").read_text().splitlines()
  steps = [json.loads(line)["step"] for line in lines]
  assert steps == [2, 4, 4, 6, 8, 8]  # Validations at 4 and 8.
  assert evaluate.load(config, workdir).step == 8


@pytest.mark.rest
@pytest.mark.parametrize("name", ["run[lr=1]", "it's *?", "x" * 240])
def test_all_that_reads_or_makes_runs_takes_any_name(tmp_path, data_dir, name):
  root = tmp_path / name
  config = corpus.config(data_dir, **{"train.num_steps": 4})
  assert loop.train(config, str(root / "run")) == 4
  started = load_lib.replaced(config, {"train.init_from": str(root / "run")})
  assert loop.train(started, str(root / "second")) == 4
  export_run.run(
    config,
    str(root / "run"),
    target=str(root / f"1{name}"),
    format="transformers",
  )
  import_run.make(
    import_run.Request("huggingface", str(root / f"1{name}")), str(root / name)
  )
  scores = [
    transformer_xl.load(str(root / folder)).score(["abc def"])[0].nll
    for folder in ("run", f"1{name}", name)
  ]
  assert scores == [scores[0]] * 3
  compared = load_lib.replaced(
    config, {"analysis.variants": ("base: ", "b: train.learning_rate=0.02")}
  )
  study.run(compared, str(root / "study"))
  assert (root / "study" / "base" / "checkpoints" / "4").is_dir()


def save(folder):
  params = {"kernel": jnp.ones((2, 3))}
  params_writer.save(folder, params, step=1)


def read(folder):
  """Reads a run that somebody has moved here."""
  os.makedirs(f"{folder}/checkpoints/1")
  params_reader.restore(folder, which=params_reader.Which("latest"), target={})


CALLS = {
  "at the start": storage.require_checkpoint_path,
  "saving": save,
  "reading": read,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REFUSED, ids=REFUSED.values())
def test_a_name_that_no_checkpoint_can_have_is_refused(tmp_path, name, call):
  with pytest.raises(errors.UserError, match=REFUSED[name]) as caught:
    CALLS[call](f"{tmp_path}/{name}/run")
  text = str(caught.value)
  assert text.endswith("; rename it, or name another folder.")
  assert "\n" not in text


def test_in_a_bucket_a_backslash_is_a_letter_and_no_address_is_allowed():
  storage.require_checkpoint_path("gs://bucket/back\\slash[1]/run.__lock")
  with pytest.raises(errors.UserError, match="ends in gs:"):
    storage.require_checkpoint_path("gs://bucket/logs:/run")


@pytest.mark.rest
@pytest.mark.parametrize("name", ["run[lr=1]", "a*b?c", "back\\slash"])
def test_a_bucket_has_checkpoints_of_any_name(bucket, name):
  workdir = f"{bucket}/{name}"
  save(workdir)
  params, step = params_reader.restore(
    workdir,
    which=params_reader.Which("latest"),
    target={"kernel": jnp.zeros((2, 3))},
  )
  assert step == 1
  assert float(params["kernel"].sum()) == 6


def test_what_tensorstore_takes_for_another_path_is_refused(tmp_path):
  """By a list of rules; the library itself says which paths it changes."""
  for code in range(1, 128):
    for name in (f"a{chr(code)}b", chr(code), f"{chr(code)}.__lock"):
      path = os.path.abspath(f"{tmp_path}/{name}/run")
      try:
        spec = {"driver": "file", "path": path}
        is_same = tensorstore.KvStore.Spec(spec).to_json()["path"] == path
      except ValueError:
        is_same = False
      refuses = functools.partial(storage.require_checkpoint_path, path)
      if is_same:
        refuses()
      else:
        with pytest.raises(errors.UserError):
          refuses()
