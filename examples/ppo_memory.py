"""PPO for an agent that has to remember: `extend.Layers` is its memory.

    pip install --constraint requirements.lock -e '.[agents]'
    python -m examples.ppo_memory --mixer=attention --gates
    python -m examples.ppo_memory --no_memory

MemoryChain (bsuite, here from gymnax) shows a bit in the first step of an
episode and asks for it `--memory_length` steps later. The return is 1 if the
agent then chooses that bit and -1 if not, so guessing returns 0 on average.

Three things easily go wrong with memory in PPO:
- Acting reads single steps, and learning reads whole rollouts. Both must give
  the same probabilities: every step sees equally far back (`same_length`).
- Episodes end inside a rollout. `resets` is True at the first step of each, and
  the layers see nothing from before it.
- Episodes continue in the next rollout. Acting hands memory on, and learning
  starts from what the rollout started with. No gradient passes into it.

Shapes: L lanes, which are environments side by side, T steps of a rollout,
D width of the model, A actions.
"""

import argparse
import dataclasses
import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from transformer_xl import extend
from transformer_xl.config import load

Tree = extend.PyTree
WIDTH = 64  # D
NUM_EPOCHS = 4  # Each is one step of Adam on the whole rollout.
DISCOUNT, GAE_LAMBDA = 0.99, 0.95
CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.2, 0.5, 0.01
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2e-3))


class Gate(nn.Module):
  """Replaces x + y by a GRU that starts close to x (Parisotto et al. 2019)."""

  @nn.compact
  def __call__(self, x: jax.Array, y: jax.Array) -> jax.Array:
    dense = functools.partial(nn.Dense, WIDTH, use_bias=False)
    bias = self.param("bias", nn.initializers.constant(2.0), (1, 1, WIDTH))
    reset = nn.sigmoid(dense(name="Wr")(y) + dense(name="Ur")(x))
    update = nn.sigmoid(dense(name="Wz")(y) + dense(name="Uz")(x) - bias)
    new = nn.tanh(dense(name="Wg")(y) + dense(name="Ug")(reset * x))
    return (1 - update) * x + update * new


class Policy(nn.Module):
  """One layer with memory, between the observations and what is decided."""

  num_actions: int  # A
  mixer: str = "attention"
  has_gates: bool = False
  remembers: bool = True  # If not, every step is read by itself.
  mem_len: int = 64  # Steps that attention sees; recurrent layers see all.

  @property
  def config(self) -> extend.ModelConfig:
    config = load.default()
    config.model.update(layers=(self.mixer,), num_layers=1, model_dim=WIDTH)
    config.model.update(num_heads=4, head_dim=WIDTH // 4, ff_dim=2 * WIDTH)
    config.model.update(pre_norm=True, dropout_rate=0.0, init_std=WIDTH**-0.5)
    config.model.delta.update(key_dim=WIDTH // 4, value_dim=WIDTH // 4)
    return load.from_config_dict(config).model

  @nn.compact
  def __call__(
    self, observations: jax.Array, memory: Tree, resets: jax.Array
  ) -> tuple[jax.Array, jax.Array, Tree]:
    """Logits [L, T, A], values [L, T] and the next memory."""
    if not self.remembers:
      resets = jnp.ones_like(resets)
    hidden = nn.Dense(WIDTH)(observations)  # [L, T, D]
    layers = extend.Layers(self.config, extend.Settings(same_length=True))
    read, memory = layers(hidden, memory, resets)
    if self.has_gates:  # GTrXL has one after each half of a layer.
      read = Gate()(hidden, nn.relu(read - hidden))
    read = nn.LayerNorm()(read)
    uniform = nn.initializers.normal(0.01)
    logits = nn.Dense(self.num_actions, kernel_init=uniform)(read)
    return logits, nn.Dense(1)(read)[..., 0], memory


class Actor(NamedTuple):
  """Where acting stands, between two steps as between two rollouts."""

  environments: Tree
  observations: jax.Array  # [L, ...]
  resets: jax.Array  # [L]: the observation is the first of an episode.
  memory: Tree


class Rollout(NamedTuple):
  """What was seen and done, [L, T, ...]; `act` returns one step, [L, ...]."""

  observations: jax.Array
  resets: jax.Array
  actions: jax.Array
  log_probs: jax.Array  # How likely the actions were when taken.
  values: jax.Array
  rewards: jax.Array
  ends: jax.Array  # The action ended the episode.


@dataclasses.dataclass(frozen=True)
class Agent:
  """Acts in an environment with the interface of gymnax 1, and learns."""

  env: Tree  # Its `step` starts the next episode by itself.
  env_params: Tree
  policy: Policy
  num_lanes: int = 32  # L
  rollout_len: int = 64  # T

  @functools.partial(jax.jit, static_argnums=0)
  def start(self, key: jax.Array) -> tuple[Tree, Tree, Actor]:
    """The first parameters, moments of Adam, and actor."""
    key, key_env = jax.random.split(key)
    keys = jax.random.split(key_env, self.num_lanes)
    reset = jax.vmap(self.env.reset, (0, None))
    observations, environments = reset(keys, self.env_params)
    sizes = {"batch_size": self.num_lanes, "mem_len": self.policy.mem_len}
    memory = extend.empty_state(self.policy.config, **sizes, step_len=1)
    resets = jnp.ones(self.num_lanes, bool)
    actor = Actor(environments, observations, resets, memory)
    inputs = (observations[:, None], memory, resets[:, None])
    params = nn.unbox(self.policy.init(key, *inputs))
    return params, OPTIMIZER.init(params), actor

  def act(self, params: Tree, actor: Actor, key: jax.Array):
    """Takes one step in every lane; returns the actor and what it saw."""
    inputs = (actor.observations[:, None], actor.memory, actor.resets[:, None])
    logits, values, memory = self.policy.apply(params, *inputs)
    key, key_env = jax.random.split(key)
    actions = jax.random.categorical(key, logits)  # [L, 1]
    before = (actor.observations, actor.resets, actions[:, 0])
    log_probs = chosen(actions, nn.log_softmax(logits))
    keys = jax.random.split(key_env, self.num_lanes)
    step = jax.vmap(self.env.step, (0, 0, 0, None))
    observations, environments, rewards, terminated, truncated, _ = step(
      keys, actor.environments, actions[:, 0], self.env_params
    )
    ends = terminated | truncated
    seen = Rollout(*before, log_probs[:, 0], values[:, 0], rewards, ends)
    return Actor(environments, observations, ends, memory), seen

  def loss(self, params: Tree, memory: Tree, rollout: Rollout, advantage):
    """PPO's loss of a rollout that started with `memory`."""
    logits, values, _ = self.policy.apply(
      params, rollout.observations, memory, rollout.resets
    )
    log_probs = nn.log_softmax(logits)  # [L, T, A]
    ratio = jnp.exp(chosen(rollout.actions, log_probs) - rollout.log_probs)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * scaled, clipped * scaled).mean()
    error = jnp.square(values - (advantage + rollout.values)).mean()
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=2).mean()
    return VALUE_WEIGHT * error - ENTROPY_WEIGHT * entropy - gain

  @functools.partial(jax.jit, static_argnums=0)
  def update(self, params: Tree, moments: Tree, actor: Actor, key: jax.Array):
    """Acts for a rollout and learns from it; also returns its mean return."""
    memory = actor.memory  # Learning starts where the rollout starts.
    key, key_last = jax.random.split(key)
    keys = jax.random.split(key, self.rollout_len)
    act = functools.partial(self.act, params)
    actor, steps = jax.lax.scan(act, actor, keys)
    rollout = jax.tree.map(lambda array: jnp.swapaxes(array, 0, 1), steps)
    _, after = act(actor, key_last)  # Only for the values after the rollout.
    advantage = advantages(rollout, after.values)

    def learn(learned, _):
      params, moments = learned
      gradient = jax.grad(self.loss)(params, memory, rollout, advantage)
      change, moments = OPTIMIZER.update(gradient, moments)
      return (optax.apply_updates(params, change), moments), None

    learned, _ = jax.lax.scan(learn, (params, moments), length=NUM_EPOCHS)
    returns = rollout.rewards.sum() / jnp.maximum(rollout.ends.sum(), 1)
    return *learned, actor, returns


def chosen(actions: jax.Array, log_probs: jax.Array) -> jax.Array:
  """Log-probabilities [L, T] of actions [L, T], from those of all [L, T, A]."""
  return jnp.take_along_axis(log_probs, actions[..., None], axis=2)[..., 0]


def advantages(rollout: Rollout, last_values: jax.Array) -> jax.Array:
  """Generalised advantage estimates, [L, T]; `last_values` [L] come after."""
  values = jnp.append(rollout.values, last_values[:, None], axis=1)
  # An episode that ran out of time counts as one that ended.
  discounts = DISCOUNT * (1 - rollout.ends)
  errors = rollout.rewards + discounts * values[:, 1:] - values[:, :-1]

  def back(later, step):
    error, discount = step
    advantage = error + GAE_LAMBDA * discount * later
    return advantage, advantage

  last, steps = jnp.zeros_like(last_values), (errors.T, discounts.T)
  return jax.lax.scan(back, last, steps, reverse=True)[1].T


def train(agent: Agent, num_updates: int, seed: int):
  """Yields the mean return of the episodes that ended in each rollout."""
  key, key_start = jax.random.split(jax.random.key(seed))
  learned = agent.start(key_start)
  for index in range(num_updates):
    *learned, returns = agent.update(*learned, jax.random.fold_in(key, index))
    yield float(returns)


def memory_chain(memory_length: int, **of_policy) -> Agent:
  import gymnax  # Only the extra `agents` has it.

  env, default = gymnax.make("MemoryChain-bsuite")
  env_params = default.replace(memory_length=memory_length)
  return Agent(env, env_params, Policy(env.num_actions, **of_policy))


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--mixer", default="attention", help="or delta, lstm")
  parser.add_argument("--gates", action="store_true", help="as in GTrXL")
  parser.add_argument("--no_memory", action="store_true")
  parser.add_argument("--memory_length", type=int, default=40)
  parser.add_argument("--num_updates", type=int, default=250)
  parser.add_argument("--seed", type=int, default=0)
  flags = parser.parse_args()
  kind = {"has_gates": flags.gates, "remembers": not flags.no_memory}
  agent = memory_chain(flags.memory_length, mixer=flags.mixer, **kind)
  returns: list[float] = []
  for value in train(agent, flags.num_updates, flags.seed):
    returns.append(value)
    if len(returns) % 10 == 0:
      print(f"update {len(returns):4}: return {sum(returns[-10:]) / 10:+.2f}")


if __name__ == "__main__":
  main()
