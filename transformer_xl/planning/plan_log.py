"""What a plan says to people: a few lines, and how to read them."""

from absl import logging

from transformer_xl.planning import gpus
from transformer_xl.workdir import metrics_log

Plan = metrics_log.Json  # The content of `results/plan.json`, or of a part.

_PROGRAMS = {
  "train": "Training",
  "eval": "Evaluation",
  "generate": "Generation",
}

_OF_TPUS = "Times are too long where memory bandwidth decides."
_OF_GPUS = (
  "A chip is a GPU, of whose memory JAX takes three quarters. Matrix products "
  "count as if they reached the published peak, and starting a kernel counts "
  "nothing, so that an update takes longer than this, and one of a small model "
  "much longer."
)


def log(result: Plan) -> None:
  """Logs the content of `results/plan.json`."""
  parts = ", ".join(
    f"{name} {size:,}" for name, size in result["parameters"].items()
  )
  logging.info(
    "%s: %d chips; %s parameters (%s).",
    result["topology"],
    result["num_chips"],
    f"{result['num_parameters']:,}",
    parts,
  )
  for kind, name in _PROGRAMS.items():
    logging.info("%s %s", name, program(result[kind]))
  if nearest := result["train"].get("nearest_that_fits"):
    logging.info(
      "Training fits with %s: %s", nearest["change"], program(nearest)
    )
  if held := result["eval"]["hbm_bytes_while_evaluating"]:
    logging.info("Validation during training: %.2f GiB a chip.", held / 2**30)
  if result["hours"] is not None:
    logging.info("%s", _whole_run(result))
  logging.info("Share of the time, in percent:\n%s", _table(result))
  logging.info("%s", _explanation(result))


def program(plan: Plan) -> str:
  """What one program needs."""
  if "hbm_bytes_per_chip" not in plan:
    return f"does not fit: {plan['reason']}"
  return (
    f"{'fits' if plan['fits'] else 'does not fit'}: "
    f"{plan['hbm_bytes_per_chip'] / 2**30:.2f} of "
    f"{plan['hbm_capacity_bytes'] / 2**30:.2f} GiB a chip, "
    f"{_rounded(plan['estimated_step_seconds'] * 1e3)} ms a step, "
    f"{plan['estimated_tokens_per_second_per_chip']:,.0f} tokens/s per chip."
  )


def _whole_run(result: Plan) -> str:
  """Time and cost of all updates."""
  hours = result["hours"]
  time = f"{_rounded(hours)} hours"
  if hours < 1:
    time = f"{_rounded(hours * 60)} minutes"
  if hours * 60 < 1:
    time = f"{_rounded(hours * 3600)} seconds"
  line = (
    f"All {result['num_steps']:,} updates: {time}, "
    f"{_rounded(result['chip_hours'])} chip-hours"
  )
  cost = result["cost"]
  if cost is None:
    return f"{line}."
  prices = cost["dollars_per_chip_hour"]
  return (
    f"{line}, {_dollars(cost['dollars_on_demand'])} on demand at "
    f"${prices['on_demand']:.2f} a chip-hour or "
    f"{_dollars(cost['dollars_spot'])} on spot chips at ${prices['spot']:.2f} "
    f"({cost['source']}, {cost['date']})."
  )


def _explanation(result: Plan) -> str:
  """One paragraph on what the numbers are."""
  train = result["train"].get("nearest_that_fits") or result["train"]
  is_gpu = gpus.are_named(result["topology"])
  lines = [
    "How to read this: nothing has run. Memory and times are estimates of "
    "XLA's compiler. A step is an update of training, a segment in every lane "
    "of evaluation, or a token of every sample.",
    _OF_GPUS if is_gpu else _OF_TPUS,
  ]
  if "hbm_bytes_per_chip" in train:
    at_most = _rounded(train["estimated_step_seconds_at_most"] * 1e3)
    traffic = _rounded(sum(train["collective_bytes"].values()) / 1e6)
    seconds = _rounded(train["collective_seconds"] * 1e3)
    where = "clusters of the softmax overflow"
    if result["config"]["model"]["auxiliary"]["layers"] != "none":
      where += " and all layers predict (model.auxiliary.layers)"
    lines.append(
      f"An update takes up to {at_most} ms where {where}. The times leave "
      "out what chips send to each other: at least "
      f"{traffic} MB a chip and update, {seconds} ms if nothing is computed "
      f"meanwhile. Training computes {train['executed_over_useful']:.1f} times "
      "the useful operations: masked keys, projections of memory and "
      "distances, and what is computed twice."
    )
  page = "docs/gpu.md" if is_gpu else "docs/tpu.md"
  lines.append(f"{page} says more; results/plan.json has every number.")
  return " ".join(lines)


def _table(result: Plan) -> str:
  """Percent of a step that each part of the model takes, in each program."""
  columns = {
    "training forward": _shares(result["train"], "forward"),
    "backward": _shares(result["train"], "backward"),
    "evaluation": _shares(result["eval"], "forward"),
    "generation": _shares(result["generate"], "forward"),
  }
  lines = [" " * 28 + "".join(f"{name:>18}" for name in columns)]
  parts = dict.fromkeys(part for column in columns.values() for part in column)
  for part in parts:
    shares = [column.get(part, 0) for column in columns.values()]
    if max(shares) >= 0.5:
      line = "".join(f"{share:18.0f}" for share in shares)
      lines.append(f"{part:28}{line}")
  return "\n".join(lines)


def _shares(plan: Plan, direction: str) -> dict[str, float]:
  """Percent of a step by part; none if the program does not fit.

  Kernels, whose direction is not known, are counted as forward.
  """
  plan = plan.get("nearest_that_fits") or plan
  if "cycles_by_part" not in plan:
    return {}
  parts = {
    name: part[direction] for name, part in plan["cycles_by_part"].items()
  }
  if direction == "forward":
    parts["kernels, at least"] = plan["kernel_cycles"]
  percent = 100 / plan["estimated_cycles"]
  return {name: percent * cycles for name, cycles in parts.items()}


def _dollars(amount: float) -> str:
  """An amount in whole dollars; a small one in cents."""
  if amount < 0.01:
    return "less than $0.01"
  return f"${amount:,.0f}" if amount >= 10 else f"${amount:.2f}"


def _rounded(number: float) -> str:
  """A whole number, or two digits of one below ten."""
  return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
