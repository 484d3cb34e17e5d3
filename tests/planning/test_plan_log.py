"""What a plan says to people."""

import re

from transformer_xl.planning import plan_log


def program(**values):
  return {
    "fits": True,
    "hbm_bytes_per_chip": 3 * 2**30,
    "hbm_capacity_bytes": 16 * 2**30,
    "estimated_cycles": 200,
    "kernel_cycles": 50,
    "cycles_by_part": {
      "attention": {"forward": 30, "backward": 60},
      "optimizer": {"forward": 60, "backward": 0},
    },
    "executed_over_useful": 1.25,
    "estimated_step_seconds": 0.0372,
    "estimated_step_seconds_at_most": 0.05,
    "estimated_tokens_per_second_per_chip": 51753.7,
    "collective_bytes": {"all-reduce": 14e6},
    "collective_seconds": 0.002,
  } | values


def result(**values):
  return {
    "topology": "v5e:4x4",
    "config": {"model": {"auxiliary": {"layers": "none"}}},
    "num_chips": 16,
    "parameters": {"layers": 3000, "embedding": 600},
    "num_parameters": 3600,
    "num_steps": 4000,
    "train": program(),
    "eval": program(hbm_bytes_while_evaluating=4 * 2**30),
    "generate": program(estimated_step_seconds=0.00022),
    "hours": 66.04,
    "chip_hours": 1056.6,
    "cost": {
      "dollars_on_demand": 1267.9,
      "dollars_spot": 258.7,
      "dollars_per_chip_hour": {"on_demand": 1.2, "spot": 0.2449},
      "source": "a catalog",
      "date": "1 May 2026",
    },
  } | values


def said(caplog, plan):
  caplog.set_level("INFO")
  plan_log.log(plan)
  return caplog.messages


def test_a_plan_has_time_and_cost_in_whole_numbers_with_the_source(caplog):
  messages = said(caplog, result())
  assert messages[:4] == [
    "v5e:4x4: 16 chips; 3,600 parameters (layers 3,000, embedding 600).",
    "Training fits: 3.00 of 16.00 GiB a chip, 37 ms a step, 51,754 tokens/s "
    "per chip.",
    "Evaluation fits: 3.00 of 16.00 GiB a chip, 37 ms a step, 51,754 tokens/s "
    "per chip.",
    "Generation fits: 3.00 of 16.00 GiB a chip, 0.22 ms a step, 51,754 "
    "tokens/s per chip.",
  ]
  assert (
    "All 4,000 updates: 66 hours, 1,057 chip-hours, $1,268 on demand at $1.20 "
    "a chip-hour or $259 on spot chips at $0.24 (a catalog, 1 May 2026)."
  ) in messages
  shares = next(text for text in messages if text.startswith("Share of the"))
  rows = [re.sub(" {2,}", "|", line) for line in shares.splitlines()[2:]]
  assert rows == [
    "attention|15|30|15|15",
    "optimizer|30|0|30|30",
    "kernels, at least|25|0|25|25",
  ]
  assert messages[-1].startswith("How to read this: nothing has run.")
  assert "up to 50 ms where clusters of the softmax overflow." in messages[-1]
  assert "14 MB a chip and update, 2 ms if nothing" in messages[-1]
  assert "1.2 times the useful operations" in messages[-1]


def test_small_times_and_costs_have_units_that_suit_them(caplog):
  cost = result()["cost"] | {"dollars_on_demand": 0.26, "dollars_spot": 0.004}
  messages = said(caplog, result(hours=0.0002, chip_hours=0.0032, cost=cost))
  assert any(
    "updates: 0.72 seconds, 0.0032 chip-h" in text for text in messages
  )
  assert any("$0.26 on demand" in text for text in messages)
  assert any("less than $0.01 on spot" in text for text in messages)
  assert any(
    "All 4,000 updates: 30 minutes, 8 chip-hours." in text
    for text in said(caplog, result(hours=0.5, chip_hours=8, cost=None))
  )


def test_a_program_that_does_not_fit_says_what_does(caplog):
  nearest = program(change="--config.model.remat=full")
  train = {"fits": False, "reason": "too much.", "nearest_that_fits": nearest}
  messages = said(caplog, result(train=train))
  assert messages[1] == "Training does not fit: too much."
  assert any(
    text.startswith("Training fits with --config.model.remat=full: fits: 3.00")
    for text in messages
  )


def test_a_plan_says_that_layers_predict(caplog):
  predicting = {"model": {"auxiliary": {"layers": "shared"}}}
  explained = said(caplog, result(config=predicting))[-1]
  assert "up to 50 ms where clusters of the softmax overflow and all" in (
    explained
  )


def test_a_plan_for_gpus_says_what_its_times_leave_out(caplog):
  explained = said(caplog, result(topology="h100:8", cost=None))[-1]
  assert "JAX takes three quarters" in explained
  assert "starting a kernel counts nothing" in explained
  assert "docs/gpu.md" in explained
  assert "TPU" not in explained
