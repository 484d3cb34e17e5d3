"""Speed of a training step, as one JSON line; see `speed`.

    python -m benchmarks.train_step [--num_layers=12 --model_dim=512 ...]

The default has 6 layers of width 256 with 8 heads, segment and memory 128,
batch 8, a byte vocabulary, Adam and no dropout.
"""

from benchmarks import speed
from benchmarks import workload

if __name__ == "__main__":
  speed.run_command(workload.make(workload.TRAIN, workload.SMALL))
