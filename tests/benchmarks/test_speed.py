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
from transformer_xl import errors

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
  compared = ["relative", "rope"]
  results = [
    result
    for task in workload.TASKS
    for result in speed.compare(tiny(task), encodings=compared, rounds=2)
  ]
  assert turns == 3 * 2 * compared
  assert results[0]["times_as_long"] == 1
  rows = speed.table(results).splitlines()
  assert [row.split(" | ")[0] for row in rows[2:]] == ["| relative", "| rope"]
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
  ratios = result["sides"]["before"]["times_as_long_as_ours"]
  for kind in side_by_side.KINDS:
    assert 0 < ratios[kind]["lower"] <= ratios[kind]["upper"]
  rows = side_by_side.table([result]).splitlines()
  assert [row.split(" | ")[2] for row in rows[2:]] == [
    "ours, float32",
    "before, float32",
  ]
  assert {row.count("|") for row in rows} == {8}


def test_a_revision_that_does_not_exist_is_one_line(tmp_path):
  with pytest.raises(errors.UserError, match="--before=nothing is no commit"):
    side_by_side.check_out("nothing", str(tmp_path))
