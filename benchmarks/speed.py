"""Shared code of the speed benchmarks `train_step`, `evaluation`, `generation`.

Peak bytes are those that XLA plans for arguments, results and temporaries. MFU
is useful FLOPs over the device's peak, null if that is unknown. Useful,
executed and repeated FLOPs are per token (`executed_work.py`); in training they
are three times those of the forward pass.
"""

import json
import statistics
import time
from typing import Any

import jax
from absl import app
from absl import flags

from benchmarks import executed_work
from benchmarks import ours
from benchmarks import workload
from transformer_xl import hardware
from transformer_xl.model import kv_cache

_REPEATS = flags.DEFINE_integer("repeats", 10, "Number of timed calls.")
_SEGMENTS = flags.DEFINE_integer("segments", 4, "Segments per call.")


def run_command(defaults: workload.Workload) -> None:
  """Measures a workload, changed by flags, and prints one JSON line."""
  workload.define_flags(workload.fields(defaults))

  def main(argv: list[str]) -> None:
    del argv
    print(json.dumps(measure(workload.from_flags(defaults))))

  app.run(main)


def measure(work: workload.Workload) -> dict[str, Any]:
  """Compiles a workload and reports the median time of some calls."""
  runner = ours.make(work, count=_SEGMENTS.value)
  seconds = []
  for _ in range(_REPEATS.value):
    start = time.perf_counter()
    runner()
    seconds.append((time.perf_counter() - start) / _SEGMENTS.value)
  median = statistics.median(seconds)
  device = jax.devices()[0].device_kind
  work_done = _work(work)
  tokens_per_second = work.tokens / median
  peak = hardware.PEAK_FLOPS.get(device)
  return {
    "benchmark": work.task,
    "device": device,
    "num_devices": jax.device_count(),
    "jax": jax.__version__,
    **workload.fields(work),
    "milliseconds": round(median * 1e3, 2),
    "fastest_milliseconds": round(min(seconds) * 1e3, 2),
    "tokens_per_second": round(tokens_per_second),
    **{
      f"{name}_flops_per_token": round(flops)
      for name, flops in work_done._asdict().items()
    },
    "executed_flops_per_second": round(tokens_per_second * work_done.executed),
    "mfu": peak
    and tokens_per_second * work_done.useful / peak / jax.device_count(),
    "compile_seconds": round(runner.compile_seconds, 2),
    "peak_bytes": runner.peak_bytes,
  }


def _work(work: workload.Workload) -> executed_work.Work:
  """FLOPs per token, including the backward pass in training."""
  config = workload.experiment(work)
  slots = 0
  if work.task != "train":
    slots = kv_cache.Reader(
      config.model,
      mem_len=work.mem_len,
      segment_len=work.segment_len,
      clamp_len=0,
      same_length=False,
    ).num_slots
  forward = executed_work.forward_work(
    config.model,
    batch_size=work.batch_size,
    segment_len=work.segment_len,
    mem_len=work.mem_len,
    num_slots=slots,
  )
  passes = 3 if work.task == "train" else 1
  return executed_work.Work(*(passes * flops for flops in forward))
