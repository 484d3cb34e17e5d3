"""Log lines that describe a plan."""

from typing import Any

from absl import logging

Plan = dict[str, Any]  # The content of `results/plan.json`, or of a part.


def log(result: Plan) -> None:
  """Logs the content of `results/plan.json`."""
  logging.info(
    "%s, %d chips; %d parameters: %s",
    result["topology"],
    result["num_chips"],
    result["num_parameters"],
    result["parameters"],
  )
  for kind in ("train", "eval", "generate"):
    plan = result[kind]
    if "hbm_bytes_per_chip" not in plan:
      logging.info("%s does not fit: %s", kind, plan["reason"])
      continue
    logging.info(
      "%s: %s, %.2f of %.2f GiB per chip (arguments %.2f, temporaries %.2f); "
      "estimated by the compiler, without collectives: %.1f M cycles, %.1f ms "
      "(%.1f at most) per step, %.0f tokens/s/chip; %.2f times the useful "
      "FLOPs; collectives at least %.1f MB and %.1f ms",
      kind,
      "fits" if plan["fits"] else "does not fit",
      plan["hbm_bytes_per_chip"] / 2**30,
      plan["hbm_capacity_bytes"] / 2**30,
      plan["argument_bytes"] / 2**30,
      plan["temp_bytes"] / 2**30,
      plan["estimated_cycles"] / 1e6,
      plan["estimated_step_seconds"] * 1e3,
      plan["estimated_step_seconds_at_most"] * 1e3,
      plan["estimated_tokens_per_second_per_chip"],
      plan["executed_over_useful"],
      sum(plan["collective_bytes"].values()) / 1e6,
      plan["collective_seconds"] * 1e3,
    )
    logging.info("M cycles of %s\n%s", kind, _table(plan))
  if nearest := result["train"].get("nearest_that_fits"):
    logging.info("Training fits with %s", nearest["change"])
  if result["hours"]:
    logging.info(
      "All updates: %.3g hours, %.3g chip-hours, without collectives.",
      result["hours"],
      result["chip_hours"],
    )
  if held := result["eval"]["hbm_bytes_while_evaluating"]:
    logging.info("Validation while training: %.2f GiB per chip", held / 2**30)


def _table(plan: Plan) -> str:
  """A table of millions of cycles for each part of the model."""
  lines = [f"{'':30}{'forward':>9}{'backward':>9}"]
  for part, cycles in plan["cycles_by_part"].items():
    both = (cycles[name] / 1e6 for name in ("forward", "backward"))
    lines.append(f"{part:30}" + "".join(f"{value:9.2f}" for value in both))
  lines.append(
    f"{'kernels, both at least':30}{plan['kernel_cycles'] / 1e6:9.2f}"
  )
  return "\n".join(lines)
