"""Comparisons of variants: trained once, compared at equal tokens and time."""

import json
import math
import shutil

import jax
import numpy as np
import pytest

from tests import corpus
from tests import kinds
from tests import tiny
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import costs
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import study
from transformer_xl.analysis import variants
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.experiments import memory_suite


def test_variants_are_trained_timed_and_drawn(data_dir, tmp_path):
  lines = ("base: ", "long: config.eval.mem_len=(8, 16)")
  result = runs.study_of(data_dir, tmp_path, *lines)
  base, long = result["rows"]
  assert base["tokens"] == long["tokens"] > 0
  for kind in costs.Seconds._fields:
    assert base["seconds_per_token"][kind] > 0
    assert long["seconds_per_token"][kind] > 0
  assert base["relative_seconds"] == 1
  assert long["relative_seconds"] > 0
  assert base["planned_seconds_per_token"] is None
  assert base["nll_by_memory"][8] == long["nll_by_memory"][8]
  assert long["nll"] == min(long["nll_by_memory"].values())
  folder = tmp_path / "results"
  saved = json.loads((folder / "study.json").read_text())
  assert saved == json.loads(json.dumps(result))
  assert (folder / "study.md").read_text().count("\n") == 4
  assert result["made_by"].encode() in (folder / "study.png").read_bytes()


def test_a_trial_is_trained_once_and_again_after_a_signal(
  data_dir, tmp_path, trained
):
  trained.stops = {3}
  lines = ("base: ", "long: train.mem_len=16")
  seeds = {"analysis.seeds": (0, 1)}
  with pytest.raises(errors.StoppedError):
    runs.study_of(data_dir, tmp_path, *lines, **seeds)
  first = json.loads((tmp_path / "results" / "study.json").read_text())
  assert [row["name"] for row in first["rows"]] == ["base"]
  second = runs.study_of(data_dir, tmp_path, *lines, **seeds)
  assert [row["name"] for row in second["rows"]] == ["base", "long"]
  folders = [f"{tmp_path}/seed_{n}/{v}" for v in ("base", "long") for n in "01"]
  assert trained == [*folders[:3], *folders[2:]]
  # Another evaluation needs no other training; the model is loaded again.
  del trained.read[:]
  runs.study_of(data_dir, tmp_path, *lines, **seeds, **{"eval.mem_len": (4,)})
  assert trained[-4:] == folders
  assert trained.read == [("valid", folder) for folder in folders]
  # The same text elsewhere on disk needs nothing.
  (tmp_path / "data").symlink_to(data_dir)
  more = seeds | {"eval.mem_len": (4,)}
  runs.study_of(f"{tmp_path}/data", tmp_path, *lines, **more)
  assert len(trained.read) == 4


@pytest.mark.parametrize(
  ("updates", "text"),
  [
    ({"train.batch_size": 2}, "trained with train.batch_size=4 and 2 is"),
    ({"seed": 5}, "trained with seed=0 and 5 is"),
    ({"data.reset_at_documents": True}, "data.reset_at_documents=False and T"),
  ],
)
def test_a_folder_keeps_one_training_also_before_its_end(
  data_dir, tmp_path, trained, updates, text
):
  trained.stops = {2}
  with pytest.raises(errors.StoppedError):
    runs.study_of(data_dir, tmp_path, "a: ", "b: train.mem_len=4")
  for lines in (["a: "], ["c: ", "b: train.mem_len=4"]):
    with pytest.raises(errors.UserError, match=text):
      runs.study_of(data_dir, tmp_path, *lines, **updates)
  assert len(trained) == 2  # `c` is not trained before `b` is refused.


def test_text_that_was_prepared_again_is_another_text(
  tmp_path, trained, monkeypatch
):
  folder = tmp_path / "study"

  def study_of(**lengths):
    monkeypatch.setattr(corpus, "TOKENS", corpus.TOKENS | lengths)
    shutil.rmtree(tmp_path / "data", ignore_errors=True)
    runs.study_of(corpus.write(tmp_path / "data"), folder, "base: ")

  study_of()
  study_of()
  assert trained.read == [("valid", f"{folder}/base")]
  study_of(valid=210)
  assert len(trained.read) == 2
  with pytest.raises(errors.UserError, match=r"with data\.train_sha256="):
    study_of(train=1002)


def test_a_row_states_when_and_where_it_was_measured(
  data_dir, tmp_path, trained
):
  runs.study_of(data_dir, tmp_path, "base: ")
  kept = tmp_path / "base" / "results" / "trial.json"
  content = json.loads(kept.read_text())
  content["measured"][0] |= {"date": "2020-01-02", "device": "abacus"}
  kept.write_text(json.dumps(content))
  result = runs.study_of(data_dir, tmp_path, "base: ", "more: train.mem_len=4")
  before, now = result["rows"]
  assert (before["date"], before["device"]) == ("2020-01-02", "abacus")
  assert now["date"] != "2020-01-02"
  assert now["device"] == jax.devices()[0].device_kind
  table = (tmp_path / "results" / "study.md").read_text()
  assert table.count("one seed") == 2


@pytest.mark.parametrize("content", ["", "[]", '{"trained_with": {}}'])
def test_a_damaged_record_of_a_trial_is_named(
  data_dir, tmp_path, trained, content
):
  runs.study_of(data_dir, tmp_path, "base: ")
  path = tmp_path / "base" / "results" / "trial.json"
  path.write_text(content)
  damaged = r"trial\.json is damaged"
  with pytest.raises(errors.UserError, match=damaged) as caught:
    runs.study_of(data_dir, tmp_path, "base: ")
  assert "\n" not in str(caught.value)


def test_what_only_logs_may_change_between_two_commands(
  data_dir, tmp_path, trained
):
  runs.study_of(data_dir, tmp_path, "base: ")
  logs = {"train.profile_steps": 1, "train.log_every_steps": 1}
  runs.study_of(data_dir, tmp_path, "base: ", **logs)
  runs.study_of(
    data_dir, tmp_path, "base: ", **{"train.finish_with": ("eval",)}
  )
  assert len(trained) == 1


def test_fields_that_a_trial_does_not_read_may_change(
  data_dir, tmp_path, trained
):
  """Another extension, or another version of the package, has others."""
  own = kinds.all_own_fields()[0]
  first, second = own.values
  model = kinds.model(*own.model["model.layers"])
  for value in own.values:
    changed = {own.path: value}
    runs.study_of(data_dir, tmp_path / "other", "base: ", **changed)
  assert len(trained) == 1
  runs.study_of(data_dir, tmp_path, "base: ", **model | {own.path: first})
  with pytest.raises(
    errors.UserError, match=f"trained with {own.path}={first}"
  ):
    runs.study_of(data_dir, tmp_path, "base: ", **model | {own.path: second})


def test_the_test_split_is_not_read_unless_asked(data_dir, tmp_path, trained):
  rates = {"analysis.learning_rates": (0.1, 0.2), "eval.split": "test"}
  result = runs.study_of(
    data_dir, tmp_path, "a: ", "b: train.mem_len=4", **rates
  )
  assert result["split"] == "valid"
  assert {split for split, _ in trained.read} == {"valid"}
  rates["analysis.split"] = "test"
  result = runs.study_of(
    data_dir, tmp_path, "a: ", "b: train.mem_len=4", **rates
  )
  assert result["split"] == "test"
  assert [split for split, _ in trained.read].count("test") == 2


@pytest.mark.parametrize(
  ("lines", "updates", "text"),
  [
    ((), {}, r"set --config.analysis.variants, which is .*unchanged:"),
    (("a",), {}, "examples are .* and 'base: ' without a change"),
    (("a: lr=3",), {}, "no field lr; did you mean config.train.learning_rate"),
    (("a: ", "a: train.mem_len=4"), {}, "two have one name: a, a"),
    (("a: ", "b: train.mem_len=-4"), {}, "train.mem_len must be 0 or more"),
    (("a: ", "b: train.mem_len=x"), {}, "train.mem_len must be a whole number"),
    (("a: ", "b: seed=1"), {}, "set --config.analysis.seeds"),
    (("a: ", "b: eval.split=valid"), {}, "set --config.analysis.split"),
    (("a: ", "b: model.vocab_size=7"), {}, "model.vocab_size=7, but the data"),
    (("a: ", "b: train.segment_len=900"), {}, "do not fill one segment of 900"),
    (("a: ", "b: train.learning_rate_factors=x=0"), {}, "match"),
    (
      ("a: ", "b: eval.dynamic.kind=sgd"),
      {},
      "evaluates with fixed parameters, and eval.dynamic.kind is sgd",
    ),
    (("a: ", "b: eval.cache.size=9"), {}, "and eval.cache.size is 9"),
    (("a: ", "b: eval.temperature=2.0"), {}, "has temperature 1"),
    (
      ("a: ", "b: train.mem_len=4"),
      runs.NO_MEMORY | {"eval.context_len": 9, "train.eval_every_steps": 2},
      "eval.context_len=9 is for models without memory, but train.mem_len is 4",
    ),
    (
      (
        "a: ",
        f"b: model.encoding={kinds.learned(counts_from_segment=True)}; "
        "model.num_positions=8; "
        "eval.segment_len=9",
      ),
      {},
      "has learned 8 positions",
    ),
    (
      ("a: ", "b: eval.checkpoint=best"),
      {"train.eval_every_steps": 0},
      "--mode=study would read eval.checkpoint=best",
    ),
    (
      ("a: ", "b: train.learning_rate=0.1"),
      {"analysis.learning_rates": (0.1, 0.2)},
      "leave one of them out",
    ),
  ],
)
def test_a_study_that_cannot_be_is_one_line_before_the_first_update(
  data_dir, tmp_path, trained, lines, updates, text
):
  with pytest.raises(errors.UserError, match=text):
    runs.study_of(data_dir, tmp_path, *lines, **updates)
  assert not trained


def test_losses_of_another_text_are_not_compared(data_dir, tmp_path, trained):
  other = tmp_path / "other" / corpus.NAME
  shutil.copytree(f"{data_dir}/{corpus.NAME}", other)
  lines = ("a: ", f"b: data.dir={tmp_path}/other")
  with pytest.raises(errors.UserError, match=r"a variant reads .*/other/"):
    runs.study_of(data_dir, tmp_path, *lines)
  assert not trained


def test_a_loss_that_is_no_number_is_the_worst_in_every_worker(
  data_dir, tmp_path, trained
):
  lowest = 1e-3
  trained.loss = lambda config: (
    math.nan
    if config.train.learning_rate == lowest
    else config.train.learning_rate
  )
  rates = {"analysis.learning_rates": (lowest, 3e-3, 9e-3)}
  found = runs.study_of(data_dir, tmp_path, "a: ", **rates)
  again = runs.study_of(data_dir, tmp_path, "a: ", **rates)
  assert found["rows"][0]["learning_rate"] == 3e-3
  assert again["rows"] == found["rows"]


def test_a_rate_beside_which_none_was_tried_is_said_to_be_alone():
  for rates, said in (([], True), ([1e-3], True), ([1e-3, 3e-3], False)):
    one = row("a")._replace(learning_rate=1e-3, learning_rates=rates, edge="")
    assert rows_lib.rate_cell(one).endswith("no other tried)") == said


def test_the_study_that_an_error_names_exists(data_dir, tmp_path):
  with pytest.raises(errors.UserError) as caught:
    runs.study_of(data_dir, tmp_path)
  name = str(caught.value).rstrip(".").rpartition("memory_suite:")[2]
  assert memory_suite.get_config(name).analysis.variants


def test_a_variant_may_take_what_is_chosen_for_it(data_dir, tmp_path, trained):
  lines = ("base: ", "same: model.vocab_size=0; model.dtype=auto")
  rows = runs.study_of(data_dir, tmp_path, *lines)["rows"]
  assert len(rows) == 2
  same = rows[1]
  settings = json.loads((tmp_path / "same/results/trial.json").read_text())
  settings = settings["trained_with"]
  assert settings["model.vocab_size"] == len(corpus.SYMBOLS)
  assert settings["model.dtype"] == "float32"  # As the others.
  assert same["num_parameters"] == 0


@pytest.mark.parametrize(
  "text",
  [
    "",
    "train.mem_len=3",
    "a/b: train.mem_len=3",
    "..: train.mem_len=3",
  ],
)
def test_what_is_not_a_variant_is_one_line(text):
  with pytest.raises(errors.UserError, match=r"is not 'NAME: FIELD=VALUE"):
    variants.parse(text)


@pytest.mark.parametrize(
  "value", ["analysis.split=test", "analysis.seeds=(3,)", "eval.split=test"]
)
def test_variants_are_measured_alike(value):
  with pytest.raises(errors.UserError, match="all variants share"):
    variants.parse(f"a: {value}")


def test_values_are_literals_or_words():
  rotating, recurrent = kinds.encoding(rotates=True), kinds.recurrent()
  variant = variants.parse(
    f"a-1: model.encoding={rotating}; train.mem_len=3 ;"
    f"model.layers=('{recurrent}', 'attention'); train.same_length=True"
  )
  assert variant == (
    "a-1",
    {
      "model.encoding": rotating,
      "train.mem_len": 3,
      "model.layers": (recurrent, "attention"),
      "train.same_length": True,
    },
  )
  assert {*variant.changes} <= {*schema.all_fields()}


def row(name, *, tokens=100, nll=5.0, seconds=1.0, by_seed=(), **changes):
  values = dict.fromkeys(rows_lib.Row._fields)
  values |= {"name": name, "tokens": tokens, "nll": nll, "length": 8}
  values |= {"relative_seconds": seconds, "changes": changes}
  values |= {"nll_by_seed": {8: [*by_seed] or [nll, nll]}}
  return rows_lib.Row(**values)


def test_a_table_says_why_there_is_no_comparison_at_equal_time():
  config = load.from_config_dict(tiny.config_dict(**{"train.num_steps": 50}))
  shown = {
    **{"config": config, "num_parameters": 9, "planned_bytes": 3 << 20},
    **{"learning_rates": [], "nll_by_length": {8: 4.0}},
  }
  rows = [
    row("base")._replace(**shown),
    row("long", tokens=200, **{"train.num_steps": 100})._replace(**shown),
    row("slow", seconds=2.101, other=1)._replace(**shown),
    row("fast", seconds=0.5, other=2)._replace(**shown),
  ]
  cells = {line["variant"]: line for line in study.table(rows)}
  assert {name: line["at equal time"] for name, line in cells.items()} == {
    "base": "",
    "long": "",
    "slow": "needs base with 106 updates or more",
    "fast": "needs base with 25 updates or fewer",
  }
  assert cells["fast"]["time a token"] == "0.50"
  assert cells["base"][rows_lib.PLANNED] == "3"
  untimed = [one._replace(relative_seconds=None) for one in rows]
  for line in study.table(untimed):
    assert line["time a token"] == line["at equal time"] == "not timed yet"
  for shown_rows, label in (
    (rows, "time of training (base: 1)"),
    (untimed, "tokens, since nothing is timed yet, of training (base: 1)"),
  ):
    (axes,) = study.draw(shown_rows).axes
    assert axes.get_xlabel() == label
    places = axes.lines[0].get_xdata()
    assert [*places] == [1, 2]


@pytest.mark.parametrize("common", [{}, {"train.mem_len": 64}])
def test_equal_time_compares_with_the_first_variant_at_other_tokens(common):
  """Whether the first variant changes something itself, or not."""
  double = common | {"train.num_steps": 2}
  rows = rows_lib.with_differences(
    [
      row("base", by_seed=(4.99, 5.01), **common),
      row("double", tokens=200, nll=4.0, **double),
      # Twice as slow, so the first variant reads 200 tokens meanwhile.
      row("slow", nll=4.5, seconds=2.0, other=1),
      row("same", nll=4.99, other=2),
      row("one seed", by_seed=(5.0,), other=6),
      row("too slow", nll=3.0, seconds=2.1, other=3),
      row("between", nll=4.5, seconds=math.sqrt(2), other=4),
      row("more", tokens=150, nll=4.5, **{"train.num_steps": 3, "other": 5}),
    ]
  )
  values = {one.name: (one.at_equal_tokens, one.at_equal_time) for one in rows}
  assert values["base"] == (0, 0)
  assert values["double"] == (None, 0)
  assert values["slow"] == (-0.5, pytest.approx(0.5))
  assert values["too slow"] == (-2.0, None)
  assert values["between"][1] == pytest.approx(0.0)
  assert values["more"][1] == pytest.approx(np.log2(1.5) - 0.5)
  alike = [one.name for one in rows if not one.is_told_apart]
  assert alike == ["base", "same"]
