"""The agent with a memory, in an environment of the test's own."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import ppo_memory
from tests import kinds
from transformer_xl import extend

LANES = 3
STEPS = 10
MOST = 5  # Steps until something is asked for.
USUAL = kinds.USUAL
FIRST, SECOND = kinds.mixers(attends=False)[:2]


@pytest.fixture(autouse=True)
def keys_of_a_kind_that_compiles_in_half_the_time():
  with jax.default_prng_impl("rbg"):
    yield


class State(NamedTuple):
  """An episode stands at a step, and knows what it will ask for and when."""

  bit: jax.Array
  last: jax.Array  # Number of the last step.
  time: jax.Array  # Number of the next step.


class Recall:
  """Shows a bit, and asks for it after 2 to `most` steps, drawn for each."""

  num_actions = 2

  def reset(self, key, most):
    key_bit, key_last = jax.random.split(key)
    bit = jax.random.bernoulli(key_bit).astype(jnp.int32)
    last = jax.random.randint(key_last, (), 2, most + 1)
    state = State(bit, last, jnp.zeros((), jnp.int32))
    return self.observation(state), state

  def step(self, key, state, action, most):
    ends = state.time == state.last
    reward = jnp.where(ends, 2.0 * (action == state.bit) - 1, 0.0)
    _, fresh = self.reset(key, most)
    later = state._replace(time=state.time + 1)
    after = jax.tree.map(functools.partial(jnp.where, ends), fresh, later)
    return self.observation(after), after, reward, ends, False, {}

  def observation(self, state):
    shown = jnp.where(state.time == 0, 2 * state.bit - 1, 0)
    return jnp.stack([shown, state.last - state.time]).astype(jnp.float32)


RECALL = Recall()


def agent(mixer=USUAL, *, most=MOST, lanes=LANES, steps=STEPS, **options):
  """The memory is shorter than the longest episodes."""
  policy = ppo_memory.Policy(RECALL.num_actions, mixer, mem_len=3, **options)
  return ppo_memory.Agent(
    RECALL, most, policy, num_lanes=lanes, rollout_len=steps
  )


@functools.partial(jax.jit, static_argnums=0)
def rollout(player, params, actor, key):
  """What `act` sees in a rollout, [L, T, ...], and the actor after it."""
  keys = jax.random.split(key, player.rollout_len)
  act = functools.partial(player.act, params)
  actor, steps = jax.lax.scan(act, actor, keys)
  return actor, jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), steps)


@functools.partial(jax.jit, static_argnums=0)
def read(policy, params, *inputs):
  """Log-probabilities [L, T, A] and values [L, T], as learning has them."""
  logits, values, _ = policy.apply(params, *inputs)
  return jax.nn.log_softmax(logits), values


def read_afresh(policy, params, episodes):
  """Yields values [T] of each episode [t, ...], t <= T, by itself.

  No step sees the zeros after it, nor another lane.
  """
  memory = extend.empty_state(
    policy.config, batch_size=LANES, mem_len=policy.mem_len, step_len=1
  )
  resets = np.zeros((LANES, STEPS), bool)
  for first in range(0, len(episodes), LANES):
    lanes = np.zeros((LANES, STEPS, *episodes[0].shape[1:]), np.float32)
    some = episodes[first : first + LANES]
    for lane, episode in enumerate(some):
      lanes[lane, : len(episode)] = episode
    _, values = read(policy, params, lanes, memory, resets)
    yield from np.asarray(values)[: len(some)]


@pytest.mark.parametrize(
  ("mixer", "has_gates"),
  [
    (USUAL, False),
    (FIRST, True),
    pytest.param(SECOND, False, marks=pytest.mark.rest),
  ],
)
def test_learning_sees_what_acting_saw_and_episodes_by_themselves(
  mixer, has_gates
):
  """In a rollout that starts within episodes, of which more end in it."""
  player = agent(mixer, has_gates=has_gates)
  params, _, actor = player.start(jax.random.key(0))
  middle, first = rollout(player, params, actor, jax.random.key(4))
  _, second = rollout(player, params, middle, jax.random.key(6))
  first, second = jax.device_get((first, second))
  assert not second.resets[:, 0].all()
  assert (second.resets[:, 1:].sum(axis=1) > 1).all()
  log_probs, values = read(
    player.policy, params, second.observations, middle.memory, second.resets
  )
  chosen = np.take_along_axis(
    np.asarray(log_probs), second.actions[..., None], axis=2
  )
  # Sums over other numbers of keys round in other places.
  np.testing.assert_allclose(chosen[..., 0], second.log_probs, atol=1e-5)
  np.testing.assert_allclose(values, second.values, rtol=1e-4, atol=1e-5)

  # Each episode by itself, across the rollouts.
  both = jax.tree.map(lambda *parts: np.concatenate(parts, 1), first, second)
  episodes, expected = [], []
  for lane in range(LANES):
    starts = np.flatnonzero(both.resets[lane]).tolist()
    for start, end in zip(starts, [*starts[1:], 2 * STEPS], strict=True):
      episodes.append(both.observations[lane, start:end])
      expected.append(both.values[lane, start:end])
  assert len(episodes) > 4 * LANES
  found = read_afresh(player.policy, params, episodes)
  for alone, together in zip(found, expected, strict=True):
    np.testing.assert_allclose(
      alone[: len(together)], together, rtol=1e-4, atol=1e-5
    )


def test_advantages_end_with_episodes():
  """As the definition has them, step by step."""
  draw = np.random.default_rng(0)
  values = draw.standard_normal((2, 7)).astype(np.float32)
  rewards = draw.standard_normal((2, 7)).astype(np.float32)
  ends = draw.random((2, 7)) < 0.3
  seen = ppo_memory.Rollout(
    *(None, None, None, None),
    values=jnp.asarray(values),
    rewards=jnp.asarray(rewards),
    ends=jnp.asarray(ends),
  )
  last = jnp.asarray([0.5, -2.0])
  expected = np.zeros((2, 7))
  for lane in range(2):
    after, later = float(last[lane]), 0.0
    for step in reversed(range(7)):
      goes_on = 0.0 if ends[lane, step] else ppo_memory.DISCOUNT
      error = rewards[lane, step] + goes_on * after - values[lane, step]
      later = error + goes_on * ppo_memory.GAE_LAMBDA * later
      after = values[lane, step]
      expected[lane, step] = later
  found = jax.jit(ppo_memory.advantages)(seen, last)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_agent_learns_to_recall():
  """Guessing returns 0."""
  player = agent(most=3, lanes=32, steps=8)
  returns = [*ppo_memory.train(player, 20, seed=0)]
  assert abs(returns[0]) < 0.4
  assert np.mean(returns[-5:]) > 0.9


def test_without_memory_each_step_is_read_by_itself():
  """Neither the memory nor what comes before it changes its value."""
  player = agent()
  params, _, actor = player.start(jax.random.key(0))
  later, seen = rollout(player, params, actor, jax.random.key(1))
  seen = jax.device_get(seen)
  resets = np.zeros_like(seen.resets)

  def difference(policy):
    _, values = read(policy, params, seen.observations, later.memory, resets)
    back = seen.observations[:, ::-1]
    _, values_back = read(policy, params, back, actor.memory, resets)
    return np.abs(np.asarray(values)[:, ::-1] - np.asarray(values_back)).max()

  assert difference(player.policy) > 1e-2
  assert difference(agent(remembers=False).policy) < 1e-6
