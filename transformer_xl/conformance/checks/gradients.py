"""Gradients stop at memory or flow into it, and are those of differences."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_xl import shapes
from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.finding import Finding
from transformer_xl.conformance.subject import LANES
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENT
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import types

# Gradients are sums over all tokens, of terms that cancel.
GRADIENT = 100 * finding.FLOAT32
# How near the derivative by a parameter is to that of differences, in
# proportion to its own size; or to SMALL times the largest derivative, if that
# is more, as differences in float32 are no better.
DERIVATIVE = 5e-2
SMALL = 1e-3


@check.when(check.gradient_stops, check.of_jax)
def no_gradient_passes_into_memory(subject: Subject) -> check.Findings:
  """Memory counts as a constant, whoever computed it."""
  one = subject.at(LENGTH)
  params = one.init(0)
  text = subject.text()
  first, second = text[:, :SEGMENT], text[:, SEGMENT : 2 * SEGMENT]
  resets = np.zeros(first.shape[:2], bool)

  def loss(params: shapes.PyTree, is_constant: bool) -> jax.Array:
    # Both compute memory in the same program: a deep memory enlarges what
    # another one would round otherwise.
    _, memory = one.step(params, first, one.fresh(LANES), resets)
    if is_constant:
      memory = jax.lax.stop_gradient(memory)
    return jnp.mean(one.step(params, second, memory, resets)[0][..., 0])

  expected = jax.grad(loss)(params, True)
  actual = jax.grad(loss)(params, False)
  largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(expected))
  yield finding.holds(
    largest > 0.01, "a segment after another", reason="there is no gradient"
  )
  yield finding.trees_close(
    actual,
    expected,
    "a segment after another",
    reason="the gradient depends on how memory was computed",
    tolerance=GRADIENT,
  )


@check.when(
  check.gradient_flows,
  check.masks_empty,
  check.no_cuts,
  check.equal_lengths,
  check.of_jax,
)
def the_gradient_through_memory_is_that_of_one_pass(
  subject: Subject,
) -> check.Findings:
  """The loss of a segment teaches what the one before it hands on."""
  one = subject.at(LENGTH)
  text = subject.text()[:, : 2 * SEGMENT]
  resets = np.zeros(text.shape[:2], bool)
  if not check.resets_inside(subject):
    resets[0, SEGMENT + 1] = True

  def loss(params: shapes.PyTree, cuts: list[int]) -> jax.Array:
    memory = one.fresh(LANES)
    begin = 0
    for length in cuts:
      part = slice(begin, begin + length)
      outputs, memory = one.step(params, text[:, part], memory, resets[:, part])
      begin += length
    return jnp.mean(jnp.asarray(outputs)[:, -SEGMENT:, 0])

  params = one.init(0)
  expected = jax.grad(loss)(params, [2 * SEGMENT])
  actual = jax.grad(loss)(params, [SEGMENT] * 2)
  yield finding.trees_close(
    actual,
    expected,
    check.cut([SEGMENT] * 2),
    reason="the gradient is another one",
    tolerance=GRADIENT,
  )


def _one_pass_does_not_say_it(subject: Subject) -> str:
  for condition in (check.masks_empty, check.no_cuts, check.equal_lengths):
    if condition(subject):
      return ""
  return "`the gradient through memory is that of one pass` says it"


@check.when(
  check.gradient_flows,
  check.no_retrieval,
  _one_pass_does_not_say_it,
  check.of_jax,
)
def the_gradient_through_memory_is_that_of_differences(
  subject: Subject,
) -> check.Findings:
  """The same where one pass reads something else than the segments."""
  one = subject.at(LENGTH)
  start = one.init(0)
  # What is written after the first segment is handed on by the second.
  segments = np.split(subject.text()[:, : 3 * SEGMENT], 3, axis=1)
  resets = np.zeros(segments[0].shape[:2], bool)
  generator = np.random.default_rng(2)
  direction = jax.tree.map(
    lambda leaf: generator.normal(size=leaf.shape).astype(np.float32), start
  )

  def memory_of(params: shapes.PyTree) -> shapes.PyTree:
    memory = one.fresh(LANES)
    for segment in segments[:-1]:
      _, memory = one.step(params, segment, memory, resets)
    return memory

  def loss(params: shapes.PyTree, memory: shapes.PyTree) -> jax.Array:
    outputs, _ = one.step(params, segments[-1], memory, resets)
    return jnp.mean(jnp.asarray(outputs)[..., 0])

  def loss_of_all(params: shapes.PyTree) -> jax.Array:
    return loss(params, memory_of(params))

  def moved_loss(size: float) -> jax.Array:
    return loss_of_all(
      jax.tree.map(lambda leaf, by: leaf + size * by, start, direction)
    )

  gradient = jax.grad(loss_of_all)(start)
  # So small that units keep their signs, and large beside losses' rounding.
  size = 1e-4
  expected = float(moved_loss(size) - moved_loss(-size)) / (2 * size)
  yield _derivative(
    optax.tree.vdot(gradient, direction),
    expected,
    size=abs(expected),
    tolerance=5e-3,
    case="three segments, all parameters moved",
  )
  # One direction may be one in which memory is of little matter.
  of_constant = jax.grad(loss)(start, memory_of(start))
  share = optax.tree.norm(
    optax.tree.sub(gradient, of_constant)
  ) / optax.tree.norm(gradient)
  yield Finding(
    bool(share > 0.05),
    "memory is of no matter to the gradient",
    "three segments, by all parameters",
    float(share),
    0.05,
  )


@check.when(check.has_gradient, check.of_jax)
def the_gradient_is_that_of_differences(subject: Subject) -> check.Findings:
  """Of a segment after another, with memory as a constant, by parameter.

  A document starts in the segment.
  """
  one = subject.at(LENGTH)
  start = one.init(0)
  text = subject.text()
  first, second = text[:, :SEGMENT], text[:, SEGMENT : 2 * SEGMENT]
  no_resets = np.zeros(first.shape[:2], bool)
  _, memory = one.step(start, first, one.fresh(LANES), no_resets)
  resets = _one_reset(subject, second.shape)

  def loss(params: shapes.PyTree) -> jax.Array:
    outputs, _ = one.step(params, second, memory, resets)
    return jnp.mean(jnp.asarray(outputs)[..., 0])

  def precise_loss(params: shapes.PyTree) -> float:
    outputs, _ = one.step(params, second, memory, resets)
    return float(np.asarray(outputs)[..., 0].astype(np.float64).mean())

  generator = np.random.default_rng(2)
  leaves, structure = jax.tree.flatten(start)
  gradient = jax.tree.leaves(jax.grad(loss)(start))
  directions = [generator.normal(size=np.shape(leaf)) for leaf in leaves]

  middle = precise_loss(start)

  def differences(index: int, size: float) -> list[float]:
    """Across the parameters, and to either side of them."""
    ends = []
    for sign in (1, -1):
      moved = list(leaves)
      by = (sign * size * directions[index]).astype(np.float32)
      moved[index] = leaves[index] + by
      ends.append(precise_loss(jax.tree.unflatten(structure, moved)))
    above, below = ends
    return [
      (above - below) / (2 * size),
      (above - middle) / size,
      (middle - below) / size,
    ]

  actual = [
    float(np.sum(np.asarray(leaf, np.float64) * direction))
    for leaf, direction in zip(gradient, directions, strict=True)
  ]
  sizes = [abs(one) for one in actual if np.isfinite(one)]
  largest = max(sizes, default=0.0)
  for index, (name, *_) in enumerate(types(start)):
    if not np.isfinite(actual[index]):
      yield finding.holds(False, name, reason="the derivative is not finite")
      continue
    # A unit may change its sign in between, in other steps than in all, or
    # where the parameters are: then its derivative is that of one side.
    found = [
      _derivative(
        actual[index],
        expected,
        size=max(abs(expected), SMALL * largest),
        tolerance=DERIVATIVE,
        case=name,
      )
      for size in (2e-3, 5e-4, 2e-4)
      for expected in differences(index, size)
    ]
    yield min(found, key=lambda one: one.difference)


def _one_reset(subject: Subject, shape: tuple[int, ...]) -> np.ndarray:
  """Resets [B, T] of a segment with one in lane 0, inside where that may be."""
  resets = np.zeros(shape[:2], bool)
  if check.resets(subject):
    return resets
  may_be_inside = not check.resets_inside(subject)
  may_be_inside &= subject.facts.masks_empty
  resets[0, int(may_be_inside)] = True
  return resets


def _derivative(
  actual: float | jax.Array,
  expected: float,
  *,
  size: float,
  tolerance: float,
  case: str,
) -> Finding:
  """A derivative beside that of differences, in proportion to `size`."""
  difference = abs(float(actual) - expected) / (size or 1.0)
  return Finding(
    difference <= tolerance,
    "the derivative is another one",
    case,
    difference,
    tolerance,
  )
