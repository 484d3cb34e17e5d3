"""Units of loss, the work of one token, and the window of a log line."""

import math
import time
from typing import Any
from typing import NamedTuple

import jax

from transformer_xl import config as config_lib
from transformer_xl import model as model_lib
from transformer_xl import segment_lengths
from transformer_xl import step as step_lib

# Dense bfloat16 FLOP/s of one JAX device, by `device_kind`, as published. A v4
# chip is one device; v2 and v3 have two cores, each its own device.
PEAK_FLOPS = {
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5": 459e12,
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
  "NVIDIA A100-SXM4-40GB": 312e12,
  "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA H100 80GB HBM3": 989e12,
  "NVIDIA H200": 989e12,
}


def perplexity(nll: float) -> float:
  """From mean nats per token."""
  return math.exp(nll) if nll < 700 else math.inf


def bits(nll: float) -> float:
  """From nats."""
  return nll / math.log(2)


def forward_flops_per_token(
  config: config_lib.ModelConfig, *, segment_len: int, mem_len: int
) -> float:
  """Useful operations, two for each multiply-add, of one token's prediction.

  Counted: projections of query, key, value and output 8 D H Dh, feed-forward
  4 D F, and three products (content, position, values) 6 H Dh k over the k
  keys that a token sees on average, M + (T + 1) / 2, of which absolute
  encodings lack the second; and the softmax over the
  shortlist. Not counted: masked keys, projecting memory and positions again
  for every segment, and tail clusters, which most tokens do not need.
  """
  width = config.num_heads * config.head_dim
  keys = mem_len + (segment_len + 1) / 2
  layer: float = (
    8 * config.model_dim * width + 4 * config.model_dim * config.ff_dim
  )
  products = 2 if config.encoding in model_lib.ABSOLUTE else 3
  layer += 2 * products * width * keys
  ends = (*config.cutoffs, config.vocab_size)
  head = 2 * config.embed_dim * (ends[0] + len(config.cutoffs))
  return config.num_layers * layer + head


class Work(NamedTuple):
  """Operations of one token's forward pass; a training step has three."""

  useful: float  # `forward_flops_per_token`.
  executed: float  # In matrix products, masked ones included.
  reprojection: float  # Of those: keys and values of memory, made again.


def forward_work(
  config: config_lib.ModelConfig,
  *,
  batch_size: int,
  segment_len: int,
  mem_len: int,
  num_slots: int = 0,
) -> Work:
  """What relative attention in whole matrices computes for a token.

  Of K = M + T keys, each query sees K of the three products, 6 H Dh K, and a
  segment of T tokens projects K keys, K values and, for all lanes at once, K
  distances. Tail clusters are left out here, too.

  Args:
    config: of the model.
    batch_size: B, who share the distances' projections.
    segment_len: T.
    mem_len: M.
    num_slots: R, where keys and values are cached: none is projected again,
      and the position product has R + T - 1 columns.
  """
  lengths = {"segment_len": segment_len, "mem_len": mem_len}
  useful = forward_flops_per_token(config, **lengths)
  width = config.num_heads * config.head_dim
  seen = mem_len + (segment_len + 1) / 2
  dense = useful - config.num_layers * 6 * width * seen
  if num_slots:
    products = 2 * width * (3 * num_slots + segment_len - 1)
    return Work(useful, dense + config.num_layers * products, 0.0)
  keys = mem_len + segment_len
  again = 4 * config.model_dim * width * mem_len / segment_len
  distances = 2 * config.model_dim * width * keys / (batch_size * segment_len)
  layer = 6 * width * keys + again + distances
  executed = dense + config.num_layers * layer
  return Work(useful, executed, config.num_layers * again)


def mfu(
  tokens_per_second: float,
  config: config_lib.ModelConfig,
  *,
  segment_len: int,
  mem_len: int,
) -> float | None:
  """Useful training FLOPs (three forward passes) over the devices' peak.

  None where the peak of the device is not known.
  """
  peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
  if peak is None:
    return None
  flops = 3 * forward_flops_per_token(
    config, segment_len=segment_len, mem_len=mem_len
  )
  return tokens_per_second * flops / (peak * jax.device_count())


class Window:
  """What happened since the last log line.

  The sums are part of a checkpoint, so that a resumed run logs the numbers of
  the uninterrupted one. The speed leaves out compiling and pauses.
  """

  def __init__(self, sums: dict[str, float] | None = None):
    self.sums = sums or {"nll": 0.0, "num_tokens": 0.0}
    self._last: dict[str, float] = {}
    self._seconds, self._timed_tokens = 0.0, 0.0
    self._clock: float | None = None  # Unknown until something was compiled.

  def add(self, metrics: step_lib.UpdateMetrics) -> None:
    """Adds the metrics of one chunk, which are on the host already."""
    now = time.perf_counter()
    tokens = float(metrics.sums.num_tokens.sum(dtype="float64"))
    self.sums["nll"] += float(metrics.sums.nll.sum(dtype="float64"))
    self.sums["num_tokens"] += tokens
    self._last = {
      "learning_rate": float(metrics.learning_rate[-1]),
      "gradient_norm": float(metrics.gradient_norm[-1]),
    }
    if self._clock is not None:
      self._seconds += now - self._clock
      self._timed_tokens += tokens
    self._clock = now

  def continue_timing(self) -> None:
    """Leaves the time since the last chunk out."""
    self._clock = time.perf_counter()

  def record(
    self, step: int, config: config_lib.ExperimentConfig
  ) -> dict[str, Any]:
    """The log line after `step` updates; the window starts anew."""
    train, speed = config.train, None
    lengths = segment_lengths.of(config)
    if self._seconds:
      speed = self._timed_tokens / self._seconds
    result = {
      "step": step,
      "tokens": train.batch_size * lengths.tokens_before(step),
      "loss": self.sums["nll"] / self.sums["num_tokens"],
      **self._last,
      "tokens_per_second": speed,
      "mfu": speed
      and mfu(
        speed,
        config.model,
        segment_len=round(lengths.mean),
        mem_len=train.mem_len,
      ),
    }
    self.sums = {"nll": 0.0, "num_tokens": 0.0}
    self._seconds, self._timed_tokens = 0.0, 0.0
    return result
