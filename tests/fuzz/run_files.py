"""Files that a run leaves."""

import dataclasses
import json

from tests.fuzz import campaign
from tests.fuzz import files
from transformer_xl.config import load
from transformer_xl.experiments import base
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record


def readers() -> dict[str, campaign.Reader]:
  """By name, with shares of a thousand."""
  return {
    "a run's config.json": campaign.Reader([_run_config()], _saved, 4),
    "metrics.jsonl": campaign.Reader([_metrics()], _drop_after, 50),
  }


def _run_config() -> bytes:
  config = load.from_config_dict(base.get_config())
  fields = {"config": dataclasses.asdict(config), "versions": {}}
  return json.dumps(fields).encode()


def _saved(content: bytes, folder: str) -> None:
  path = files.write(folder, "config.json", content)
  run_record._saved(path)
  load.from_config_dict(load.saved(folder))


def _metrics() -> bytes:
  records = [
    {"step": step, "loss": 4.0, "learning_rate": 1e-4} for step in range(1, 9)
  ]
  records.insert(4, {"step": 4, "split": "valid", "nll": 4.1})
  return "".join(json.dumps(record) + "\n" for record in records).encode()


def _drop_after(content: bytes, folder: str) -> None:
  path = files.write(folder, "metrics.jsonl", content)
  metrics_log._drop_after(path, 5, is_evaluated=True)
  assert all(record["step"] <= 5 for record in metrics_log.read_lines(path))
