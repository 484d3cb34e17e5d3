"""Draws docs/agents.svg: agents that learn with and without a memory.

    pip install --constraint requirements.lock -e '.[agents]'
    python -m benchmarks.agents_picture --seeds=0,1,2

It trains the agents that are missing in docs/measurements/agents.json, and may
be stopped at any time: each is in the file and in the picture once it has
learned. The same file gives the same picture.
"""

import json
import pathlib
import time

import matplotlib
import numpy as np
from absl import app
from absl import flags

from examples import ppo_memory
from transformer_xl.analysis import plotting

_SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of each agent.")
_FILE = pathlib.Path("docs/measurements/agents.json")
_PICTURE = pathlib.Path("docs/agents.svg")
_MEMORY_LENGTH = 40
_NUM_UPDATES = 250
_AVERAGED = 10  # Updates in a point of a curve.
_MIXERS = ("attention", "delta", "lstm")


def variants() -> dict[str, dict[str, object]]:
  """Fields of `ppo_memory.Policy` by the name of a curve."""
  return {
    "no memory": {"mixer": "attention", "remembers": False},
    **{mixer: {"mixer": mixer} for mixer in _MIXERS},
    **{
      f"{mixer}, gate": {"mixer": mixer, "has_gates": True} for mixer in _MIXERS
    },
  }


def train(name: str, seed: int) -> dict[str, object]:
  """A row of the file."""
  agent = ppo_memory.memory_chain(_MEMORY_LENGTH, **variants()[name])
  start = time.monotonic()
  core_start = time.process_time()
  returns = [*ppo_memory.train(agent, _NUM_UPDATES, seed)]
  return {
    "name": name,
    "seed": seed,
    "memory_length": _MEMORY_LENGTH,
    "seconds": round(time.monotonic() - start),
    "core_seconds": round(time.process_time() - core_start),
    "returns": [round(value, 3) for value in returns],
  }


@matplotlib.rc_context({"svg.hashsalt": "agents"})  # The same file again.
@plotting.in_style
def draw(rows: list[dict]) -> None:
  """A panel without and one with gates; a shade has the range of the seeds."""
  titles = {"": "residual connection", ", gate": "gate of GTrXL"}
  trained = {row["name"] for row in rows}
  endings = [
    ending
    for ending in titles
    if trained & {f"{mixer}{ending}" for mixer in _MIXERS}
  ]
  figure, panels = plotting.subplots(
    1, len(endings), figsize=(1 + 4 * len(endings), 3)
  )
  points = np.arange(_NUM_UPDATES // _AVERAGED) + 0.5
  panels = np.atleast_1d(panels)
  for panel, ending in zip(panels, endings, strict=True):
    names = [f"{mixer}{ending}" for mixer in _MIXERS]
    for name in [*names, "no memory"]:
      curves = np.array([row["returns"] for row in rows if row["name"] == name])
      if not curves.size:
        continue
      curves = curves.reshape(len(curves), -1, _AVERAGED).mean(axis=2)
      (line,) = panel.plot(
        *(points * _AVERAGED, curves.mean(axis=0)),
        label=name.removesuffix(ending),
        color="0.5" if name == "no memory" else None,
      )
      panel.fill_between(
        *(points * _AVERAGED, curves.min(axis=0), curves.max(axis=0)),
        color=line.get_color(),
        alpha=0.15,
        linewidth=0,
      )
    panel.set_title(titles[ending])
    panel.set_xlabel("updates")
    panel.set_ylabel("mean return")
    panel.set_ylim(-0.3, 1.05)
  lines, names = panels[0].get_legend_handles_labels()
  figure.legend(lines, names, loc="outside right center")
  figure.savefig(_PICTURE, metadata={"Date": None})


def main(argv: list[str]) -> None:
  del argv
  rows = json.loads(_FILE.read_text("utf-8")) if _FILE.exists() else []
  for seed in map(int, _SEEDS.value):
    for name in variants():
      if any((row["name"], row["seed"]) == (name, seed) for row in rows):
        continue
      row = train(name, seed)
      rows.append(row)
      lines = ",\n".join(json.dumps(row) for row in rows)
      _FILE.write_text(f"[\n{lines}\n]\n", "utf-8")
      mean = np.mean(row["returns"][-_AVERAGED:])
      print(
        f"{name}, seed {seed}: return {mean:+.2f}, {row['seconds']} s, "
        f"{row['core_seconds']} core seconds",
        flush=True,
      )
      draw(rows)


if __name__ == "__main__":
  app.run(main)
