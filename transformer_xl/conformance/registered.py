"""The package's own network as implementations, for what is registered.

A mixer is tried as all layers of a small model, and below layers of the default
pattern; an encoding in a model of the default pattern. Each is tried in
training, with gradients through memory, and read with fixed parameters.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.conformance import implementation
from transformer_xl.conformance import subject
from transformer_xl.conformance.implementation import Array
from transformer_xl.conformance.implementation import Build
from transformer_xl.model import adaptive_softmax
from transformer_xl.model import layers
from transformer_xl.model import network
from transformer_xl.model import parameters
from transformer_xl.model import pattern
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import visibility
from transformer_xl.model.encodings import lookup as encodings
from transformer_xl.model.mixers import mixer as mixer_lib

# A model that compiles fast and in which no number is small enough to be
# overlooked. With fewer heads, a state that decays has forgotten the first
# token at the end of the text.
SIZES: dict[str, object] = {
  "vocab_size": 23,
  "num_layers": 2,
  "model_dim": 12,
  "num_heads": 6,
  "head_dim": 4,
  "ff_dim": 12,
  "num_positions": 16,
  "dropout_rate": 0.0,
  "pre_norm": True,
  "scan_unroll": 1,
}
SPREAD = 0.4  # Standard deviation of what is added to initial parameters.
DROPOUT = 0.5


class Model(implementation.Facts):
  """The package's network, as it trains.

  `gradient` through memory "flows" as in a model whose updates have several
  segments, or "stops".
  """

  def __init__(
    self,
    config: schema.ModelConfig,
    *,
    mem_len: int,
    same_length: bool,
    clamp_len: int = 0,
    gradient: str = "stops",
  ):
    self.config = config
    self.mem_len = mem_len
    self.same_length = same_length
    self.clamp_len = clamp_len
    self.gradient = gradient
    self.trains_memory = gradient == "flows"
    kinds = [layer.mixer for layer in pattern.places(config)]
    self.vocab_size = config.vocab_size
    self.gives_log_probs = True
    self.is_of_jax = True
    self.masks_empty = config.memory_start == "masked"
    self.has_attention = all(kind.attends for kind in kinds)
    self.own_positions = encodings.of(config).counts_from_segment
    self.unequal = any(layer.limit for layer in pattern.places(config))
    self.compresses = not all(kind.keys_are_tokens for kind in kinds)
    self.writes = config.num_memory_tokens > 0 or any(
      kind.writes_segments for kind in kinds
    )
    self.retrieves = not all(kind.has_gradient_to_memory for kind in kinds)
    reaches = [kind.sure_reach for kind in kinds if kind.sure_reach is not None]
    self.sure_reach = min(reaches, default=None)
    self.step = jax.jit(self.read)

  @property
  def counts(self) -> bool:
    """Whether it matters where a segment begins."""
    return self.own_positions or self.writes

  @functools.cached_property
  def settings(self) -> mixer_lib.Settings:
    """How the network reads."""
    return mixer_lib.Settings(
      clamp_len=self.clamp_len,
      same_length=self.same_length,
      trains_memory=self.trains_memory,
    )

  def init(self, seed: int) -> shapes.PyTree:
    """Initial parameters with noise, so that none is 0 or too small to see."""
    # Parameters are float32 in every type of the computation.
    return drawn(dataclasses.replace(self.config, dtype="float32"), seed)

  def fresh(self, batch_size: int) -> shapes.PyTree:
    """The state before the first token; steps of the checks have any length."""
    return network.empty_state(
      self.config, batch_size=batch_size, mem_len=self.mem_len, step_len=1
    )

  def read(
    self,
    params: shapes.PyTree,
    tokens: Array,
    memory: shapes.PyTree,
    resets: Array,
  ) -> tuple[Array, shapes.PyTree]:
    """Log-probabilities of every next token, and the next state."""
    model = network.Network(self.config, self.settings)
    bound = model.bind({"params": params})
    return bound.log_probs(jnp.asarray(tokens), memory, jnp.asarray(resets))

  def in_bfloat16(self) -> "Model":
    """The same model, which computes in bfloat16."""
    return self._in_bfloat16

  @functools.cached_property
  def _in_bfloat16(self) -> "Model":
    return self._changed(dtype="bfloat16")

  def as_read(self, params: shapes.PyTree) -> shapes.PyTree:
    """The parameters as a reader casts them, in float32 again."""
    cast = parameters.in_compute_type(params, self.config)
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), cast)

  def with_dropout(
    self,
    params: shapes.PyTree,
    tokens: Array,
    memory: shapes.PyTree,
    resets: Array,
    *,
    lanes: Array,
    seed: int,
  ) -> tuple[Array, shapes.PyTree]:
    """Log-probabilities, with dropout in lanes of the given numbers."""
    config = dataclasses.replace(self.config, dropout_rate=DROPOUT)
    model = network.Network(config, self.settings)

    @jax.jit
    def log_probs(
      params: shapes.PyTree,
      tokens: jax.Array,
      memory: network.State,
      resets: jax.Array,
    ) -> tuple[Array, network.State]:
      key = jax.random.key(seed, impl="rbg")
      bound = model.bind({"params": params}, rngs={"dropout": key})
      hidden, memory = bound(
        tokens, memory, resets, dropout_lanes=jnp.asarray(lanes)
      )
      return adaptive_softmax.log_probs(hidden, bound.head()), memory

    return log_probs(params, tokens, memory, resets)

  def without_norm(self, params: shapes.PyTree) -> list[str]:
    """Layers whose mixer has not called its norm, though it has one."""
    if not self.config.pre_norm:
      return []
    return [
      f"layers/{place}"
      for place, layer in params["layers"].items()
      if "mixer_norm" not in layer
    ]

  def scores_from(self, first: int) -> jax.Array:
    """Products [T, T] of rows that the encoding places from a position on."""
    shape = (subject.LENGTH, self.config.head_dim)
    rows = jax.random.normal(jax.random.key(0), shape)
    positions = first + jnp.arange(subject.LENGTH, dtype=jnp.int32)[:, None]
    placed = encodings.of(self.config).placed(self.config, rows, positions)
    return placed @ placed.T

  def place(
    self,
    params: shapes.PyTree,
    memory: shapes.PyTree,
    mesh: jax.sharding.Mesh,
  ) -> tuple[shapes.PyTree, shapes.PyTree]:
    """Parameters and state on a mesh, as training shards them."""
    splits = network.splits(self.config)
    return (
      jax.device_put(params, mesh_lib.shardings(mesh, params, splits)),
      jax.device_put(memory, mesh_lib.states(mesh, memory)),
    )

  def _changed(self, **fields: Any) -> Self:
    """The same with other values of fields of the model."""
    return type(self)(
      dataclasses.replace(self.config, **fields),
      mem_len=self.mem_len,
      same_length=self.same_length,
      clamp_len=self.clamp_len,
      gradient=self.gradient,
    )


class FrozenModel(Model):
  """The same network, read with fixed parameters."""

  def __init__(self, config: schema.ModelConfig, **options: Any):
    super().__init__(config, **{**options, "gradient": "none"})
    self.reads_parts = True
    self.reader = reader_lib.Reader(
      config,
      mem_len=self.mem_len,
      # Steps may not wrap around a ring, which has room for the text; where
      # positions count from a segment, or nothing is remembered beyond it, its
      # length matters.
      segment_len=max(subject.LENGTH, self.mem_len)
      if self.mem_len and not self.counts
      else subject.SEGMENT,
      clamp_len=self.clamp_len,
      same_length=self.same_length,
    )
    self._frozen: dict[int, shapes.PyTree] = {}

  def init(self, seed: int) -> shapes.PyTree:
    """Parameters, and arrays that are computed from them alone."""
    if seed not in self._frozen:
      freeze = jax.jit(self.reader.freeze)
      self._frozen[seed] = freeze(super().init(seed))
    return self._frozen[seed]

  def fresh(self, batch_size: int) -> shapes.PyTree:
    """The state of the reader before the first token."""
    return self.reader.start(self.init(0), batch_size=batch_size)

  def read(
    self,
    params: shapes.PyTree,
    tokens: Array,
    memory: shapes.PyTree,
    resets: Array,
  ) -> tuple[Array, shapes.PyTree]:
    """Log-probabilities of every next token, and the next state."""
    return self.reader.step(
      params, memory, jnp.asarray(tokens), jnp.asarray(resets)
    )

  def padded(
    self,
    params: shapes.PyTree,
    tokens: Array,
    memory: reader_lib.State,
    count: int,
  ) -> tuple[Array, shapes.PyTree]:
    """A step of which only the first tokens count."""
    return self._padded(params, tokens, memory, jnp.int32(count))

  @functools.cached_property
  def _padded(self) -> jax.stages.Wrapped:
    @jax.jit
    def padded(
      params: shapes.PyTree,
      tokens: jax.Array,
      memory: reader_lib.State,
      count: jax.Array,
    ) -> tuple[Array, reader_lib.State]:
      hidden, memory = self.reader.read(params, memory, tokens, count=count)
      head = self.reader.head(params)
      return adaptive_softmax.log_probs(hidden, head), memory

    return padded

  def others(self) -> Mapping[str, tuple[Model, shapes.PyTree]]:
    """The network as it trains, with the parameters that were frozen."""
    model = Model(
      self.config,
      mem_len=self.mem_len,
      same_length=self.same_length,
      clamp_len=self.clamp_len,
    )
    return {"training": (model, super().init(0))}

  # What is fixed was cast before, and is not trained: these are of the network.
  as_read = None  # type: ignore
  without_norm = None  # type: ignore
  with_dropout = None  # type: ignore


class OneLayer(NamedTuple):
  """What a mixer by itself remembers, as a network does of all layers."""

  layer: mixer_lib.LayerState
  length: jax.Array


class Alone(implementation.Facts):
  """A mixer by itself, which reads vectors, for equations of its own."""

  def __init__(self, name: str):
    self._mem_len, fields = trial((name,), subject.LENGTH)
    # Without an encoding, all that layers share is in the segment.
    self.config = config_of(layers=(name,), encoding="none", **fields)
    kind = registry.mixers[name]
    assert issubclass(kind, mixer_lib.Mixer)
    self.width = self.config.model_dim
    self.mixer = kind(self.config, mixer_lib.Settings())
    self.step = jax.jit(self.read)

  @property
  def has_reference(self) -> bool:
    """Whether the mixer's class has equations of its own."""
    return hasattr(self.mixer, "reference")

  def init(self, seed: int) -> shapes.PyTree:
    """Initial parameters with noise."""
    vectors = jnp.zeros((1, 1, self.width))
    resets = jnp.zeros((1, 1), bool)
    memory = self.fresh(1)

    def draw(key: jax.Array) -> shapes.PyTree:
      shared = layers.share(memory.length, resets, (1, 1))
      drawn = self.mixer.init(
        key, vectors, memory.layer, shared, mixer_lib.identity
      )["params"]
      return nn.unbox(drawn)

    return with_noise(jax.jit(draw)(jax.random.key(seed)), seed)

  def fresh(self, batch_size: int) -> OneLayer:
    """The state of the layer, and how much of a document each lane has read."""
    state = network.empty_state(
      self.config, batch_size=batch_size, mem_len=self._mem_len, step_len=1
    )
    layer = jax.tree.map(lambda leaf: leaf[0], state.layers[0])
    return OneLayer(layer, state.length)

  def read(
    self,
    params: shapes.PyTree,
    vectors: Array,
    memory: OneLayer,
    resets: Array,
  ) -> tuple[Array, OneLayer]:
    """What the mixer adds to the residual stream, and its next state."""
    resets = jnp.asarray(resets)
    shared = layers.share(memory.length, resets, vectors.shape[:2])
    bound = self.mixer.bind({"params": params})
    rows = jnp.asarray(vectors)
    output, kept = bound(rows, memory.layer, shared, mixer_lib.identity)
    length = visibility.next_length(
      shared.length, shared.since_reset, vectors.shape[1]
    )
    return output, OneLayer(kept.state, length)

  def reference(
    self, params: shapes.PyTree, vectors: Array, resets: Array
  ) -> Array:
    """The same by the mixer's own equations, in float64."""
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    return self.mixer.reference(wide, np.asarray(vectors, np.float64), resets)


def config_of(**fields: object) -> schema.ModelConfig:
  """A small model; fields are named as in `rope.position_scale`."""
  config = load.default()
  config.update_from_flattened_dict(
    {f"model.{name}": value for name, value in (SIZES | fields).items()}
  )
  return load.from_config_dict(config).model


@functools.lru_cache(maxsize=8)
def drawn(config: schema.ModelConfig, seed: int) -> shapes.PyTree:
  """Initial parameters of a model with noise."""
  init = functools.partial(network.init_params, config)
  return with_noise(jax.jit(init)(jax.random.key(seed)), seed)


def with_noise(params: shapes.PyTree, seed: int) -> shapes.PyTree:
  """Parameters of which none is 0, 1 or small enough to be overlooked."""
  generator = np.random.default_rng(seed)

  def add(leaf: jax.Array) -> jax.Array:
    noise = SPREAD * generator.standard_normal(leaf.shape)
    return leaf + jnp.asarray(noise, leaf.dtype)

  return jax.tree.map(add, params)


def trial(
  layers: tuple[str, ...], mem_len: int
) -> tuple[int, dict[str, object]]:
  """How layers that remember so many tokens are built.

  Returns:
    The length of their memory, and the values of fields of the mixers.
  """
  own_len = mem_len
  values: dict[str, object] = {}
  for name in dict.fromkeys(entry.partition(":")[0] for entry in layers):
    kind = registry.mixers[name]
    assert issubclass(kind, mixer_lib.Mixer)
    layer_len, fields = kind.trial(mem_len)
    own_len = min(own_len, layer_len)
    values |= {f"{name}.{field}": fields[field] for field in fields}
  return own_len, values


def build(
  kind: type[Model],
  /,
  *,
  layers: tuple[str, ...],
  gradient: str = "stops",
  **fields: object,
) -> Build:
  """Builds a model of some layers for each length of memory."""

  def build(*, mem_len: int, same_length: bool) -> Model:
    own_len, sizes = trial(layers, mem_len)
    config = config_of(layers=layers, **sizes | fields)
    return kind(
      config, mem_len=own_len, same_length=same_length, gradient=gradient
    )

  return build


def variants(name: str, encoding: str | None = None) -> dict[str, Build]:
  """The implementations that try what is registered under a name.

  A mixer is tried with an encoding, or with the default one.
  """
  default = load.default().model
  usual = tuple(default.layers)
  if name in registry.mixers:
    layers: tuple[str, ...] = (name,)
    encoding = encoding or default.encoding
  else:
    layers = usual
    encoding = name
  of_name = functools.partial(build, layers=layers, encoding=encoding)
  result = {
    "training": of_name(Model),
    "reading with fixed parameters": of_name(FrozenModel),
    "training over several segments": of_name(Model, gradient="flows"),
    "training with norms after layers": of_name(Model, pre_norm=False),
  }
  if name in registry.mixers and not registry.mixers[name].attends:
    result["reading a hybrid"] = of_name(FrozenModel, layers=(name, *usual))
  return result
