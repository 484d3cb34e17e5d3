"""The speed benchmarks run, at sizes too small to measure."""

import dataclasses

import pytest

from benchmarks import encodings
from benchmarks import ours
from benchmarks import side_by_side
from benchmarks import workload

TINY = {
  **{"num_layers": 1, "model_dim": 8, "num_heads": 2, "ff_dim": 8},
  **{"vocab_size": 11, "batch_size": 2, "mem_len": 6},
}


@pytest.mark.parametrize(
  "task", [workload.TRAIN, workload.EVALUATE, workload.GENERATE]
)
def test_every_task_runs_repeatedly(task):
  work = workload.make(task, TINY)
  if work.task != "generate":
    work = dataclasses.replace(work, segment_len=4)
  runner = ours.make(work, count=2)
  losses = [runner() for _ in range(2)]
  if work.task == "train":
    assert losses[1] < losses[0]  # Trained on the same tokens again.
  assert runner.peak_bytes > 0


def test_a_table_has_a_row_for_each_side():
  figures = {
    "dtype": "float32",
    "milliseconds": 2.0,
    "cpu_milliseconds": 3.0,
  }
  result = {
    "case": "train_small",
    **dataclasses.asdict(workload.make(workload.TRAIN, workload.SMALL)),
    "sides": {"ours": figures, "huggingface": figures},
    "times_faster_than": {
      "seconds": {"huggingface": 1.5},
      "cpu_seconds": {"huggingface": 1.25},
    },
  }
  rows = side_by_side.table([result]).splitlines()
  assert len(rows) == 4
  assert rows[3] == (
    "| train_small | 6, 256, 128, 8 | huggingface, float32 | 2.0 | 3.0 | 1.5 "
    "| 1.25 |"
  )


def test_an_older_version_is_not_told_of_new_fields():
  work = workload.make(workload.TRAIN, TINY)
  assert "encoding" not in workload.changed(work)
  assert workload.make(workload.changed(work)) == work
  rotated = dataclasses.replace(work, encoding="rope")
  assert workload.make(workload.changed(rotated)) == rotated


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
    for task in encodings.TASKS
    for result in encodings.compare(task, TINY, encodings=compared, rounds=2)
  ]
  assert turns == 3 * 2 * compared
  assert results[0]["times_as_long"] == 1
  rows = encodings.table(results).splitlines()
  assert [row.split(" | ")[0] for row in rows[2:]] == ["| relative", "| rope"]
  assert {row.count("|") for row in rows} == {8}
