"""Curves as a report draws them."""

import json

import numpy as np

from tests.report.conftest import write_run
from transformer_xl.report import figures
from transformer_xl.workdir import run_history


def test_a_thinned_curve_keeps_its_extremes_and_its_ends():
  x = np.arange(100_000)
  y = np.sin(x / 5000)
  y[[12_345, 67_890]] = 9, -9
  thin_x, thin_y = figures.thinned(x, y, most=2000)
  assert 1000 < len(thin_x) <= 2000
  assert {0, 12_345, 67_890, 99_999} <= {*thin_x.tolist()}
  assert (thin_y.min(), thin_y.max()) == (-9, 9)
  assert np.all(np.diff(thin_x) > 0)


def test_a_short_curve_stays_as_it_is():
  x, y = np.arange(2000), np.arange(2000.0)
  thin = figures.thinned(x, y, most=2000)
  assert thin[0] is x
  assert thin[1] is y


def test_every_run_is_in_every_figure(data_dir, tmp_path):
  for name in "ab":
    write_run(data_dir, tmp_path / name)
  runs = run_history.read_all([str(tmp_path / name) for name in "ab"])
  made = figures.training(runs)
  assert len(made) == 4
  legend = made[0].legend[0].items
  assert [item.label.value for item in legend] == [
    *("a", "a, validation", "rewound", "b", "b, validation"),
  ]
  (memory,) = figures.loss_by_memory(runs)
  assert len(memory.legend[0].items) == 2
  assert json.dumps(figures.items(made))


def test_a_run_without_a_log_has_no_figure(data_dir, tmp_path):
  write_run(data_dir, tmp_path, num_lines=0)
  (tmp_path / "metrics.jsonl").unlink()
  assert figures.training([run_history.read(str(tmp_path))]) == []
