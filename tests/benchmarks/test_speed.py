"""The speed benchmarks run, at sizes too small to measure."""

import dataclasses
import subprocess

import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import ours
from benchmarks import side_by_side
from benchmarks import speed
from benchmarks import workload
from tests import kinds
from transformer_xl import errors
from transformer_xl import hardware

TINY = {
  "num_layers": 1,
  "model_dim": 8,
  "num_heads": 2,
  "ff_dim": 8,
  "vocab_size": 11,
  "batch_size": 2,
  "mem_len": 6,
}


def tiny(task):
  work = dataclasses.replace(workload.TASKS[task], **TINY)
  if task == "generate":
    return work
  return dataclasses.replace(work, segment_len=4)


@pytest.mark.some(1)
@pytest.mark.parametrize("task", workload.TASKS)
def test_every_task_runs_repeatedly(task):
  runner = ours.make(tiny(task), count=2)
  losses = [runner() for _ in range(2)]
  if task == "train":
    assert losses[1] < losses[0]  # Trained on the same tokens again.
  assert runner.peak_bytes > 0


def test_encodings_take_turns_and_make_a_table(monkeypatch):
  turns = []

  def make(work, *, count):
    def run():
      turns.append(work.encoding)

    run.compile_seconds, run.peak_bytes = 0.0, count
    return run

  monkeypatch.setattr(ours, "make", make)
  compared = ["relative", kinds.encoding(rotates=True)]
  results = [
    result
    for task in workload.TASKS
    for result in speed.compare(tiny(task), encodings=compared, rounds=2)
  ]
  assert turns == 3 * 2 * compared
  assert results[0]["times_as_long"] == 1
  rows = speed.table(results).splitlines()
  first = [row.split(" | ")[0] for row in rows[2:]]
  assert first == [f"| {name}" for name in compared]
  assert {row.count("|") for row in rows} == {8}


@pytest.fixture(scope="module")
def tiny_case():
  """Flags of the side by side, and a case that takes no time."""
  side_by_side.define_flags()
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(side_by_side.CASES, "tiny", (tiny("train"), 1))
    flags.FLAGS.mark_as_parsed()
    yield "tiny"


@pytest.mark.rest
@pytest.mark.slow
def test_this_version_is_compared_with_its_last_commit(
  tiny_case, tmp_path, capfd
):
  committed = subprocess.run(
    ["git", "rev-parse", "HEAD"],
    cwd=side_by_side.ROOT,
    capture_output=True,
    check=False,
  )
  if committed.returncode:
    pytest.skip("these files are no git checkout")
  side_by_side.check_out("HEAD", str(tmp_path))
  marked = tmp_path / "benchmarks" / "contestant.py"
  text = marked.read_text("utf-8")
  line = 'print("the older one", __file__, file=sys.stderr)\n'
  marked.write_text(
    text.replace("from absl import app\n", f"{line}\nfrom absl import app\n", 1)
  )
  folders = {"ours": str(side_by_side.ROOT), "before": str(tmp_path)}
  with flagsaver.flagsaver(before="HEAD", rounds=2, cores=["0"]):
    result = side_by_side.compare(tiny_case, folders)
  # Twice: for huge pages the process starts itself again.
  said = set(capfd.readouterr().err.splitlines())
  assert said == {f"the older one {marked}"}
  [comparison] = result["comparisons"]
  ratios = comparison["sides"]["before"]["times_as_long_as_ours"]
  for kind in side_by_side.KINDS:
    assert 0 < ratios[kind]["lower"] <= ratios[kind]["upper"]
  rows = side_by_side.table([result]).splitlines()
  assert [row.split(" | ")[4] for row in rows[2:]] == [
    "ours, float32",
    "before, float32",
  ]
  assert {row.count("|") for row in rows} == {11}


# Milliseconds of each side in each form, with one thread and with two.
TIMES = {
  ("ours", "float32"): (4, 3),
  ("ours", "bfloat16"): (2, 1),
  ("huggingface", "float32"): (8, 80),
  ("huggingface", "bfloat16"): (9, 7),
}


def test_every_side_is_compared_in_its_best_form(tiny_case, monkeypatch):
  class Side:
    def __init__(self, form, *rest):
      self.ready = {"compile_seconds": 0.0}
      times = TIMES[form.who, form.dtype]
      self.seconds = times[form.threads - 1] / 1e3

    def wait_until_ready(self):
      pass

    def take_turn(self):
      seconds = self.seconds
      return {"seconds": seconds, "cpu_seconds": seconds, "resident_bytes": 0}

    def close(self):
      pass

  monkeypatch.setattr(side_by_side, "_Side", Side)
  monkeypatch.setattr(hardware, "fast_dtype", lambda: "bfloat16")
  with flagsaver.flagsaver(before=None, rounds=2, cores=["0", "1"]):
    result = side_by_side.compare(tiny_case, {"ours": "", "huggingface": ""})
  rows = side_by_side.table([result]).splitlines()[2:]
  assert [row.split(" | ")[2:7] for row in rows] == [
    ["1", "float32", "ours, float32", "1", "4.0"],
    ["1", "float32", "huggingface, float32", "1", "8.0"],
    ["1", "float32 or bfloat16", "ours, bfloat16", "1", "2.0"],
    ["1", "float32 or bfloat16", "huggingface, float32", "1", "8.0"],
    ["2", "float32", "ours, float32", "2", "3.0"],
    ["2", "float32", "huggingface, float32", "1", "8.0"],
    ["2", "float32 or bfloat16", "ours, bfloat16", "2", "1.0"],
    ["2", "float32 or bfloat16", "huggingface, bfloat16", "2", "7.0"],
  ]
  assert len(result["forms"]) == 8


def test_on_a_gpu_peers_run_as_they_are_and_compiled(tiny_case):
  names = {"original": "checkout", "nanogpt": "checkout"}
  with flagsaver.flagsaver(platform="cuda", before=None, cores=["0"], **names):
    sides = side_by_side._sides()
    forms = side_by_side._forms(sides)
  assert sides == ["ours", "original", "nanogpt"]  # HuggingFace's has no GPU.
  assert [(form.who, form.is_compiled) for form in forms] == [
    ("ours", False),
    ("original", False),
    ("original", True),
    ("nanogpt", False),
    ("nanogpt", True),
  ]
  assert {form.dtype for form in forms} == {"bfloat16"}


def test_a_revision_that_does_not_exist_is_one_line(tmp_path):
  with pytest.raises(errors.UserError, match="--before=nothing is no commit"):
    side_by_side.check_out("nothing", str(tmp_path))
