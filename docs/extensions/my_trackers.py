"""A tracker for trackio: https://huggingface.co/docs/trackio."""

import json
import pathlib

import trackio

from transformer_xl.workdir import tracker


class Trackio:
  def __init__(self, workdir, *, name):
    saved = json.loads(pathlib.Path(workdir, "config.json").read_text())
    self.run = trackio.init(
      "transformer-xl", name, config=saved["config"], resume="allow"
    )

  def record(self, record):
    self.run.log(tracker.scalars(record), step=record["step"])

  def close(self):
    self.run.finish()
