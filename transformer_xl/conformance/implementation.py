"""What the kit needs to know of an implementation.

An implementation is an object with three methods, of any library:

    init(seed) -> params
    fresh(batch_size) -> memory
    step(params, inputs, memory, resets) -> (outputs, memory)

`params` and `memory` are any trees of arrays. `inputs` are tokens [B, T], whole
numbers below `vocab_size`, or vectors [B, T, `width`], as NumPy arrays, and
`resets` [B, T] says where one is the first of a document. `outputs` are
log-probabilities of each next token [B, T, V], in order of the ids, or vectors.
`init` should draw all parameters well away from their usual small start: what
is multiplied by almost nothing cannot be seen to be wrong.

A function `build(mem_len=..., same_length=...)` that returns such an object is
an implementation, too, and more can be checked of it. `mem_len` is how many
positions before the segment a layer may attend to. With `same_length` all
queries see equally many keys, either `mem_len` or one more; without memory it
has no effect. A function may take `mem_len` alone. What is an object should
remember 130 tokens, or say `has_attention`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import jax
import numpy as np

from transformer_xl import shapes

Array = np.ndarray | jax.Array


class Implementation(Protocol):
  """The methods that are needed."""

  def init(self, seed: int) -> shapes.PyTree:
    """All parameters."""

  def fresh(self, batch_size: int) -> shapes.PyTree:
    """The memory before the first token."""

  def step(
    self,
    params: shapes.PyTree,
    inputs: Array,
    memory: shapes.PyTree,
    resets: Array,
  ) -> tuple[Array, shapes.PyTree]:
    """The outputs of a segment, and the next memory."""


class Complete(Implementation, Protocol):
  """The methods that it may have; without one, its check does not apply."""

  def padded(
    self,
    params: shapes.PyTree,
    inputs: Array,
    memory: shapes.PyTree,
    count: int,
  ) -> tuple[Array, shapes.PyTree]:
    """A step of which only the first `count` inputs count."""

  def with_dropout(
    self,
    params: shapes.PyTree,
    inputs: Array,
    memory: shapes.PyTree,
    resets: Array,
    *,
    lanes: Array,
    seed: int,
  ) -> tuple[Array, shapes.PyTree]:
    """A step with dropout, where lane b of the inputs is number lanes[b]."""

  def in_bfloat16(self) -> "Complete":
    """The same implementation, which computes in bfloat16."""

  def as_read(self, params: shapes.PyTree) -> shapes.PyTree:
    """The parameters as reading rounds them, in float32 again."""

  def without_norm(self, params: shapes.PyTree) -> list[str]:
    """Layers that do not call the norm that they are given."""

  def scores_from(self, first: int) -> Array:
    """Scores [T, T] of rows at the positions from `first` on."""

  def place(
    self,
    params: shapes.PyTree,
    memory: shapes.PyTree,
    mesh: jax.sharding.Mesh,
  ) -> tuple[shapes.PyTree, shapes.PyTree]:
    """Both on a mesh with the axes "data", "fsdp" and "tensor"."""

  def reference(
    self, params: shapes.PyTree, inputs: Array, resets: Array
  ) -> Array:
    """The outputs of a text in one pass, in float64."""

  def others(self) -> Mapping[str, tuple[Implementation, shapes.PyTree]]:
    """Implementations that must give the same, with their parameters."""


Build = Callable[..., Implementation]


class Facts:
  """What an implementation may say of itself, and what it is taken for if not.

  It can inherit from this class, or have attributes of these names.

  Attributes:
    vocab_size: of tokens; 0 if it reads vectors.
    width: of the vectors that it reads.
    masks_empty: an empty memory is invisible, rather than zeros to attend to.
    has_attention: all layers remember tokens, and not one state.
    own_positions: positions count from the start of each segment.
    unequal: layers remember different lengths.
    compresses: old states are remembered in fewer slots.
    writes: something is written once a segment.
    retrieves: from memory that no gradient reaches.
    resets_at: where a document may start: at any of the "tokens"; where
      "segments" start, so that only the first of `resets` is ever True; or
      "nowhere", if one lane cannot forget while another remembers.
    reads_parts: a step may be a part of a segment, which has three tokens; the
      next step completes it.
    gradient: through memory: "stops", "flows", "none" to parameters, or
      "unknown".
    sure_reach: how many tokens later a token still has to show in the outputs;
      None if it is for as long as memory reaches. One that forgets as it likes
      has 0.
    gives_log_probs: outputs are log-probabilities; None if they are where it
      reads tokens.
    is_of_jax: a step is a function that JAX can trace; None to have it tried.
  """

  vocab_size: int = 0
  width: int = 0
  masks_empty: bool = True
  has_attention: bool = False
  own_positions: bool = False
  unequal: bool = False
  compresses: bool = False
  writes: bool = False
  retrieves: bool = False
  resets_at: str = "tokens"
  reads_parts: bool = False
  gradient: str = "unknown"
  sure_reach: int | None = None
  gives_log_probs: bool | None = None
  is_of_jax: bool | None = None


def facts(of: object) -> Facts:
  """What an implementation says of itself."""
  result = Facts()
  for name in Facts.__annotations__:
    setattr(result, name, getattr(of, name, getattr(Facts, name)))
  if result.gives_log_probs is None:
    result.gives_log_probs = result.vocab_size > 0
  return result
