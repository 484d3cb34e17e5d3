"""JSON lines that survive a kill; event files that TensorBoard reads."""

import concurrent.futures
import json
import os
import struct

import pytest
from tensorboardX.proto import event_pb2

from transformer_xl.workdir import metrics_log

NO_SPEED = {"tokens_per_second": None, "mfu": None}


def write(folder, records, *, step=0):
  writer = metrics_log.Writer(str(folder), step=step, num_steps=100)
  for record in records:
    writer.write(record)
  writer.close()


def lines(folder):
  text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
  return [json.loads(line) for line in text.splitlines()]


def events(folder):
  """Scalars of all event files, as (step, tag, value)."""
  result = []
  for path in sorted(folder.glob("events.*")):
    content, start = path.read_bytes(), 0
    while start < len(content):
      (size,) = struct.unpack_from("<Q", content, start)
      event = event_pb2.Event.FromString(
        content[start + 12 : start + 12 + size]
      )
      result += [
        (event.step, v.tag, v.simple_value) for v in event.summary.value
      ]
      start += size + 16
  return result


def record(step, **values):
  return {"step": step, "loss": 2.5, **values}


def test_each_record_is_a_line_in_order(tmp_path):
  records = [
    record(2, mfu=None),
    {"step": 2, "split": "valid", "nll": 3.25},
    record(4, mfu=0.5),
  ]
  write(tmp_path, records)
  assert lines(tmp_path) == records


def test_a_file_that_is_gone_is_written_again(tmp_path, caplog):
  lines = metrics_log.JsonLines(str(tmp_path), step=0)
  lines.record({"step": 1})
  (tmp_path / "metrics.jsonl").unlink()
  lines.record({"step": 2})
  (tmp_path / "metrics.jsonl").rename(tmp_path / "moved")
  (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n')
  lines.record({"step": 3})
  lines.close()
  text = (tmp_path / "metrics.jsonl").read_text()
  assert [json.loads(line)["step"] for line in text.splitlines()] == [2, 3]
  assert sum("is gone" in message for message in caplog.messages) == 2


def test_numbers_become_scalars_of_tensorboard(tmp_path):
  write(
    tmp_path, [record(2, mfu=None), {"step": 2, "split": "valid", "nll": 3}]
  )
  assert events(tmp_path) == [(2, "train/loss", 2.5), (2, "valid/nll", 3.0)]


def test_a_resumed_run_drops_what_it_will_write_again(tmp_path):
  write(tmp_path, [record(2), record(4), record(6)])
  write(tmp_path, [record(6, again=1)], step=4)
  assert lines(tmp_path) == [record(2), record(4), record(6, again=1)]


@pytest.mark.parametrize("cut", range(1, len(json.dumps(record(4))) + 1))
def test_a_line_that_a_kill_has_cut_spoils_nothing(tmp_path, cut):
  write(tmp_path, [record(2), record(4)])
  path = tmp_path / "metrics.jsonl"
  content = path.read_bytes()
  path.write_bytes(content[:-cut])  # From the newline on.
  write(tmp_path, [record(4), record(6)], step=2)
  assert lines(tmp_path) == [record(2), record(4), record(6)]


def test_a_last_line_without_its_end_is_kept_whole(tmp_path):
  write(tmp_path, [record(2), record(4)])
  path = tmp_path / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-1])
  write(tmp_path, [record(6)], step=4)
  assert lines(tmp_path) == [record(2), record(4), record(6)]


def test_a_long_log_is_cut_at_its_end_and_neither_parsed_nor_copied(
  tmp_path, monkeypatch
):
  write(tmp_path, map(record, range(1, 1001)))
  path = tmp_path / "metrics.jsonl"
  inode = path.stat().st_ino
  parsed = []
  monkeypatch.setattr(metrics_log.json, "loads", parsed.append)
  writer = metrics_log.JsonLines(str(tmp_path), step=900)
  monkeypatch.undo()
  writer.record(record(901, again=True))
  writer.close()
  assert path.stat().st_ino == inode
  assert len(parsed) <= 1  # The line of the step itself may be an evaluation.
  expected = [*map(record, range(1, 900)), record(901, again=True)]
  assert [one for one in lines(tmp_path) if one["step"] != 900] == expected


def test_a_line_of_a_later_step_between_others_is_dropped(tmp_path):
  """As divergence leaves it: it is said before the steps are repeated."""
  event = {"step": 9, "divergence": "it spiked", "rewound_to": 2}
  write(tmp_path, [record(2), event, record(4), record(6)])
  write(tmp_path, [record(6, again=True)], step=4)
  assert lines(tmp_path) == [record(2), record(4), record(6, again=True)]


@pytest.mark.parametrize("block", [1, 7, 40, 1 << 16])
@pytest.mark.parametrize("end", ["", '{"step": 9, "lo', '{"step": 9}'])
def test_lines_are_read_back_from_the_end(tmp_path, monkeypatch, block, end):
  monkeypatch.setattr(metrics_log, "_BLOCK", block)
  path = tmp_path / "metrics.jsonl"
  assert [*metrics_log.read_lines_back(path)] == []
  path.write_text('{"step": 1}\n[4]\n\n{"step": 3, "a": "\u00e9"}\n' + end)
  there = [*metrics_log.read_lines(path)]
  assert len(there) == 2 + end.endswith("}")
  assert [*metrics_log.read_lines_back(path)] == there[::-1]
  assert metrics_log.has(path, "a")
  assert not metrics_log.has(path, "nll")


def test_zeros_that_a_crash_has_left_are_dropped(tmp_path):
  write(tmp_path, [record(2)])
  with (tmp_path / "metrics.jsonl").open("ab") as file:
    file.write(b"\0" * 20)
  write(tmp_path, [record(4)], step=2)
  assert lines(tmp_path) == [record(2), record(4)]


def test_progress_tells_people_how_long_it_will_take(tmp_path, caplog):
  caplog.set_level("INFO")
  writer = metrics_log.Writer(str(tmp_path), step=0, num_steps=100)
  values = {"learning_rate": 1e-3, "gradient_norm": 0.5, "tokens": 9000}
  for speed in ({"tokens_per_second": 100.0, "mfu": 0.413}, NO_SPEED):
    left = 60.0 if speed["tokens_per_second"] else None
    writer.progress(record(40, **values, **speed), left)
  writer.close()
  first, second = (r.getMessage() for r in caplog.records[-2:])
  assert "step 40/100  loss 2.5000" in first
  assert "100 tokens/s  0:01:00 left" in first
  assert "mfu 41.3%" in first
  assert "left" not in second


def test_other_processes_than_the_first_write_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(metrics_log.jax, "process_index", lambda: 1)
  write(tmp_path, [record(2)])
  metrics_log.write_json(str(tmp_path), "results/a.json", {"a": 1})
  assert list(tmp_path.iterdir()) == []


def test_json_is_written_whole_or_not_at_all(tmp_path):
  path = tmp_path / "results" / "card.json"
  metrics_log.write_json(str(tmp_path), "results/card.json", {"a": [1, 2]})
  with pytest.raises(TypeError):
    metrics_log.write_json(str(tmp_path), "results/card.json", {"a": object()})
  assert json.loads(path.read_text()) == {"a": [1, 2]}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_is_written_value_by_value(tmp_path, count):
  path = tmp_path / "results" / "list.json"

  def values():
    for step in range(count):
      yield record(step, broken=float("nan"))
      assert not path.exists()  # Until it is whole.

  metrics_log.write_json_list(str(tmp_path), "results/list.json", values())
  expected = [record(step, broken=None) for step in range(count)]
  assert json.loads(path.read_text()) == expected
  assert os.listdir(path.parent) == ["list.json"]


def test_what_is_no_finite_number_is_null_in_every_file(tmp_path):
  lost = {"loss": float("nan"), "more": [float("inf"), (1.5,)], "best": None}
  expected = {"loss": None, "more": [None, [1.5]], "best": None}
  write(tmp_path, [record(2, **lost)])
  metrics_log.write_json(str(tmp_path), "lost.json", lost)
  metrics_log.append_lines(str(tmp_path), "lost.jsonl", [lost])
  (line,) = lines(tmp_path)
  assert {name: line[name] for name in expected} == expected
  for name in ("lost.json", "lost.jsonl"):
    assert json.loads((tmp_path / name).read_text()) == expected


@pytest.mark.parametrize("cut", ["", '{"a":'])
def test_added_lines_leave_earlier_ones_alone(tmp_path, cut):
  path = tmp_path / "results" / "cards.jsonl"
  metrics_log.append_lines(str(path.parent), path.name, [{"a": 1}])
  path.write_text(path.read_text() + cut)
  metrics_log.append_lines(str(path.parent), path.name, [{"a": 2}, {"a": 3}])
  written = path.read_text().splitlines()
  assert written == [
    '{"a": 1}',
    *([cut] if cut else []),
    '{"a": 2}',
    '{"a": 3}',
  ]


def test_lines_that_commands_add_at_the_same_time_stay_whole(tmp_path):
  """As several evaluations of a run do."""

  def add(number):
    for _ in range(100):
      lines = [{"number": number, "text": "x" * 5000}] * 2
      metrics_log.append_lines(str(tmp_path), "cards.jsonl", lines)

  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for finished in [pool.submit(add, number) for number in range(4)]:
      finished.result()
  # There may be empty lines: a call that sees half of another ends its line.
  lines = metrics_log.read_lines(tmp_path / "cards.jsonl")
  numbers = [line["number"] for line in lines]
  assert sorted(numbers) == sorted([*range(4)] * 200)
