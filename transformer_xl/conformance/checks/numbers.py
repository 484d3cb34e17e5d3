"""Types, sizes, devices and dropout."""

import functools

import jax
import numpy as np

from transformer_xl import mesh as mesh_lib
from transformer_xl import shapes
from transformer_xl.config import schema
from transformer_xl.conformance import finding
from transformer_xl.conformance.checks import check
from transformer_xl.conformance.implementation import Array
from transformer_xl.conformance.implementation import Implementation
from transformer_xl.conformance.subject import LANES
from transformer_xl.conformance.subject import LENGTH
from transformer_xl.conformance.subject import SEGMENT
from transformer_xl.conformance.subject import SEGMENTS
from transformer_xl.conformance.subject import Subject
from transformer_xl.conformance.subject import read
from transformer_xl.conformance.subject import read_on
from transformer_xl.conformance.subject import types

# Random models in bfloat16 are this close to float32; a mistake in a type
# overflows, or changes the state's.
BFLOAT16 = 0.15
NEAR_POSITION = 50
FAR_POSITIONS = (10**6, 2**24 - 5)
LARGE = 30.0  # Factor of all parameters.


@check.when()
def parameters_are_float32(subject: Subject) -> check.Findings:
  """Also where the computation is in bfloat16."""
  names = types(subject.at(LENGTH).init(0))
  wrong = [
    f"{name} is {kind}"
    for name, _, kind in names
    if "float" in kind and not kind.endswith("float32")
  ]
  yield finding.holds(
    not wrong,
    "; ".join(wrong) or f"{len(names)} arrays",
    reason="a parameter has another type",
  )


@check.when(check.offers("without_norm"))
def each_layer_calls_its_norm(subject: Subject) -> check.Findings:
  """Which is before the mixer: a norm that is not called has no parameters."""
  one = subject.at(LENGTH)
  missing = one.without_norm(one.init(0))
  yield finding.holds(
    not missing, ", ".join(missing), reason="the mixer does not call its norm"
  )


@check.when(check.offers("in_bfloat16"))
def bfloat16_is_near_float32(subject: Subject) -> check.Findings:
  """Segment after segment."""
  one = subject.at(LENGTH)
  text = subject.text()
  half = one.in_bfloat16()
  yield finding.close(
    read(half, text, SEGMENTS),
    read(one, text, SEGMENTS),
    check.cut(SEGMENTS),
    tolerance=BFLOAT16,
  )


@check.when(check.offers("in_bfloat16"), check.offers("as_read"))
def reading_rounds_no_parameter_of_training(
  subject: Subject,
) -> check.Findings:
  """What reading has in bfloat16, training in bfloat16 rounds as well."""
  half = subject.at(LENGTH).in_bfloat16()
  text = subject.text()
  params = half.init(0)
  rounded = half.as_read(params)
  expected = read(half, text, SEGMENTS, params=params)
  found = finding.same(
    read(half, text, SEGMENTS, params=rounded),
    expected,
    "all parameters",
    reason="a parameter is float32 in training alone, as its name ends in "
    "neither bias nor scale",
  )
  if found.is_right:
    yield found
    return
  leaves, structure = jax.tree.flatten(params)
  for index, (name, *_) in enumerate(types(params)):
    one_rounded = list(leaves)
    one_rounded[index] = jax.tree.leaves(rounded)[index]
    tree = jax.tree.unflatten(structure, one_rounded)
    actual = read(half, text, SEGMENTS, params=tree)
    yield finding.same(actual, expected, name, reason=found.reason)


@check.when()
def large_numbers_stay_finite(subject: Subject) -> check.Findings:
  """Parameters or vectors of an unusual size, over several segments."""
  one = subject.at(LENGTH)
  text = subject.text()
  params = one.init(0)
  if subject.facts.vocab_size:
    case = f"parameters times {LARGE:g}"
    params = jax.tree.map(lambda leaf: leaf * LARGE, params)
  else:
    case = "vectors times 10,000"
    text = text * 1e4
  outputs = read(one, text, SEGMENTS, params=params)
  yield finding.finite(outputs, case)


@check.when(check.offers("scores_from"))
def far_positions_score_as_near_ones(subject: Subject) -> check.Findings:
  """Scores follow from distances where float32 cannot count positions."""
  one = subject.at(LENGTH)
  for first in FAR_POSITIONS:
    yield finding.close(
      one.scores_from(first),
      one.scores_from(NEAR_POSITION),
      f"positions from {first:,} on beside {NEAR_POSITION}",
      reason="the scores differ",
    )


@check.when(check.two_devices, check.offers("place"))
def two_devices_give_what_one_gives(subject: Subject) -> check.Findings:
  """Lanes and parameters, or heads, split over the first two devices."""
  one = subject.at(LENGTH)
  text = subject.text()
  params = one.init(0)
  expected = read(one, text, SEGMENTS)
  # Lanes are split over `fsdp` as over `data`, and parameters as well.
  for axis in ("fsdp", "tensor"):
    axes = dict.fromkeys(mesh_lib.AXES, 1) | {axis: 2}
    mesh = mesh_lib.make_mesh(
      schema.MeshConfig(**axes), devices=jax.local_devices()[:2]
    )
    by_lane = mesh_lib.lanes(mesh)
    with jax.set_mesh(mesh):
      sharded, memory = one.place(params, one.fresh(LANES), mesh)
      step = functools.partial(_step_on_mesh, one, sharded, by_lane)
      actual, _ = read_on(step, text, memory, SEGMENTS)
    # Sums over devices have another order.
    yield finding.close(actual, expected, f"two devices on the axis {axis}")


def _step_on_mesh(
  one: Implementation,
  params: shapes.PyTree,
  by_lane: jax.NamedSharding,
  inputs: Array,
  memory: shapes.PyTree,
  resets: Array,
) -> tuple[Array, shapes.PyTree]:
  """A step whose lanes are split over devices."""
  inputs, resets = jax.device_put((inputs, resets), by_lane)
  return one.step(params, inputs, memory, resets)


@check.when(check.offers("with_dropout"))
def dropout_of_a_lane_follows_from_its_number(
  subject: Subject,
) -> check.Findings:
  """Whatever the other lanes are."""
  one = subject.at(LENGTH)
  text = np.repeat(subject.text()[:1, :SEGMENT], 4, axis=0)
  resets = np.zeros(text.shape[:2], bool)
  params = one.init(0)

  def outputs(lanes: list[int]) -> np.ndarray:
    count = len(lanes)
    result, _ = one.with_dropout(
      params,
      text[:count],
      one.fresh(count),
      resets[:count],
      lanes=np.array(lanes, np.int32),
      seed=0,
    )
    return np.asarray(result)

  every = outputs([0, 1, 2, 3])
  yield finding.close(
    outputs([2, 3]), every[2:], "lanes 2 and 3 without the others", first=(2, 0)
  )
  yield finding.differ(
    every[0],
    every[1],
    "the same text in lanes 0 and 1",
    reason="both drop the same",
  )
  without, _ = one.step(params, text, one.fresh(4), resets)
  yield finding.differ(
    every, without, "with and without dropout", reason="nothing is dropped"
  )
