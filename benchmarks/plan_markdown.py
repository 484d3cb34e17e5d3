"""Writes plans as Markdown tables between two marks of a page."""

import math
import pathlib
from typing import Any

BEGIN = "<!-- Written by `make plan-table`. -->\n"
END = "<!-- The end of what it writes. -->\n"
GIB = 2**30


def write(page: pathlib.Path, text: str) -> None:
  """Replaces what is between the marks of a page."""
  before, _, rest = page.read_text("utf-8").partition(BEGIN)
  _, _, after = rest.partition(END)
  page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")


def tables(lines: list[dict[str, Any]]) -> str:
  """All tables."""
  ordered = sorted(lines, key=_order)
  train = _train_lines(ordered)
  policies = [line for line in ordered if line.get("remat")]
  evaluation = [line for line in ordered if line["program"] == "eval"]
  parts = [
    "Training:\n",
    _table(TRAIN, map(_train, train)),
    "Evaluation:\n",
    _table(EVALUATION, map(_evaluation, evaluation)),
  ]
  if policies:
    parts += [
      "Rematerialisation (`config.model.remat`):\n",
      _table(REMAT, map(_remat, _compared(train, policies))),
    ]
  return "\n".join(parts)


def _train_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Plans of training as in the experiments."""
  return [
    line
    for line in lines
    if line["program"] == "train" and not line.get("remat")
  ]


TRAIN = (
  "configuration",
  "slice",
  "lanes",
  "HBM GiB a chip",
  "ms a step",
  "at most",
  "collectives, at least",
  "tokens/s/chip",
  "MFU",
  "executed / useful FLOPs",
  "hours",
  "chip-hours",
  "planned",
)
REMAT = (
  "configuration",
  "slice",
  "policy",
  "HBM GiB a chip",
  "ms a step",
  "executed / useful FLOPs",
  "planned",
)
EVALUATION = (
  "configuration",
  "slice",
  "memory",
  "lanes",
  "HBM GiB a chip",
  "tokens/s/chip",
  "MFU",
  "planned",
)


def _train(line) -> list[str]:
  plan, changed = line["plan"], line["changes"]
  cells = [line["experiment"], line["topology"], changed["train.batch_size"]]
  if "hbm_bytes_per_chip" not in plan:
    return [*map(str, cells), "does not fit", *["-"] * 8, _planned(line)]
  speed = plan["estimated_tokens_per_second_per_chip"]
  chip_hours = line["published_tokens"] / speed / 3600
  return [
    *map(str, cells),
    _memory(plan),
    f"{plan['estimated_step_seconds'] * 1e3:.0f}",
    f"{plan['estimated_step_seconds_at_most'] * 1e3:.0f}",
    f"{plan['collective_seconds'] * 1e3:.1f}",
    f"{speed:,.0f}",
    f"{plan['estimated_mfu']:.2f}",
    f"{plan['executed_over_useful']:.2f}",
    _rounded(chip_hours / line["num_chips"]),
    _rounded(chip_hours),
    _planned(line),
  ]


def _compared(train, policies) -> list[dict[str, Any]]:
  """Plans with a rematerialisation policy, each group after its baseline."""
  subjects = {_subject(line) for line in policies}
  baselines = [line for line in train if _subject(line) in subjects]
  return sorted([*baselines, *policies], key=_subject)


def _subject(line) -> tuple[str, str]:
  return line["experiment"], line["topology"]


def _remat(line) -> list[str]:
  plan = line["plan"]
  return [
    *_subject(line),
    line.get("remat") or "none",
    _memory(plan),
    f"{plan['estimated_step_seconds'] * 1e3:.0f}",
    f"{plan['executed_over_useful']:.2f}",
    _planned(line),
  ]


def _evaluation(line) -> list[str]:
  plan = line["plan"]
  fits = "hbm_bytes_per_chip" in plan
  return [
    line["experiment"],
    line["topology"],
    str(plan.get("mem_len", "")),
    str(line["changes"]["eval.batch_size"]),
    _memory(plan) if fits else "does not fit",
    f"{plan['estimated_tokens_per_second_per_chip']:,.0f}" if fits else "-",
    f"{plan['estimated_mfu']:.2f}" if fits else "-",
    _planned(line),
  ]


def _planned(line) -> str:
  """The date of a plan, and whether its code is not today's."""
  return line["date"] if line["is_current"] else f"{line['date']}, older code"


def _memory(plan) -> str:
  held, capacity = plan["hbm_bytes_per_chip"], plan["hbm_capacity_bytes"]
  mark = "" if plan["fits"] else " **too much**"
  return f"{held / GIB:.2f} of {capacity / GIB:.2f}{mark}"


def _rounded(hours: float) -> str:
  """Rounds to two significant digits, the precision of an estimate."""
  digits = 1 - math.floor(math.log10(hours))
  return f"{round(hours, digits):,.{max(digits, 0)}f}"


def _order(line) -> tuple:
  return (
    line["experiment"],
    line["topology"].partition(":")[0],
    line["num_chips"],
  )


def _table(header, rows) -> str:
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
