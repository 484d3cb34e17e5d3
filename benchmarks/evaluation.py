"""Speed of evaluation at long memory, one JSON line; see `speed`.

    python -m benchmarks.evaluation [--mem_len=3800 --batch_size=1 ...]

The default is 6 layers of width 256 with 8 heads, segments of 128 tokens with
1,600 in memory, and 8 lanes.
"""

from benchmarks import speed
from benchmarks import workload

if __name__ == "__main__":
  speed.run(workload.make(workload.EVALUATE, workload.SMALL))
