"""Speed of generation, as one JSON line; see `speed`.

    python -m benchmarks.generation [--segments=64 --batch_size=1 ...]

A segment is one token per sample. The default has 6 layers of width 256 with
8 heads, 1,600 tokens in memory and one sample.
"""

from benchmarks import speed
from benchmarks import workload

if __name__ == "__main__":
  speed.run_command(workload.make(workload.GENERATE, workload.SMALL))
