"""Curves as a report draws them."""

import functools
import json

import numpy as np

from tests.report import conftest
from transformer_xl.report import figures
from transformer_xl.workdir import run_history

write_run = functools.partial(conftest.write_run, has_model=False)


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
    *("a", "rewound", "b"),
  ]
  (memory,) = figures.loss_by_memory(runs)
  assert len(memory.legend[0].items) == 2
  assert json.dumps(figures.items(made))


def test_axes_have_numbers_as_people_write_them(data_dir, tmp_path):
  """Not 3.000e-4 and 70000, which Bokeh writes by itself."""
  write_run(data_dir, tmp_path)
  made = figures.training([run_history.read(str(tmp_path))])
  for figure in made:
    assert figure.xaxis.formatter.format == "0,0.[0000]"
  rate, speed = made[1], made[3]
  for figure in (rate, speed):
    assert figure.yaxis.formatter.format.startswith("0,0.[0000")


def test_a_legend_is_below_the_figure_and_hides_nothing(data_dir, tmp_path):
  folder = tmp_path / ("long" * 20)
  write_run(data_dir, folder)
  loss, *others = figures.training([run_history.read(str(folder))] * 2)
  height = loss.height
  figures.items([loss, *others])
  (legend,) = loss.legend
  assert legend in loss.below
  assert legend not in loss.center
  assert loss.height > height + 60  # One row for each of three long names.
  names = [item.label.value for item in legend.items]
  assert max(map(len, names)) < 40
  assert not any(figure.legend for figure in others)


def test_steps_whose_loss_is_no_number_are_marked(data_dir, tmp_path):
  write_run(data_dir, tmp_path)
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"step": 50, "loss": NaN}\n{"step": 60, "loss": null}\n')
    file.write('{"step": 60, "split": "valid", "nll": null}\n')
  loss, *_ = figures.training([run_history.read(str(tmp_path))])
  item = loss.legend[0].items[-1]
  assert item.label.value == "not a number"
  assert [*item.renderers[0].data_source.data["x"]] == [50, 60]


def test_a_run_without_a_log_has_no_figure(data_dir, tmp_path):
  write_run(data_dir, tmp_path, num_lines=0)
  (tmp_path / "metrics.jsonl").unlink()
  assert figures.training([run_history.read(str(tmp_path))]) == []


def write_log(folder, *lines):
  text = "".join(f"{json.dumps(line)}\n" for line in lines)
  (folder / "metrics.jsonl").write_text(text)


def test_a_constant_is_drawn_where_it_is(data_dir, tmp_path):
  write_run(data_dir, tmp_path)
  lines = [{"step": step, "learning_rate": 1e-3} for step in (1, 2, 3)]
  write_log(tmp_path, *lines)
  (rate,) = figures.training([run_history.read(str(tmp_path))])
  assert figures.items([rate])
  assert rate.y_range.default_span == 1e-3


def test_a_single_point_is_seen(data_dir, tmp_path):
  write_run(data_dir, tmp_path)
  write_log(tmp_path, {"step": 4, "loss": 2.5, "gradient_norm": 1.5})
  for figure in figures.training([run_history.read(str(tmp_path))]):
    kinds = {type(drawn.glyph).__name__ for drawn in figure.renderers}
    assert "Scatter" in kinds


def test_a_scale_of_logarithms_leaves_zeros_out(data_dir, tmp_path):
  write_run(data_dir, tmp_path)
  norms = (2.0, 0.0, 3.0)
  lines = [{"step": at, "gradient_norm": x} for at, x in enumerate(norms)]
  write_log(tmp_path, *lines)
  (norm,) = figures.training([run_history.read(str(tmp_path))])
  assert [*norm.renderers[0].data_source.data["y"]] == [2.0, 3.0]
  write_log(tmp_path, {"step": 1, "gradient_norm": 0.0})
  assert not figures.training([run_history.read(str(tmp_path))])


def test_long_names_of_many_runs_stay_different():
  width = "experiment_with_a_long_name_of_width_{}_and_learning_rate_0.003"
  names = [width.format(number) for number in range(12)]
  assert figures.short_names(names) == [f"…{number}…" for number in range(12)]
  names = [
    f"a_run_of_the_model_of_wikitext_lr_{x}_seed_0" for x in (0.001, 0.011)
  ]
  assert figures.short_names(names) == ["…0.001…", "…0.011…"]
  names = [
    f"enwik8_transformer_xl_width_{x}: test, step 100" for x in (128, 1024)
  ]
  names.append("enwik8_transformer_xl_width_128: valid, step 100")
  short = figures.short_names(names)
  assert short[:2] == ["…128: test,…", "…1024: test,…"]
  equal = "x" * 30
  names = [f"a{equal}{number}{equal}b" for number in range(3)]
  names.append("something else")
  short = figures.short_names(names)
  assert len({*short}) == len(names)
  assert max(map(len, short)) < 45
  assert figures.short_names(["a", "ab"]) == ["a", "ab"]


def test_more_runs_than_colours_have_other_colours():
  assert len({*figures._colours(range(12))}) == 12
