"""Speed of evaluation with a long memory, as one JSON line; see `speed`.

    python -m benchmarks.evaluation [--mem_len=3800 --batch_size=1 ...]

The default has 6 layers of width 256 with 8 heads, segments of 128 tokens, a
memory of 1,600 and 8 lanes.
"""

from benchmarks import speed
from benchmarks import workload

if __name__ == "__main__":
  speed.run_command(workload.make(workload.EVALUATE, workload.SMALL))
