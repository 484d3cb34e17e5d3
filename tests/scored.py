"""What `--mode=score` writes."""

import json
import os

from transformer_xl.text import score


def run(config, workdir):
  """Scores the texts of a file; returns what `results/score.json` has."""
  score.run(config, workdir)
  with open(os.path.join(workdir, "results/score.json")) as file:
    return json.load(file)
