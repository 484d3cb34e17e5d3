"""An implementation under test: its text, and what it makes of it."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import cast

import jax
import numpy as np

from transformer_xl import errors
from transformer_xl import shapes
from transformer_xl.conformance import implementation as implementation_lib
from transformer_xl.conformance.implementation import Array
from transformer_xl.conformance.implementation import Build
from transformer_xl.conformance.implementation import Complete
from transformer_xl.conformance.implementation import Implementation

LANES = 2
LENGTH = 12  # Tokens in a lane's text.
SEGMENT = 3
SEGMENTS = (SEGMENT,) * (LENGTH // SEGMENT)


class Subject:
  """An implementation under test, built once for each length of memory.

  Attributes:
    has_lengths: it can be built with any length of memory.
    has_same_length: it can be built so that all queries see equally many keys.
    facts: what it says of itself.
  """

  def __init__(self, given: Build | Implementation):
    # A class is a function that builds its objects.
    self.has_lengths = isinstance(given, type) or not hasattr(given, "step")
    self.has_same_length = False
    if self.has_lengths:
      build = cast(Build, given)
      self.has_same_length = _takes(build, mem_len=LENGTH, same_length=False)
      if not (self.has_same_length or _takes(build, mem_len=LENGTH)):
        name = getattr(given, "__name__", type(given).__name__)
        raise errors.UserError(
          f"{name} takes no mem_len; give an object with the methods init, "
          "fresh and step, or a function build(mem_len=..., same_length=...) "
          "that returns one"
        )
    else:
      missing = [name for name in ("init", "fresh") if not hasattr(given, name)]
      if missing:
        raise errors.UserError(
          f"{type(given).__name__} has a method `step`, but no "
          f"{' and no '.join(missing)}; transformer_xl.conformance."
          "implementation says what the kit needs."
        )
    self._given = given
    self._built: dict[tuple[int, bool], Complete] = {}
    self.facts = implementation_lib.facts(self.at(LENGTH))

  def at(self, mem_len: int, *, same_length: bool = False) -> Complete:
    """The implementation with a length of memory.

    Which of the methods that it may have it has, `offers` says.
    """
    key = (mem_len, same_length)
    if key not in self._built:
      given = self._given
      if self.has_lengths:
        build = cast(Build, given)
        options = {"same_length": same_length} if self.has_same_length else {}
        given = build(mem_len=mem_len, **options)
      self._built[key] = cast(Complete, given)
    return self._built[key]

  def offers(self, name: str) -> bool:
    """Whether the implementation has a method that it may have."""
    return getattr(self.at(LENGTH), name, None) is not None

  @functools.cached_property
  def is_of_jax(self) -> bool:
    """Whether a step is a function that JAX can trace."""
    if self.facts.is_of_jax is not None:
      return self.facts.is_of_jax
    one = self.at(LENGTH)
    text = self.text()[:, :SEGMENT]
    resets = np.zeros(text.shape[:2], bool)
    params = one.init(0)
    outputs, _ = one.step(params, text, one.fresh(LANES), resets)
    leaves = jax.tree.leaves(params)
    return isinstance(outputs, jax.Array) and all(
      isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves
    )

  def text(self, *, lanes: int = LANES, length: int = LENGTH) -> np.ndarray:
    """Different lanes of random tokens or vectors."""
    generator = np.random.default_rng(1)
    shape = (lanes, length)
    if self.facts.vocab_size:
      return generator.integers(
        self.facts.vocab_size, size=shape, dtype=np.int32
      )
    vectors = generator.standard_normal((*shape, self.facts.width))
    return vectors.astype(np.float32)

  def changed(self, text: np.ndarray, where: int | slice) -> np.ndarray:
    """Another token at the given positions of each lane."""
    result = text.copy()
    if self.facts.vocab_size:
      result[:, where] = (text[:, where] + 1) % self.facts.vocab_size
    else:
      result[:, where] = 0.5 - text[:, where]
    return result


def _takes(build: Build, **lengths: int) -> bool:
  """Whether a function can be called with these lengths of memory."""
  try:
    inspect.signature(build).bind(**lengths)
  except TypeError:
    return False
  return True


def read(
  one: Implementation,
  text: np.ndarray,
  cuts: Sequence[int],
  resets: np.ndarray | None = None,
  *,
  params: shapes.PyTree | None = None,
) -> np.ndarray:
  """What an implementation makes of a text in segments of given lengths."""
  if params is None:
    params = one.init(0)
  step = functools.partial(one.step, params)
  outputs, _ = read_on(step, text, one.fresh(len(text)), cuts, resets)
  return outputs


def read_on(
  step: Callable[[Array, shapes.PyTree, Array], tuple[Array, shapes.PyTree]],
  text: np.ndarray,
  memory: shapes.PyTree,
  cuts: Sequence[int],
  resets: np.ndarray | None = None,
) -> tuple[np.ndarray, shapes.PyTree]:
  """The outputs of a text from a memory on, and the memory after it."""
  assert sum(cuts) == text.shape[1]
  if resets is None:
    resets = np.zeros(text.shape[:2], bool)
  parts = []
  begin = 0
  for length in cuts:
    part = slice(begin, begin + length)
    # PyTorch takes no views that go backwards.
    segment = np.ascontiguousarray(text[:, part])
    outputs, memory = step(segment, memory, resets[:, part])
    parts.append(np.asarray(outputs))
    begin += length
  return np.concatenate(parts, axis=1), memory


def types(tree: shapes.PyTree) -> list[tuple[str, tuple[int, ...], str]]:
  """Names, shapes and types of the arrays of a tree."""
  return [
    (
      jax.tree_util.keystr(path, simple=True, separator="/"),
      tuple(np.shape(leaf)),
      str(leaf.dtype) if hasattr(leaf, "dtype") else type(leaf).__name__,
    )
    for path, leaf in jax.tree.leaves_with_path(tree)
  ]
