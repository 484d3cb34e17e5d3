"""Numbers as a report writes and chooses them."""

import json

from tests import kinds
from tests.report import conftest
from transformer_xl.report import tables
from transformer_xl.workdir import run_history


def test_cards_name_what_they_mean_and_leave_out_what_is_empty():
  recurrent = kinds.recurrent()
  card = {
    "nll": 2.5,
    "mem_len": 8,
    "warmup_len": -1,
    "same_length": False,
    "layers": [recurrent, "attention"],
    "mixer_fields": {},
    "initialised_from": None,
  }
  lost = {**card, "mem_len": 0, "nll": None}
  run = run_history.History("a", "a", {"config": {}}, [], [card, lost], None)
  table = tables.cards([run])
  assert table.columns == ["memory (tokens)", "loss (nats per token)"]
  assert table.rows == [["0", "not a number"], ["8", "2.5"]]
  assert table.shared == {
    "warm-up (tokens)": "as the memory",
    "same length": "no",
    "layers": f"{recurrent}, attention",
  }


def test_a_configuration_and_its_origin_have_no_empty_values():
  record = {"config": {"train": {"init_from": ""}}, "initialised_from": None}
  run = run_history.History("a", "a", record, [], [], None)
  (setting,) = tables.configuration(run)["train"]
  assert (setting.name, setting.value) == ("init_from", "''")
  assert tables.provenance(run) == {"workdir": "a"}


def test_the_loss_of_a_run_is_its_lowest_static_one():
  card = {"split": "test", "mem_len": 8, "temperature": 1.0}
  cards = [
    {**card, "nll": 3.0},
    {**card, "nll": 2.9, "temperature": 1.1},
    {**card, "nll": 2.0, "dynamic": {"kind": "rms"}, "cache": None},
    {**card, "nll": 2.0, "dynamic": None, "cache": {"size": 100}},
    {**card, "nll": 2.0, "dataset": "text8"},
    {**card, "nll": 2.0, "targets": "answers"},
  ]
  config = {"data": {"name": "enwik8", "targets": "all"}}
  run = run_history.History("run", "run", {"config": config}, [], cards, None)
  expected = ("Test loss, memory 8, temperature 1.1", "2.9000 nats")
  assert expected in tables.facts(run)


def test_a_run_that_does_not_know_its_text_names_that_of_its_loss():
  """As an import, whose data are called `imported`."""
  card = {"split": "test", "mem_len": 8, "num_parameters": 1234}
  cards = [
    {**card, "nll": 1.0, "dataset": "text8"},
    {**card, "nll": 3.0, "dataset": "wikitext103"},
    {**card, "nll": 4.0, "dataset": "wikitext103"},
  ]
  config = {"data": {"name": "imported", "targets": "all"}}
  run = run_history.History("run", "run", {"config": config}, [], cards, None)
  facts = tables.facts(run)
  assert ("Test loss, memory 8, of wikitext103", "3.0000 nats") in facts
  assert ("Parameters", "1,234") in facts


def test_the_newest_step_counts_whose_loss_is_no_number(data_dir, tmp_path):
  conftest.write_run(data_dir, tmp_path, has_model=False)
  lines = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": None}]
  for kept in (lines, lines[1:]):
    text = "".join(f"{json.dumps(line)}\n" for line in kept)
    (tmp_path / "metrics.jsonl").write_text(text)
    found = dict(tables.facts(run_history.read(str(tmp_path))))
    assert found["Steps"].startswith("20 of ")
    assert found["Training loss"] == tables.NOT_A_NUMBER


def test_large_numbers_are_not_written_out():
  assert tables.text(5.54e34) == "5.54e+34"
  assert tables.text(123456.7) == "123,457"


def test_a_measurement_says_what_it_read():
  attention = {
    **{"dataset": "ptb", "split": "valid", "num_tokens": 2000},
    "checkpoint_step": 60,
  }
  assert tables.measured_on(attention) == {
    **{"text": "ptb, valid", "tokens": "2,000", "after step": "60"},
  }
  recl = {
    **attention,
    "dataset": "",
    "models": [{"checkpoint_step": 60}, {"checkpoint_step": 80}],
  }
  del recl["checkpoint_step"]
  assert tables.measured_on(recl)["after step"] == "60, 80"
  assert tables.measured_on(recl)["text"] == "given"
