r"""Memory, open files and step time of a long run with many resumes.

    python -m benchmarks.soak --steps=200000 --resumes=20 --workdir=runs/soak

Trains a tiny model on the CPU, with checkpoints and evaluations. The first
process does half of the steps, since leaks show only in a long life. The others
divide the rest equally; each ends by SIGTERM. Resident memory, open files and
the step are recorded every second. Prints medians of them as JSON.
"""

import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

from absl import app
from absl import flags

from transformer_xl import signals

_INTERVAL = 1.0  # Seconds.
_WARM_UP = 0.4  # Share of a life that is ignored.
_CALL = 100


def define_flags() -> None:
  """Defines the flags of `main`."""
  flags.DEFINE_integer("steps", 200_000, "Total number of updates.")
  flags.DEFINE_integer("resumes", 20, "Processes after the first.")
  flags.DEFINE_string("workdir", "runs/soak", "Must be new.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  lives = measure(chosen.workdir, steps=chosen.steps, resumes=chosen.resumes)
  print(json.dumps(summary(lives), indent=2))


def measure(
  workdir: str, *, steps: int, resumes: int
) -> list[list[dict[str, float]]]:
  """Runs all processes; returns the samples of each."""
  os.makedirs(os.path.dirname(os.path.abspath(workdir)), exist_ok=True)
  half = steps // 2
  rest = steps - half
  part = rest // max(resumes, 1)
  ends = [half + part * index for index in range(resumes)]
  return [_live(workdir, end, steps) for end in [*ends, steps]]


def _live(workdir: str, end: int, steps: int) -> list[dict[str, float]]:
  """Runs one process until it has logged the step `end`, or finishes."""
  with open(f"{workdir}.log", "ab") as log:
    process = subprocess.Popen(
      _command(workdir, steps),
      stdout=log,
      stderr=log,
      env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
  start = time.monotonic()
  samples: list[dict[str, float]] = []
  is_stopping = False
  while process.poll() is None:
    sample = _sample(process.pid, workdir)
    if sample:
      seconds = round(time.monotonic() - start, 2)
      samples.append({"seconds": seconds, **sample})
    is_due = sample and sample["step"] >= end and end < steps
    if is_due and not is_stopping:
      process.send_signal(signal.SIGTERM)
      is_stopping = True
    time.sleep(_INTERVAL)
  expected = (0, signals.TERMINATED) if is_stopping else (0,)
  if process.returncode not in expected:
    sys.exit(f"the run ended with {process.returncode}: see {workdir}.log")
  return samples


def _command(workdir: str, steps: int) -> list[str]:
  """A model of 4,000 parameters on the sources of the standard library."""
  sizes = {
    "model.num_layers": 2,
    "model.model_dim": 8,
    "model.num_heads": 2,
    "model.head_dim": 4,
    "model.ff_dim": 16,
    "data.prepare": True,
    "data.dir": os.path.join(os.path.dirname(workdir), "data"),
    "train.num_steps": steps,
    "train.batch_size": 2,
    "train.segment_len": 8,
    "train.mem_len": 8,
    "train.segments_per_call": _CALL,
    "train.log_every_steps": _CALL,
    "train.eval_every_steps": 20 * _CALL,
    "train.learning_rate": 1e-3,
    "eval.batch_size": 64,
    "eval.segment_len": 64,
    "eval.mem_len": (8,),
    "checkpoint.every_steps": 10 * _CALL,
  }
  return [
    sys.executable,
    "-m",
    "transformer_xl.main",
    "--config=base",
    f"--workdir={workdir}",
    *(f"--config.{name}={value}" for name, value in sizes.items()),
  ]


def _sample(pid: int, workdir: str) -> dict[str, float] | None:
  """Resource use of a process; None before its first log line."""
  try:
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    handles = len(os.listdir(f"/proc/{pid}/fd"))
    ticks = pathlib.Path(f"/proc/{pid}/stat").read_text().split()[13:15]
    step = _last_step(workdir)
  except (OSError, IndexError):
    return None
  return {
    "step": step,
    "rss_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), 1),
    "handles": handles,
    "cpu_seconds": sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
  }


def _last_step(workdir: str) -> int:
  """The step of the last complete training line."""
  with open(os.path.join(workdir, "metrics.jsonl"), "rb") as file:
    file.seek(max(0, os.path.getsize(file.name) - 2000))
    lines = file.read().decode().splitlines()
  steps = [json.loads(s)["step"] for s in lines[1:] if s.endswith("}")]
  return max(steps, default=0)


def summary(lives: list[list[dict[str, float]]]) -> dict[str, Any]:
  """Figures for growth, slow-down and open files."""
  first = _warm(lives[0])
  quarter = len(first) // 4
  early = first[:quarter]
  late = first[-quarter:]
  others = [_warm(life) for life in lives[1:]]
  return {
    "measured": datetime.date.today().isoformat(),
    "steps": lives[-1][-1]["step"],
    "resumes": len(lives) - 1,
    "first_life_steps": first[-1]["step"],
    "rss_mib_early": _median(early, "rss_mib"),
    "rss_mib_late": _median(late, "rss_mib"),
    "rss_growth": _median(late, "rss_mib") / _median(early, "rss_mib") - 1,
    "rss_mib_of_resumed": [_median(life, "rss_mib") for life in others if life],
    "handles": sorted({int(s["handles"]) for s in first}),
    "handles_early": _median(early, "handles"),
    "handles_late": _median(late, "handles"),
    "cpu_ms_a_step_early": _cost(early),
    "cpu_ms_a_step_late": _cost(late),
  }


def _warm(life: list[dict[str, float]]) -> list[dict[str, float]]:
  """The samples after the warm-up, from the first that shows a step."""
  if not life:
    return []
  begin, end = life[0]["step"], life[-1]["step"]
  edge = begin + _WARM_UP * (end - begin)
  return [sample for sample in life if sample["step"] >= edge]


def _median(samples: list[dict[str, float]], name: str) -> float:
  return statistics.median(sample[name] for sample in samples)


def _cost(samples: list[dict[str, float]]) -> float:
  """CPU milliseconds per step, including evaluations and checkpoints."""
  steps = samples[-1]["step"] - samples[0]["step"]
  seconds = samples[-1]["cpu_seconds"] - samples[0]["cpu_seconds"]
  return 1000 * seconds / max(steps, 1)


if __name__ == "__main__":
  define_flags()
  app.run(main)
