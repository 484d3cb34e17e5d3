"""Numbers as a report writes and chooses them."""

from transformer_xl.report import tables
from transformer_xl.workdir import run_history


def test_the_loss_of_a_run_is_its_lowest_static_one():
  card = {"split": "test", "mem_len": 8, "temperature": 1.0}
  cards = [
    {**card, "nll": 3.0},
    {**card, "nll": 2.9, "temperature": 1.1},
    {**card, "nll": 2.0, "dynamic": {"kind": "rms"}, "cache": None},
    {**card, "nll": 2.0, "dynamic": None, "cache": {"size": 100}},
  ]
  run = run_history.History("run", "run", {"config": {}}, [], cards, None)
  expected = ("Test loss, memory 8, temperature 1.1", "2.9000 nats")
  assert expected in tables.facts(run)
