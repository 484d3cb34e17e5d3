"""The search for a learning rate, against losses whose lowest is known."""

import math

from hypothesis import given
from hypothesis import strategies

from transformer_xl.analysis import rate_search


def searched(start, loss, most):
  losses = {rate: loss(rate) for rate in start}
  while (rate := rate_search.next_rate(losses, most)) is not None:
    assert rate not in losses
    losses[rate] = loss(rate)
  return losses


@given(
  best=strategies.floats(-9, 2),
  start=strategies.floats(-7, 0),
  lost_from=strategies.floats(-7, 3),
)
def test_with_room_the_best_rate_is_inside_and_near_the_lowest_loss(
  best, start, lost_from
):
  """Exponents of e. Training diverges above one of them, as in reality."""

  def loss(rate):
    is_lost = math.log(rate) >= lost_from
    return math.inf if is_lost else abs(math.log(rate) - best)

  losses = searched(rate_search.around(math.exp(start)), loss, most=40)
  chosen = rate_search.best(losses)
  assert rate_search.edge(losses) == ""
  assert losses[chosen] == min(losses.values())
  # Rates are a factor of three apart, within what two digits round.
  lowest = min(best, lost_from)
  assert math.log(chosen) <= lowest + 1.2
  assert math.log(chosen) >= lowest - 1.2


def test_no_more_rates_are_tried_than_allowed():
  falling = searched((1e-3, 3e-3, 9e-3), lambda rate: -rate, most=6)
  assert [*falling] == [1e-3, 3e-3, 9e-3, 2.7e-2, 8.1e-2, 0.24]
  assert rate_search.edge(falling) == "highest"
  fixed = searched((1e-3, 3e-3), lambda rate: rate, most=0)
  assert [*fixed] == [1e-3, 3e-3]
  assert rate_search.edge(fixed) == "lowest"


def test_where_all_diverge_lower_rates_are_tried():
  lost = searched((0.1, 0.3), lambda rate: math.inf, most=4)
  assert [*lost] == [0.1, 0.3, 0.033, 0.011]
  assert rate_search.diverges(lost)
