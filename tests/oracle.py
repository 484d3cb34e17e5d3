"""Transformer-XL in float64 NumPy, written from the equations and slow.

    memory = oracle.start(config, batch_size=2, mem_len=6)
    log_probs, memory = oracle.segment(
      params, config, tokens, memory, mem_len=6, clamp_len=0, same_length=False
    )

It shares no code with the package: each pair of query and key is visited, and
distance and visibility are computed by their definition. Memory is, for each
lane, a list with one array [m, D] of true states for each layer, oldest first;
m is what the lane has seen, not what it may at most see. With a compressed
memory they are all states of the document, and slots are made of them anew for
each segment. Tokens are [B, T]. `mem_len` is a number for all layers, or one
number for each.

`config` is a `ModelConfig`, or anything with its attributes. `params` is the
package's tree, as arrays of any kind; N layers are stacked in front:

    embedding/table_{b}, projection_{b}            [V_b, E_b], [E_b, D]
    layers/attention/query, key, value             [N, D, H*Dh], no bias
    layers/attention/position                      [N, D, H*Dh]: "relative"
    layers/attention/output                        [N, H*Dh, D], no bias
    layers/attention/distances                     [N, R, H*Dh]: only "shaw"
    layers/positions           [N, R, D]: only "absolute_per_layer"
    layers/attention/content_bias, position_bias   [N, H, Dh]: u, v if untied;
    content_bias, position_bias                    [H, Dh] if shared
    layers/feed_forward/in_kernel, in_bias         [N, D, F], [N, F]
    layers/feed_forward/out_kernel, out_bias       [N, F, D], [N, D]
    layers/*_norm/scale, bias                      [N, D]
    compression_kernel, compression_bias           [N, c, D, D], [N, D]
    softmax/bias                                   [V], in order of the ids
    softmax/cluster_kernel, cluster_bias           [C, E], [C]: cluster 1 first
    softmax/kernel_{b}, projection_{b}             where they are not tied
"""

import itertools
import math
from typing import Any
from typing import NamedTuple

import numpy as np

from tests import oracle_encodings

Lane = list  # One array [m, D] for each layer.


class Reader(NamedTuple):
  """A model and how it reads."""

  params: dict
  config: Any
  mem_lens: list[int]  # Of each layer.
  clamp_len: int
  windows: list[float]  # The largest visible distance in each layer.
  compressed_len: int


def start(config, *, batch_size: int, mem_len) -> list[Lane]:
  """The memory before the first token."""
  visible = _by_layer(config, mem_len)
  if config.memory_start == "masked":
    visible = [0] * config.num_layers
  return [
    [np.zeros((count, config.model_dim)) for count in visible]
    for _ in range(batch_size)
  ]


def _by_layer(config, mem_len) -> list[int]:
  return np.broadcast_to(mem_len, config.num_layers).tolist()


def segment(
  params,
  config,
  tokens,
  memory: list[Lane],
  *,
  mem_len,
  clamp_len: int = 0,
  same_length: bool = False,
  compressed_len: int = 0,
  waiting: int = 0,
  resets=None,
) -> tuple[np.ndarray, list[Lane]]:
  """Log-probabilities [B, T, V] of each next token, and the next memory.

  Memory holds `waiting` more states, which are not enough for another slot.
  """
  tokens = np.asarray(tokens)
  if resets is None:
    resets = np.zeros(tokens.shape, bool)
  lens = _by_layer(config, mem_len)
  windows = [math.inf] * len(lens)
  if same_length:
    fewer = 1 if config.same_length_window == "mem_len" else 0
    # A query sees itself even where the rule gives a window of no keys.
    windows = [max(m + compressed_len - fewer, 0) for m in lens]
  reader = Reader(
    *(_float64(params), config, [m + waiting for m in lens], clamp_len),
    windows=windows,
    compressed_len=compressed_len,
  )
  lanes = [
    _read_documents(reader, row, starts, lane)
    for row, starts, lane in zip(
      tokens, np.asarray(resets), memory, strict=True
    )
  ]
  return np.stack([lane[0] for lane in lanes]), [lane[1] for lane in lanes]


def _read_documents(reader: Reader, tokens, resets, lane: Lane):
  """A reset is nothing but a cut, after which memory is that of the start."""
  cuts = [0, *[int(cut) for cut in np.flatnonzero(resets) if cut], len(tokens)]
  parts = []
  for begin, end in itertools.pairwise(cuts):
    if resets[begin]:
      (lane,) = start(reader.config, batch_size=1, mem_len=reader.mem_lens)
    log_probs, lane = _read(reader, tokens[begin:end], lane, begin)
    parts.append(log_probs)
  return np.concatenate(parts), lane


def _read(reader: Reader, tokens, lane: Lane, begin: int):
  """Tokens from position `begin` of the segment on."""
  hidden = embed(reader.params, reader.config, tokens)
  places = range(begin, begin + len(tokens))
  if reader.config.encoding == "absolute":
    width = reader.config.model_dim
    hidden = hidden + [encoding(place, width, 0) for place in places]
  next_lane = []
  for layer, past in enumerate(lane):
    if reader.config.encoding == "absolute_per_layer":
      vectors = reader.params["layers"]["positions"][layer]
      hidden = hidden + np.stack([vectors[place] for place in places])
    states = np.concatenate([past, hidden])
    first = max(len(states) - reader.mem_lens[layer], 0)
    next_lane.append(states if reader.compressed_len else states[first:])
    hidden = _block(reader, layer, hidden, _remembered(reader, layer, past))
  return log_probs(reader.params, reader.config, hidden), next_lane


def _remembered(reader: Reader, layer: int, past) -> np.ndarray:
  """Memory behind the slots of whole blocks before it, newest blocks last."""
  end = max(len(past) - reader.mem_lens[layer], 0)
  rows, rate = [*past[end:]], reader.config.compression_rate
  for _ in range(reader.compressed_len):
    if end >= rate:
      rows.insert(0, _compressed(reader, layer, past[end - rate : end]))
      end -= rate
  return np.array(rows).reshape(-1, reader.config.model_dim)


def _compressed(reader: Reader, layer: int, block) -> np.ndarray:
  """One slot [D] of a block [c, D] (Rae et al. 2020, section 3.2)."""
  kind, columns = reader.config.compression, list(block.T)
  if kind == "mean":
    return np.array([sum(column) / len(block) for column in columns])
  if kind == "max":
    return np.array([max(column) for column in columns])
  kernel = reader.params["compression_kernel"][layer]
  slot = reader.params["compression_bias"][layer]
  for state, matrix in zip(block, kernel, strict=True):
    slot = slot + state @ matrix
  return slot


def embed(params, config, tokens) -> np.ndarray:
  """The scaled vector of each token, [T, D]."""
  rows = []
  for token in tokens:
    index, local = _cluster_of(config, int(token))
    # Without narrower clusters there is one table and one projection.
    name, row = (0, int(token)) if config.div_val == 1 else (index, local)
    vector = params["embedding"][f"table_{name}"][row]
    projection = params["embedding"].get(f"projection_{name}")
    rows.append(vector if projection is None else vector @ projection)
  return np.stack(rows) * math.sqrt(config.model_dim)


def encoding(distance: int, model_dim: int, clamp_len: int) -> np.ndarray:
  """sin and then cos of distance * 10000^(-2k/D), [D]."""
  if clamp_len > 0:
    distance = min(distance, clamp_len)
  half = range(model_dim // 2)
  angles = [distance * 10000 ** (-2 * k / model_dim) for k in half]
  return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def attention(
  query,
  key,
  value,
  position_key,
  content_bias,
  position_bias,
  slopes=None,
  *,
  window,
) -> np.ndarray:
  """Four-term attention of T queries to K = m + T keys, [T, H, Dh].

  `position_key` maps a distance to a projected encoding [H, Dh]. With `slopes`,
  one a head, every token of distance lowers a scaled score by its slope. Keys
  are visible up to the distance `window`, which may be one for each query.
  """
  length, heads, width = query.shape
  windows = np.broadcast_to(window, length)
  remembered = len(key) - length
  result = np.zeros(query.shape)
  for head, i in itertools.product(range(heads), range(length)):
    visible, scores = [], []
    for j in range(len(key)):
      distance = remembered + i - j
      if 0 <= distance <= windows[i]:
        content = (query[i, head] + content_bias[head]) @ key[j, head]
        towards = query[i, head] + position_bias[head]
        position = towards @ position_key(distance)[head]
        visible.append(j)
        penalty = 0 if slopes is None else slopes[head] * distance
        scores.append((content + position) / math.sqrt(width) - penalty)
    weights = np.exp(np.array(scores) - max(scores))
    result[i, head] = weights / weights.sum() @ value[visible, head]
  return result


def log_probs(params, config, hidden) -> np.ndarray:
  """Log-probabilities of all words, [T, V], for hidden states [T, D]."""
  ends = [*config.cutoffs, config.vocab_size]
  softmax = params["softmax"]
  kernel, bias, vectors = _output(params, config, 0, hidden)
  shortlist = vectors @ kernel.T + bias
  if len(ends) == 1:
    return _log_softmax(shortlist)
  clusters = vectors @ softmax["cluster_kernel"].T + softmax["cluster_bias"]
  head = _log_softmax(np.concatenate([shortlist, clusters], axis=1))
  parts = [head[:, : ends[0]]]
  for index in range(1, len(ends)):
    kernel, bias, vectors = _output(params, config, index, hidden)
    cluster = head[:, ends[0] + index - 1]
    parts.append(cluster[:, None] + _log_softmax(vectors @ kernel.T + bias))
  return np.concatenate(parts, axis=1)


def _output(params, config, index, hidden):
  """One cluster's kernel [V_b, E_b], bias [V_b] and vectors [T, E_b]."""
  embedding, softmax = params["embedding"], params["softmax"]
  ends = [0, *config.cutoffs, config.vocab_size]
  begin, end = ends[index], ends[index + 1]
  if not config.tie_weights:
    kernel = softmax[f"kernel_{index}"]
  elif config.div_val == 1:
    kernel = embedding["table_0"][begin:end]
  else:
    kernel = embedding[f"table_{index}"]
  tied = config.tie_projections == "all" or (
    config.tie_projections == "all_but_first" and index > 0
  )
  source = 0 if tied and config.div_val == 1 else index
  projection = (embedding if tied else softmax).get(f"projection_{source}")
  vectors = hidden if projection is None else hidden @ projection.T
  return kernel, softmax["bias"][begin:end], vectors


def _block(reader: Reader, layer: int, hidden, remembered):
  """One layer: attention and feed-forward, each with residual and norm."""
  params = _take_layer(reader.params["layers"], layer)
  context = np.concatenate([remembered, hidden])

  def norm(name, rows):
    return _layer_norm(rows, params[name], reader.config.layer_norm_epsilon)

  def attend(rows):
    window = reader.windows[layer]
    return _attend(reader, params, rows, len(remembered), window)

  if reader.config.pre_norm:
    normal = norm("attention_norm", context)
    hidden = hidden + attend(normal)
    inner = norm("feed_forward_norm", hidden)
    return hidden + _feed_forward(params["feed_forward"], inner)
  attended = attend(context)
  hidden = norm("attention_norm", hidden + attended)
  fed = _feed_forward(params["feed_forward"], hidden)
  return norm("feed_forward_norm", hidden + fed)


def _attend(reader: Reader, params, context, remembered: int, window):
  config, own = reader.config, params["attention"]
  none = np.zeros((config.num_heads, config.head_dim))
  biases = {"content_bias": none, "position_bias": none}
  if config.encoding == "relative":
    biases = own if config.untie_biases else reader.params

  def heads(name, rows):
    projected = rows @ own[name]
    return projected.reshape(*rows.shape[:-1], config.num_heads, -1)

  def position_key(distance):
    row = encoding(distance, config.model_dim, reader.clamp_len)
    if config.encoding == "relative":
      return heads("position", row)
    if config.encoding == "relative_tied":
      return heads("key", row)
    if config.encoding == "shaw":
      row = own["distances"][min(distance, config.num_positions - 1)]
      return row.reshape(none.shape)
    return none

  if config.encoding == "relative_tied":
    bias = heads("query", encoding(0, config.model_dim, reader.clamp_len))
    biases = {"content_bias": bias, "position_bias": bias}
  position_keys = [position_key(distance) for distance in range(len(context))]
  query, key = heads("query", context), heads("key", context)
  slopes = None
  if config.encoding == "rope":
    places = [config.position_scale * i for i in range(len(context))]
    query, key = (oracle_encodings.rope(rows, places) for rows in (query, key))
  if config.encoding == "alibi":
    count = config.num_heads
    slopes = [oracle_encodings.alibi_slope(h, count) for h in range(count)]
  values = attention(
    query[remembered:],
    key,
    heads("value", context),
    position_keys.__getitem__,
    biases["content_bias"],
    biases["position_bias"],
    slopes,
    window=window,
  )
  return values.reshape(len(values), -1) @ own["output"]


def _feed_forward(params, rows):
  inner = np.maximum(rows @ params["in_kernel"] + params["in_bias"], 0)
  return inner @ params["out_kernel"] + params["out_bias"]


def _layer_norm(rows, params, epsilon):
  centred = rows - rows.mean(axis=-1, keepdims=True)
  variance = (centred**2).mean(axis=-1, keepdims=True)
  return (
    centred / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]
  )


def _log_softmax(logits):
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _cluster_of(config, token: int) -> tuple[int, int]:
  """The cluster of a token, and its place there."""
  begin = 0
  for index, end in enumerate([*config.cutoffs, config.vocab_size]):
    if token < end:
      return index, token - begin
    begin = end
  raise ValueError(f"token {token} is outside the vocabulary")


def _take_layer(tree, layer: int):
  if isinstance(tree, dict):
    return {name: _take_layer(value, layer) for name, value in tree.items()}
  return tree[layer]


def _float64(tree):
  if isinstance(tree, dict):
    return {name: _float64(value) for name, value in tree.items()}
  return np.asarray(tree, np.float64)
