"""Attention whose heads learn how far they look (Sukhbaatar et al. 2019).

Each head has a span z of its own, up to `max_span` S. A key at the distance d
has the weight

    a(d) = m(d) exp(s(d)) / sum over e of m(e) exp(s(e))
    m(d) = min(max((R + z - d) / R, 0), 1)

with the score s = q (k + r_d) / sqrt(Dh), a learned vector r_d of the distance,
and a ramp R. The mean of all spans times `penalty` is added to the loss, so
that a head is as long as it is useful (arXiv 1905.07799, section 2). They clamp
z after each update; here it is S sigmoid(b), with a parameter b, which needs no
clamp. Keys beyond a span are masked and not left out, so nothing gets faster.

    transformer-xl --extensions=examples/adaptive_span.py --workdir=runs/spans \
      --config=ablation_ptb --config.model.layers="('adaptive_span',)" \
      --config.train.mem_len=128 --config.eval.mem_len=128
    python -m examples.adaptive_span --workdir=runs/spans

Shapes: B lanes, T tokens, M memory length, K = M + T keys, H heads, Dh head
width, D model width, S longest span.
"""

import argparse
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import extend


class Memory(NamedTuple):
  """The inputs of one layer for the last M tokens, [B, M, D], newest last."""

  hiddens: jax.Array


@extend.mixer("adaptive_span")
class AdaptiveSpan(extend.Mixer):
  """Attention to memory and segment, as far as each head wants to look."""

  class Fields(extend.Fields):
    """How far heads of `adaptive_span` layers may look."""

    max_span: int = extend.field(128, "at least 1")
    """Longest span of a head in tokens; nothing beyond is remembered."""
    ramp: int = extend.field(32, "at least 1", transfer="any")
    """Tokens over which the weight falls to zero behind a span."""
    penalty: float = extend.field(1e-4, "0 or more", transfer="any")
    """Weight in the loss of the mean span of all heads, in tokens."""

  sure_reach = 0  # A head forgets as it likes.

  @staticmethod
  def trial(num_tokens):
    return num_tokens, {"max_span": 24, "ramp": 48}

  @staticmethod
  def remembered_tokens(config, mem_len):
    return min(mem_len, config.own(AdaptiveSpan.Fields).max_span)

  @staticmethod
  def empty_state(config, *, batch_size, mem_len, step_len):
    rows = AdaptiveSpan.remembered_tokens(config, mem_len)
    shape = (batch_size, rows, config.model_dim)
    return Memory(jnp.zeros(shape, config.dtype))

  @nn.compact
  def __call__(self, hidden, state, shared, norm):
    config = self.config
    own = config.own(AdaptiveSpan.Fields)
    lanes, num_queries, width = hidden.shape
    num_rows = state.hiddens.shape[1]
    all_heads = config.num_heads * config.head_dim

    def heads(name, rows):
      kernel = self.matrix(name, (width, all_heads), split="columns")
      projected = extend.product(rows, kernel)
      return projected.reshape(*rows.shape[:2], config.num_heads, -1)

    held = jnp.concatenate([state.hiddens, hidden], axis=1)
    query = heads("query", norm(hidden))
    key = heads("key", norm(held))
    value = heads("value", norm(held))
    by_distance = self.matrix("distances", (own.max_span, config.head_dim))

    # From each query back to each key; negative where the key comes later.
    positions = jnp.arange(num_queries, dtype=jnp.int32)
    keys = jnp.arange(held.shape[1], dtype=jnp.int32) - num_rows
    distance = positions[:, None] - keys[None]  # [T, K]

    products = jnp.einsum(
      "bthd,bkhd->bhtk", query, key, preferred_element_type=jnp.float32
    )
    descending = jnp.arange(held.shape[1] - 1, -1, -1)
    nearest = by_distance[jnp.minimum(descending, own.max_span - 1)]  # [K, Dh]
    of_distances = jnp.einsum(
      "bthd,kd->bhtk", query, nearest, preferred_element_type=jnp.float32
    )
    scores = (products + shifted(of_distances)) * config.head_dim**-0.5

    # Tokens of the same document, as far as they are remembered.
    reach = extend.visible_distance(
      jnp.minimum(shared.length, num_rows),
      shared.since_reset,
      mem_len=num_rows,
      same_length=self.settings.same_length,
      window=config.same_length_window,
    )
    reach = jnp.minimum(reach, own.max_span - 1)
    visible = distance[None] <= reach[:, :, None]
    visible &= (distance >= 0)[None]

    start = nn.initializers.zeros  # Half of the longest span.
    span_bias = self.param("span_bias", start, (config.num_heads,))
    spans = own.max_span * nn.sigmoid(span_bias)
    far = distance[None].astype(jnp.float32)
    soft = (own.ramp + spans[:, None, None] - far) / own.ramp
    soft = jnp.where(visible[:, None], jnp.clip(soft, 0, 1)[None], 0.0)
    # The largest score that counts, so that not all powers round to zero.
    scores = jnp.where(soft > 0, scores, jnp.finfo(jnp.float32).min)
    powers = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    powers *= soft  # [B, H, T, K]
    weights = powers / jnp.sum(powers, axis=-1, keepdims=True)

    mixed = jnp.einsum("bhtk,bkhd->bthd", weights.astype(value.dtype), value)
    mixed = mixed.reshape(lanes, num_queries, all_heads)
    kernel = self.matrix("output", (all_heads, width), split="rows")
    output = extend.dropout_of_states(config)(
      extend.product(mixed, kernel), dropout_lanes=shared.dropout_lanes
    )

    loss = None
    if self.settings.returns_losses and own.penalty:
      share = jnp.mean(spans) / config.num_layers
      loss = jnp.full((lanes, num_queries), own.penalty * share)
    remembered = Memory(shared.newest(held, num_rows))
    return output, extend.Kept(remembered, loss=loss)

  @staticmethod
  def flops(config, reading):
    own = config.own(AdaptiveSpan.Fields)
    keys = np.minimum(reading.visible_keys(config), own.max_span).mean()
    width = config.num_heads * config.head_dim
    # Products with keys and values, and with the vectors of distances.
    return 8 * config.model_dim * width + 6 * width * keys

  @nn.nowrap
  def reference(self, params, inputs, resets):
    """The equations in NumPy, for the conformance kit."""
    own = self.config.own(AdaptiveSpan.Fields)
    spans = own.max_span / (1 + np.exp(-params["span_bias"]))
    outputs = np.zeros_like(inputs)
    for lane, now in np.ndindex(*resets.shape):
      starts = np.flatnonzero(resets[lane, : now + 1])
      first = max(starts[-1] if len(starts) else 0, now - own.max_span + 1)
      seen = inputs[lane, first : now + 1]
      distance = np.arange(now - first, -1, -1)
      parts = []
      for head, span in enumerate(spans):
        kernels = {
          name: np.split(params[name], len(spans), axis=1)[head]
          for name in ("query", "key", "value")
        }
        query = inputs[lane, now] @ kernels["query"]
        keys = seen @ kernels["key"] + params["distances"][distance]
        score = keys @ query / np.sqrt(len(query))
        soft = np.clip((own.ramp + span - distance) / own.ramp, 0, 1)
        weights = soft * np.exp(score - score.max())
        parts.append(weights @ (seen @ kernels["value"]) / weights.sum())
      outputs[lane, now] = np.concatenate(parts) @ params["output"]
    return outputs


def shifted(scores):
  """Columns of the distances K-1 to 0 as those of keys, [B, H, T, K].

  Row t moves left by T-1-t; what lies after the query means nothing.
  """
  *heads, rows, columns = scores.shape
  padded = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (1, 0)))
  flat = padded.reshape(*heads, rows * (columns + 1))
  return flat[..., rows:].reshape(scores.shape)


def spans(workdir: str) -> np.ndarray:
  """What the heads of each layer of a run have learned, in tokens, [N, H]."""
  from transformer_xl.config import load
  from transformer_xl.workdir import trained_model

  config = load.from_config_dict(load.saved(workdir))
  params = trained_model.load_on_one_device(config, workdir).params
  bias = params["layers"]["0"]["adaptive_span"]["span_bias"]
  longest = config.model.own(AdaptiveSpan.Fields).max_span
  return longest / (1 + np.exp(-np.asarray(bias, np.float64)))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--workdir", required=True, help="folder of the run")
  for number, found in enumerate(spans(parser.parse_args().workdir), start=1):
    heads = ", ".join(f"{span:.0f}" for span in sorted(found))
    print(f"layer {number}: mean {found.mean():.0f}, heads {heads}")


if __name__ == "__main__":
  main()
