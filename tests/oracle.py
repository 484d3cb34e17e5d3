"""Transformer-XL in float64 NumPy, written from the equations and slow.

    memory = oracle.start(config, batch_size=2, mem_len=6)
    log_probs, memory = oracle.segment(
      params, config, tokens, memory, mem_len=6, clamp_len=0, same_length=False
    )

It shares no code with what computes. The equations of attention and of the
softmax are those of `transformer_xl.conformance.equations`, which imports only
NumPy. Distance and visibility are those of their definition. Memory is, for
each lane, a list with one entry for each layer. Where a layer attends, these
are the true states [m, D], oldest first; m is what the lane has seen, and not
what it may at most see. A compressive layer has all states of the document, and
slots are made of them anew for each segment. A recurrent layer has a state of
its own (`oracles/`). Behind the layers stand the memory tokens that the segment
before has written, [S, D], or None before the first. Tokens are [B, T].

`config` is a `ModelConfig`, or anything with its attributes. `params` is the
package's tree, as arrays of any kind. Layers are at their place in the pattern,
such as `layers/0`, stacked in front, N:

    embedding/table_{b}, projection_{b}            [V_b, E_b], [E_b, D]
    layers/*/attention/query, key, value           [N, D, H*Dh], no bias
    layers/*/attention/position                    [N, D, H*Dh]: "relative"
    layers/*/attention/output                      [N, H*Dh, D], no bias
    layers/*/attention/distances                   [N, R, H*Dh]: only "shaw"
    layers/*/positions         [N, R, D]: only "absolute_per_layer"
    layers/*/attention/content_bias, position_bias  [N, H, Dh]: u, v if untied;
    content_bias, position_bias                    [H, Dh] if shared
    memory_tokens                                  [S, D]
    layers/*/feed_forward/in_kernel, in_bias       [N, D, F], [N, F]
    layers/*/feed_forward/out_kernel, out_bias     [N, F, D], [N, D]
    layers/*/*_norm/scale, bias                    [N, D]
    layers/*/{mixer,feed_forward}_gate/...         [N, D, k D]: residual "gru"
    layers/*/compressive/compression/kernel, bias  [N, c D, D], [N, D]
    layers/*/lstm/cell/i{gate}/kernel              [N, D, D], gates i, f, g, o
    layers/*/lstm/cell/h{gate}/kernel, bias        [N, D, D], [N, D]
    layers/*/block_recurrent/...  as for attention, and
      {read,mix,write}_{query,key,value,output}    as those of attention
      vectors, write_bias, gate_bias               [N, S, D], [N, D], [N, D]
      vector_norm/scale, bias                      [N, D]
    layers/*/memorizing/...    as for attention, and gate_bias [N, H]
    layers/*/qrnn/kernel, bias                     [N, 2D, 3D], [N, 3D]: z, f, o
    layers/*/delta/query, key                      [N, D, H*Dk]
    layers/*/delta/value, gate                     [N, D, H*Dv]
    layers/*/delta/convolution  [N, c, H*(2 Dk + Dv)]: the token's own tap first
    layers/*/delta/step, write                     [N, D, H]
    layers/*/delta/step_bias, rate_bias            [N, H]
    layers/*/delta/value_scale, output             [N, Dv], [N, H*Dv, D]
    layers/*/same_layer/...    as for attention
    layers/*/mamba2/...                            docs/specification.md, 29
    layers/*/titans/...                            docs/specification.md, 31
    softmax/bias                                   [V], in order of the ids
    softmax/cluster_kernel, cluster_bias           [C, E], [C]: cluster 1 first
    softmax/kernel_{b}, projection_{b}             where they are not tied
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from tests import oracles
from tests.oracles import gates
from tests.oracles import heads as heads_lib
from transformer_xl.conformance.equations import attention
from transformer_xl.conformance.equations import softmax as softmax_equations

Lane = list  # One array [m, D], or state, for each layer.


class Layer(NamedTuple):
  """What mixes tokens in a layer, and how far it sees."""

  mixer: str
  mem_len: int
  slots: int  # Of a compressed memory.
  window: float  # The largest visible distance.


class Reader(NamedTuple):
  """A model and how it reads."""

  params: dict
  config: Any
  layers: list[Layer]
  clamp_len: int


def start(config, *, batch_size: int, mem_len: int) -> list[Lane]:
  """The memory before the first token."""
  layers = _layers(config, mem_len, same_length=False)
  return [
    [*(_empty(config, layer) for layer in layers), None]
    for _ in range(batch_size)
  ]


def _empty(config, layer: Layer) -> Any:
  equations = oracles.of(layer.mixer)
  if hasattr(equations, "start"):
    return equations.start(config)
  count = layer.mem_len if config.memory_start == "zeros" else 0
  return np.zeros((count, config.model_dim))


def _layers(config, mem_len: int, *, same_length: bool) -> list[Layer]:
  """The pattern of layers, repeated."""
  result = []
  for index in range(config.num_layers):
    entry = config.layers[index % len(config.layers)]
    mixer, _, limit = entry.partition(":")
    own = min(mem_len, int(limit)) if limit else mem_len
    count_slots = oracles.get(mixer, "slots")
    slots = count_slots(config) if count_slots and own else 0
    window = math.inf
    if same_length and own + slots:
      fewer = 1 if config.same_length_window == "mem_len" else 0
      window = own + slots - fewer
    result.append(Layer(mixer, own, slots, window))
  return result


def segment(
  params,
  config,
  tokens,
  memory: list[Lane],
  *,
  mem_len: int,
  clamp_len: int = 0,
  same_length: bool = False,
  waiting: int = 0,
  resets=None,
) -> tuple[np.ndarray, list[Lane]]:
  """Log-probabilities [B, T, V] of each next token, and the next memory.

  Layers with slots hold `waiting` more states, which are not enough for another
  slot.
  """
  tokens = np.asarray(tokens)
  if resets is None:
    resets = np.zeros(tokens.shape, bool)
  layers = [
    layer._replace(mem_len=layer.mem_len + waiting) if layer.slots else layer
    for layer in _layers(config, mem_len, same_length=same_length)
  ]
  reader = Reader(_float64(params), config, layers, clamp_len)
  lanes = [
    _read_documents(reader, row, starts, lane)
    for row, starts, lane in zip(
      tokens, np.asarray(resets), memory, strict=True
    )
  ]
  return np.stack([lane[0] for lane in lanes]), [lane[1] for lane in lanes]


def waiting(config, num_read: int) -> int:
  """How many states wait in memory until there are enough for another slot."""
  found = (oracles.get(name, "waiting") for name in config.mixers)
  return max((count(config, num_read) for count in found if count), default=0)


def _read_documents(reader: Reader, tokens, resets, lane: Lane):
  """A reset is nothing but a cut, after which memory is that of the start.

  Memory tokens stand before the first document of a segment and behind its
  last.
  """
  config = reader.config
  nothing = np.zeros((0, config.model_dim))
  first = nothing
  if config.num_memory_tokens:
    first = reader.params["memory_tokens"] * math.sqrt(config.model_dim)
  cuts = [0, *[int(cut) for cut in np.flatnonzero(resets) if cut], len(tokens)]
  parts = []
  *lane, held = lane
  for begin, end in itertools.pairwise(cuts):
    if resets[begin]:
      lane = [_empty(config, layer) for layer in reader.layers]
    if resets[begin] or held is None:
      held = first
    front = nothing if begin else held
    behind = held if end == len(tokens) else nothing
    vectors = embed(reader.params, config, tokens[begin:end])
    rows = np.concatenate([front, vectors, behind])
    hidden, lane = _read(reader, rows, lane, begin)
    _, of_tokens, written = np.split(
      hidden, [len(front), len(front) + len(vectors)]
    )
    parts.append(log_probs(reader.params, config, of_tokens))
  return np.concatenate(parts), [*lane, written]


def _read(reader: Reader, hidden, lane: Lane, begin: int):
  """Vectors from position `begin` of the segment on."""
  places = range(begin, begin + len(hidden))
  encoding = oracles.of(reader.config.encoding)
  if hasattr(encoding, "embedded"):
    hidden = hidden + [
      encoding.embedded(reader.config, place) for place in places
    ]
  next_lane = []
  for index, past in enumerate(lane):
    params = _layer_params(reader, index)
    if hasattr(encoding, "added"):
      hidden = hidden + [encoding.added(params, place) for place in places]
    hidden, after = _block(reader, reader.layers[index], params, hidden, past)
    next_lane.append(after)
  if reader.config.final_norm:
    hidden = _norm(reader.config, hidden, reader.params["final_norm"])
  return hidden, next_lane


def _layer_params(reader: Reader, index: int) -> dict:
  """One layer's parameters, from those of its place."""
  turn, place = divmod(index, len(reader.config.layers))
  return _take(reader.params["layers"][str(place)], turn)


def _remembered(reader: Reader, layer: Layer, own: dict, past) -> np.ndarray:
  """What a layer has before the segment, oldest first."""
  if layer.slots:
    return oracles.of(layer.mixer).remembered(reader.config, own, past, layer)
  return past[max(len(past) - layer.mem_len, 0) :]


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


def log_probs(params, config, hidden) -> np.ndarray:
  """Log-probabilities of all words, [T, V], for hidden states [T, D]."""
  softmax = params["softmax"]
  count = len(config.cutoffs) + 1
  kernels, projections = zip(
    *(_output(params, config, index) for index in range(count)), strict=True
  )
  weights = softmax_equations.Weights(
    kernels,
    projections,
    softmax["bias"],
    softmax.get("cluster_kernel", np.zeros((0, kernels[0].shape[1]))),
    softmax.get("cluster_bias", np.zeros(0)),
  )
  return softmax_equations.log_probs(hidden, weights)


def _output(params, config, index):
  """One cluster's kernel [V_b, E_b] and projection [E_b, D]."""
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
  return kernel, np.eye(config.model_dim) if projection is None else projection


def _block(reader: Reader, layer: Layer, params, hidden, past):
  """One layer: mixer and feed-forward, each with residual and norm.

  Returns its output, and what it remembers.
  """

  def norm(name, rows):
    return _norm(reader.config, rows, params[name])

  def mix(normalise):
    own = params[layer.mixer]
    equations = oracles.of(layer.mixer)
    if hasattr(equations, "read"):
      rows = normalise(hidden)
      mixed, after = equations.read(reader.config, own, rows, past)
      start = equations.start(reader.config)
      return mixed, after if layer.mem_len else start
    beside = None
    held = past
    if hasattr(equations, "Beside"):
      beside = equations.Beside(
        reader.config,
        own,
        past,
        normalise,
        lambda rows, params: _norm(reader.config, rows, params),
      )
      held = beside.past
    states = np.concatenate([held, hidden])
    first = 0 if layer.slots else max(len(states) - layer.mem_len, 0)
    remembered = _remembered(reader, layer, own, held)
    context = normalise(np.concatenate([remembered, hidden]))
    mixed = _attend(reader, layer, own, context, len(remembered))
    if beside is None:
      return mixed, states[first:]
    mixed = mixed + beside.read(context[len(remembered) :])
    num_read = len(hidden) if layer.mem_len else 0
    return mixed, beside.after(states[first:], num_read)

  def join(name, stream, term):
    if reader.config.residual == "add":
      return stream + term
    return _gated(params[name], stream, term)

  def feed(inner):
    return _feed_forward(reader.config, params["feed_forward"], inner)

  if reader.config.pre_norm:
    mixed, after = mix(lambda rows: norm("mixer_norm", rows))
    inner = join("mixer_gate", hidden, mixed)
    fed = feed(norm("feed_forward_norm", inner))
    output = join("feed_forward_gate", inner, fed)
  else:
    mixed, after = mix(lambda rows: rows)
    inner = norm("mixer_norm", join("mixer_gate", hidden, mixed))
    joined = join("feed_forward_gate", inner, feed(inner))
    output = norm("feed_forward_norm", joined)
  if oracles.get(layer.mixer, "REMEMBERS_OUTPUTS"):
    held = np.concatenate([past, output])
    after = held[max(len(held) - layer.mem_len, 0) :]
  return output, after


def _attend(reader: Reader, layer: Layer, own, context, remembered: int):
  config = reader.config
  mixer = oracles.of(layer.mixer)
  encoding = oracles.of(config.encoding)
  none = np.zeros((config.num_heads, config.head_dim))
  biases = none, none
  if hasattr(encoding, "biases"):
    biases = encoding.biases(config, own, reader.params, reader.clamp_len)

  def heads(name):
    return heads_lib.split(config, context @ own[name])

  def normalised(name, rows):
    if not config.qk_norm:
      return rows
    square = (rows**2).mean(axis=-1, keepdims=True)
    root = np.sqrt(square + config.layer_norm_epsilon)
    return rows / root * own[f"{name}_scale"]

  position_keys = [none] * len(context)
  if hasattr(encoding, "distance_key"):
    position_keys = [
      encoding.distance_key(config, own, distance, reader.clamp_len)
      for distance in range(len(context))
    ]
  query = normalised("query", heads("query"))
  key = normalised("key", heads("key"))
  value = heads("value")
  plain = query, key
  if hasattr(encoding, "placed"):
    query, key = (encoding.placed(config, rows) for rows in (query, key))
  near = mixer.near(config) if hasattr(mixer, "near") else math.inf
  reach = min(layer.window, near)
  inputs = {
    "query": query[None, remembered:],
    "key": key[None],
    "value": value[None],
    "reach": np.full((1, len(context) - remembered), reach),
    "position_key": np.stack(position_keys[::-1]),
    "content_bias": biases[0],
    "position_bias": biases[1],
  }
  if hasattr(encoding, "slopes"):
    inputs["slopes"] = np.array(encoding.slopes(config))
  (values,) = attention.attention(inputs)["values"]
  if hasattr(mixer, "mix"):
    values = mixer.mix(config, own, values, *plain, value, window=layer.window)
  return values.reshape(len(values), -1) @ own["output"]


def _feed_forward(config, params, rows):
  if config.feed_forward != "relu":
    inner = rows @ params["in_kernel"]
    gate = rows @ params["gate_kernel"]
    if config.feed_forward == "swiglu":
      gate = gate / (1 + np.exp(-gate))
    else:  # The approximation by tanh (Hendrycks and Gimpel 2016).
      cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
      gate = 0.5 * gate * (1 + np.tanh(cubic))
    return (gate * inner) @ params["out_kernel"]
  inner = np.maximum(rows @ params["in_kernel"] + params["in_bias"], 0)
  return inner @ params["out_kernel"] + params["out_bias"]


def _gated(params, stream, term):
  """The gate of GTrXL, with a matrix for each of its six products."""
  term = np.maximum(term, 0)
  w_r, w_z, w_g = np.split(params["term_kernel"], 3, axis=-1)
  u_r, u_z = np.split(params["stream_kernel"], 2, axis=-1)
  reset = gates.sigmoid(term @ w_r + stream @ u_r)
  update = gates.sigmoid(term @ w_z + stream @ u_z - params["update_bias"])
  new = np.tanh(term @ w_g + (reset * stream) @ params["new_kernel"])
  return (1 - update) * stream + update * new


def _norm(config, rows, params):
  epsilon = config.layer_norm_epsilon
  if config.norm == "rms":
    square = (rows**2).mean(axis=-1, keepdims=True)
    return rows / np.sqrt(square + epsilon) * params["scale"]
  centred = rows - rows.mean(axis=-1, keepdims=True)
  variance = (centred**2).mean(axis=-1, keepdims=True)
  return (
    centred / np.sqrt(variance + epsilon) * params["scale"] + params["bias"]
  )


def _cluster_of(config, token: int) -> tuple[int, int]:
  """The cluster of a token, and its place there."""
  begin = 0
  for index, end in enumerate([*config.cutoffs, config.vocab_size]):
    if token < end:
      return index, token - begin
    begin = end
  raise ValueError(f"token {token} is outside the vocabulary")


def _take(tree, index: int):
  if isinstance(tree, dict):
    return {name: _take(value, index) for name, value in tree.items()}
  return tree[index]


def _float64(tree):
  if isinstance(tree, dict):
    return {name: _float64(value) for name, value in tree.items()}
  return np.asarray(tree, np.float64)
