"""What a run has left in its workdir."""

import json
import pathlib

from transformer_xl.workdir import checkpoint_items


def lines(workdir):
  path = pathlib.Path(workdir) / "metrics.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()]


def steps(workdir):
  folder = pathlib.Path(workdir) / checkpoint_items.DIRECTORY
  return sorted(int(path.name) for path in folder.iterdir())
