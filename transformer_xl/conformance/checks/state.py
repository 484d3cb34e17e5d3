"""The memory as a value: padding, shapes, growth, saving."""

import functools
import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from transformer_xl import shapes
from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.implementation import Array
from transformer_xl.conformance.subject import LANES
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENT
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read
from transformer_xl.conformance.subject import read_on
from transformer_xl.conformance.subject import types

MANY_SEGMENTS = 40


@check.when(check.offers("padded"))
def padding_is_not_remembered(subject: Subject) -> check.Findings:
  """Each number of tokens that count, in the first segment or the second."""
  one = subject.at(LENGTH)
  text = subject.text()
  params = one.init(0)
  step = functools.partial(one.step, params)

  for whole, count in itertools.product((0, 1), range(1, SEGMENT)):
    begin = whole * SEGMENT
    cuts = [SEGMENT] * whole
    fresh = one.fresh(LANES)
    memory = fresh
    if whole:
      _, memory = read_on(step, text[:, :begin], fresh, cuts)
    padded = subject.changed(text, slice(begin + count, None))
    segment = padded[:, begin : begin + SEGMENT]
    outputs, memory = one.padded(params, segment, memory, count)
    rest = text[:, begin + count :]
    singles = [1] * rest.shape[1]
    later, _ = read_on(step, rest, memory, singles)
    actual = np.concatenate([np.asarray(outputs)[:, :count], later], axis=1)
    expected = read(one, text, [*cuts, count, *singles])[:, begin:]
    yield finding.close(
      actual,
      expected,
      f"{count} of {SEGMENT} tokens count from position {begin} on",
      reason="padding is seen later",
      first=(0, begin),
    )


@check.when()
def the_memory_keeps_its_shapes_and_types(subject: Subject) -> check.Findings:
  """As a loop over segments needs, in every type of the computation."""
  kinds = {"": subject.at(LENGTH)}
  if subject.offers("in_bfloat16"):
    kinds["in bfloat16, "] = subject.at(LENGTH).in_bfloat16()
  text = subject.text()
  for words, one in kinds.items():
    memory = one.fresh(LANES)
    before = types(memory)
    resets = np.zeros((LANES, SEGMENT), bool)
    _, memory = one.step(one.init(0), text[:, :SEGMENT], memory, resets)
    after = types(memory)
    changed = [
      f"{name} {was}, now {now}"
      for (name, *was), (_, *now) in zip(before, after, strict=False)
      if was != now
    ]
    changed += ["other arrays"] if len(before) != len(after) else []
    yield finding.holds(
      not changed,
      f"{words}after one segment: {'; '.join(changed) or 'all arrays'}",
      reason="an array of the memory changes its shape or type",
    )


@check.when()
def memory_does_not_grow(subject: Subject) -> check.Findings:
  """Over many segments, whose outputs stay finite.

  Nor is the step traced again.
  """
  one = subject.at(LENGTH)
  params = one.init(0)
  text = subject.text(length=SEGMENT * MANY_SEGMENTS)
  resets = np.zeros((LANES, SEGMENT), bool)
  traced = 0

  def count_traces(
    params: shapes.PyTree,
    inputs: Array,
    memory: shapes.PyTree,
    resets: Array,
  ) -> tuple[Array, shapes.PyTree]:
    nonlocal traced
    traced += 1
    return one.step(params, inputs, memory, resets)

  step = jax.jit(count_traces) if subject.is_of_jax else one.step
  memory = one.fresh(LANES)
  sizes = []
  traces = []
  parts = []
  for segment in np.split(text, MANY_SEGMENTS, axis=1):
    outputs, memory = step(params, segment, memory, resets)
    parts.append(np.asarray(outputs))
    sizes.append(sum(np.size(leaf) for leaf in jax.tree.leaves(memory)))
    traces.append(traced)
  grown = [i for i, size in enumerate(sizes) if size != sizes[0]]
  yield finding.holds(
    not grown,
    f"{sizes[0]} numbers after segment 1"
    + (f", {sizes[grown[0]]} after segment {grown[0] + 1}" if grown else ""),
    reason="the memory grows",
  )
  again = [i for i, count in enumerate(traces) if count > traces[1]]
  yield finding.holds(
    not again,
    f"{MANY_SEGMENTS} segments"
    + (f", again in segment {again[0] + 1}" if again else ""),
    reason="the step is traced again",
  )
  outputs = np.concatenate(parts, axis=1)
  yield finding.finite(outputs, f"{MANY_SEGMENTS} segments of {SEGMENT}")


@check.when()
def a_saved_memory_continues_alike(subject: Subject) -> check.Findings:
  """Written as arrays of NumPy, and read back."""
  one = subject.at(LENGTH)
  params = one.init(0)
  text = subject.text()
  half = LENGTH // 2
  step = functools.partial(one.step, params)

  _, memory = read_on(step, text[:, :half], one.fresh(LANES), [SEGMENT] * 2)
  expected, _ = read_on(step, text[:, half:], memory, [SEGMENT] * 2)

  leaves, _ = jax.tree.flatten(memory)
  is_plain = all(hasattr(leaf, "dtype") for leaf in leaves)
  yield finding.holds(is_plain, "its tree", reason="a leaf is no array")
  if not is_plain:
    return
  # Restored into the structure of a fresh one, as a checkpoint is.
  _, structure = jax.tree.flatten(one.fresh(LANES))
  saved = [_through_a_file(leaf) for leaf in leaves]
  restored = jax.tree.unflatten(structure, saved)
  actual, _ = read_on(step, text[:, half:], restored, [SEGMENT] * 2)
  case = f"saved at position {half}"
  yield finding.same(actual, expected, case, first=(0, half))


def _through_a_file(array: Array) -> Array:
  """An array that was saved and read back, of the kind that it was."""
  plain = np.asarray(array)
  file = io.BytesIO()
  np.save(file, plain.reshape(-1).view(np.uint8))
  file.seek(0)
  again = np.load(file).view(plain.dtype).reshape(plain.shape)
  return jnp.asarray(again) if isinstance(array, jax.Array) else again
