"""What the suite needs to know of an implementation, and ours as the first.

An implementation is a callable `build(mem_len=..., same_length=...)` that gives
an adapter; the suite chooses the lengths. An adapter has these attributes:

    vocab_size     ids are 0 to vocab_size - 1
    masks_empty    an empty memory is invisible, rather than zeros to attend to
    has_attention  all layers remember tokens, and not one state
    own_positions  positions count from the start of each segment
    unequal        layers remember different lengths
    compresses     old states are remembered in fewer slots
    writes         vectors of any age are written after each segment
    retrieves      from memory that no gradient reaches
    gradient       through memory: "stops", "flows", or "none" to parameters
    init(seed) -> params
    fresh(batch_size) -> memory
    step(params, tokens, memory, resets) -> (log_probs, memory)

`params` and `memory` are any JAX pytrees. `tokens` [B, T] are integers, and
`resets` [B, T] says where a token is the first of a document. `log_probs`
[B, T, V] are those of each next token, in order of the ids. Where
`masks_empty` is false, only resets of a whole lane are tested, at the first
token of a segment. `init` should draw all parameters well away from their usual
small start: what is multiplied by almost nothing cannot be seen to be wrong.

`mem_len` is how many positions before the segment a layer may attend to. With
`same_length` all queries see equally many keys, either `mem_len` or one more;
without memory it has no effect.
"""

import functools
from typing import Any, Protocol

import jax

from tests import oracle_recurrent
from tests import tiny
from transformer_xl.config import registry
from transformer_xl.model import network
from transformer_xl.model import reader as reader_lib
from transformer_xl.model.encodings import table
from transformer_xl.model.mixers import mixer

# States that become one compressed slot. A segment of `checks` is as long, so
# that each segment makes one slot.
RATE = 3
TEXT = 12  # As long as any step.
# With so many heads, one of a `delta` layer still knows the first token at the
# end of the text, far above rounding.
MANY = 6


class Adapter(Protocol):
  """The implementation under test, at one memory length."""

  vocab_size: int
  masks_empty: bool
  has_attention: bool
  own_positions: bool
  unequal: bool
  compresses: bool
  writes: bool
  retrieves: bool
  gradient: str

  def init(self, seed: int) -> Any: ...

  def fresh(self, batch_size: int) -> Any: ...

  def step(
    self, params: Any, tokens: jax.Array, memory: Any, resets: jax.Array
  ) -> tuple[jax.Array, Any]: ...


class Package:
  """The package's network; `model` are fields of its configuration."""

  def __init__(
    self,
    *,
    mem_len: int,
    same_length: bool,
    clamp_len: int = 0,
    gradient: str = "stops",
    **model: Any,
  ):
    self.config = tiny.model_config(**model)
    self.gradient = gradient
    self.trains_memory = gradient == "flows"
    self.mem_len = mem_len
    self.same_length = same_length
    self.clamp_len = clamp_len
    self.vocab_size = self.config.vocab_size
    self.masks_empty = self.config.memory_start == "masked"
    self.has_attention = all(
      registry.mixers[name].attends for name in self.config.mixers
    )
    self.own_positions = table.of(self.config).counts_from_segment
    self.unequal = any(limit for _, limit in self.config.pattern)
    self.compresses = "compressive" in self.config.mixers
    self.writes = any(
      registry.mixers[name].writes_segments for name in self.config.mixers
    )
    self.retrieves = "memorizing" in self.config.mixers
    self.step = jax.jit(self.read)

  @property
  def counts(self) -> bool:
    """Whether it matters where a segment begins."""
    return self.own_positions or self.writes

  @property
  def memory(self) -> str:
    """What the table of combinations calls this kind of memory."""
    words = [", ".join(self.config.layers)]
    if self.compresses:
      words.append(f"({self.config.compressive.function})")
    if self.gradient == "flows":
      words.append("with `gradient_segments`")
    return " ".join(words)

  def init(self, seed: int) -> dict:
    return tiny.params(self.config, seed=seed)

  def fresh(self, batch_size: int) -> network.State:
    # Steps of the checks have any length.
    return network.empty_state(
      self.config, batch_size=batch_size, mem_len=self.mem_len, step_len=1
    )

  def read(self, params, tokens, memory, resets):
    settings = mixer.Settings(
      clamp_len=self.clamp_len,
      same_length=self.same_length,
      trains_memory=self.trains_memory,
    )
    model = network.Network(self.config, settings)
    return model.apply(
      {"params": params}, tokens, memory, resets, method="log_probs"
    )


class Compressed(Package):
  """Remembers `mem_len` tokens or a few more, all but a segment's in slots."""

  def __init__(self, *, mem_len: int, **options: Any):
    rows = min(mem_len, RATE)
    slots = max(1, -((rows - mem_len) // RATE))
    super().__init__(
      mem_len=rows,
      **{"compressive.slots": slots, "compressive.rate": RATE},
      **options,
    )


def reading(kind: type[Package]) -> type[Package]:
  """The same memory, read with fixed parameters."""

  class Reading(kind):  # type: ignore
    def __init__(self, **options):
      super().__init__(**options, gradient="none")
      self.reader = reader_lib.Reader(
        self.config,
        mem_len=self.mem_len,
        # Steps may not wrap around the ring, which has room for the text; where
        # positions count from a segment, or nothing is remembered beyond it,
        # its length matters.
        segment_len=TEXT if self.mem_len and not self.counts else RATE,
        clamp_len=self.clamp_len,
        same_length=self.same_length,
      )

    @property
    def memory(self):
      return f"{super().memory}, reader"

    @functools.cache  # noqa: B019, one for each adapter.
    def init(self, seed):
      return jax.jit(self.reader.freeze)(super().init(seed))

    def fresh(self, batch_size):
      return self.reader.start(self.init(0), batch_size=batch_size)

    def read(self, params, tokens, memory, resets):
      return self.reader.step(params, memory, tokens, resets)

  return Reading


def package(kind: type[Package] = Package, /, **options: Any):
  """Builds each adapter once, so that checks share its compiled steps."""
  return functools.cache(functools.partial(kind, **options))


# Options are crossed rather than multiplied: each value appears, with each
# window rule, in some variant.
IMPLEMENTATIONS = {
  "plain": package(),
  "untied_prenorm_clamped": package(
    untie_biases=True,
    pre_norm=True,
    clamp_len=3,
    same_length_window="mem_len",
  ),
  "adaptive": package(cutoffs=(5, 11), div_val=2, embed_dim=12),
  "attended_zeros": package(
    memory_start="zeros",
    layers=("attention:4", "attention"),
    untie_biases=True,
    layer_norm_epsilon=1e-12,
    cutoffs=(6,),
    tie_projections="none",
    embed_dim=6,
  ),
  "shaw": package(encoding="shaw", num_positions=4),
  "relative_tied": package(encoding="relative_tied", pre_norm=True),
  "rope": package(encoding="rope", same_length_window="mem_len"),
  "rope_zeros": package(
    encoding="rope",
    **{"rope.position_scale": 0.3},
    memory_start="zeros",
    pre_norm=True,
    head_dim=6,
  ),
  "alibi": package(encoding="alibi", num_heads=3),
  "none": package(encoding="none"),
  "lstm": package(layers=("lstm",), model_dim=12, pre_norm=True),
  "qrnn": package(layers=("qrnn",), pre_norm=True),
  "delta": package(layers=("delta",), pre_norm=True, num_heads=MANY),
  "compressive": package(Compressed, layers=("compressive",)),
  "hybrid": package(layers=("qrnn", "attention"), pre_norm=True),
  "block_recurrent": package(layers=("block_recurrent",), pre_norm=True),
  "block_recurrent_read": package(
    reading(Package), layers=("block_recurrent", "attention"), encoding="alibi"
  ),
  "memorizing": package(layers=("memorizing",)),
  "memorizing_read": package(
    reading(Package),
    layers=("memorizing", "memorizing:1"),  # Less than a segment.
    encoding="alibi",
  ),
  "delta_read": package(reading(Package), layers=("delta", "attention:4")),
  "hybrid_read": package(reading(Package), layers=("lstm", "attention:4")),
  "compressive_read": package(
    reading(Compressed), layers=("compressive", "qrnn"), pre_norm=True
  ),
  "gradient_segments": package(gradient="flows", untie_biases=True),
}
# What is crossed with every encoding.
LIMITED = {"layers": ("attention:4", "attention")}
HYBRID = {"layers": ("lstm", "attention")}
SLOTS = {"layers": ("compressive",)}
WRITTEN = {"layers": ("block_recurrent",)}
RETRIEVED = {"layers": ("memorizing",)}
FUNCTIONS = ("mean", "max", "conv")
MEMORIES = [
  *((kind, {}) for kind in (Package, reading(Package))),
  *((kind, LIMITED) for kind in (Package, reading(Package))),
  *((kind, HYBRID) for kind in (Package, reading(Package))),
  *(
    (kind, SLOTS | {"compressive.function": name})
    for kind in (Compressed, reading(Compressed))
    for name in FUNCTIONS
  ),
  (Package, {"gradient": "flows"}),
  (Package, WRITTEN),
  (reading(Package), WRITTEN),
  (Package, {**WRITTEN, "gradient": "flows"}),
  (Package, RETRIEVED),
  (reading(Package), RETRIEVED),
  (Package, {**RETRIEVED, "gradient": "flows"}),
]
COMBINATIONS = [
  *(
    package(kind, **options, encoding=name)
    for kind, options in MEMORIES
    for name in registry.encodings
  ),
  *(
    package(each, layers=(name,), pre_norm=True, num_heads=MANY, **options)
    for name in oracle_recurrent.READ
    for each, options in (
      *((Package, {}), (reading(Package), {})),
      (Package, {"gradient": "flows"}),
    )
  ),
]
