"""Forecasts a series of vectors by `extend.Layers`, with and without memory.

    python -m examples.forecast

The series is made here: four sensors that are read every hour. Each repeats a
weekly pattern, which slowly changes, and adds weather. A segment is a day, so
only memory reaches back to the same hour of the week before. The result is root
mean squared errors one hour ahead, on the last fifth, which is held out.

Shapes: L lanes, which are parts of the series side by side, S segments of T
hours, C sensors.
"""

import argparse

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_xl import extend
from transformer_xl.config import load

WEEK = 168
SEGMENT_LEN = 24  # T
NUM_SENSORS = 4  # C
NUM_LANES = 8  # L


def make_series(num_weeks: int) -> np.ndarray:
  """Readings [hours, C]: a weekly pattern that drifts, and weather."""
  draw = np.random.default_rng(0).standard_normal
  pattern, weather = draw((WEEK, NUM_SENSORS)), np.zeros(NUM_SENSORS)
  readings = []
  for _ in range(num_weeks):
    pattern = 0.95 * pattern + (1 - 0.95**2) ** 0.5 * draw(pattern.shape)
    for hour in range(WEEK):
      weather = 0.9 * weather + 0.2 * draw(NUM_SENSORS)
      readings.append(pattern[hour] + weather)
  return np.array(readings, np.float32)


def model_config() -> extend.ModelConfig:
  config = load.default()
  config.model.update(num_layers=2, model_dim=64, num_heads=4, head_dim=16)
  config.model.update(ff_dim=128, pre_norm=True, final_norm=True)
  config.model.update(dropout_rate=0.0, init_std=0.1)
  return load.from_config_dict(config).model


class Forecaster(nn.Module):
  """Readings [L, T, C] and memory give the next readings and memory."""

  config: extend.ModelConfig

  @nn.compact
  def __call__(self, readings, memory):
    hidden = nn.Dense(self.config.model_dim)(readings)
    hidden, memory = extend.Layers(self.config)(hidden, memory)
    return nn.Dense(NUM_SENSORS)(hidden), memory


def segments(series: np.ndarray, num_lanes: int) -> np.ndarray:
  """Segments in the order of reading, [S, L, T, C]."""
  num_segments = len(series) // (num_lanes * SEGMENT_LEN)
  kept = series[: num_lanes * num_segments * SEGMENT_LEN]
  lanes = kept.reshape(num_lanes, num_segments, SEGMENT_LEN, NUM_SENSORS)
  return lanes.swapaxes(0, 1)


def forecast(
  training: np.ndarray, test: np.ndarray, *, mem_len: int, num_epochs: int
) -> np.ndarray:
  """Trains a network, and returns its forecasts of `test[1:]`, [hours, C]."""
  config = model_config()
  model = Forecaster(config)
  optimizer = optax.adam(2e-3)
  pairs = segments(training[:-1], NUM_LANES), segments(training[1:], NUM_LANES)

  def empty_memory(num_lanes):
    lengths = {"mem_len": mem_len, "step_len": SEGMENT_LEN}
    return extend.empty_state(config, batch_size=num_lanes, **lengths)

  def loss(params, memory, readings, following):
    found, memory = model.apply(params, readings, memory)
    return jnp.square(found - following).mean(), memory

  def learn(carry, pair):
    params, moments, memory = carry
    gradient, memory = jax.grad(loss, has_aux=True)(params, memory, *pair)
    change, moments = optimizer.update(gradient, moments)
    return (optax.apply_updates(params, change), moments, memory), None

  start = empty_memory(NUM_LANES)
  params = jax.jit(model.init)(jax.random.key(0), pairs[0][0], start)
  params = nn.unbox(params)
  moments = optimizer.init(params)
  epoch = jax.jit(lambda carry: jax.lax.scan(learn, carry, pairs)[0])
  for _ in range(num_epochs):  # Each reads the series once, from its start.
    params, moments, _ = epoch((params, moments, start))

  def read(memory, readings):
    found, memory = model.apply(params, readings, memory)
    return memory, found

  _, found = jax.lax.scan(read, empty_memory(1), segments(test[:-1], 1))
  return np.asarray(found).reshape(-1, NUM_SENSORS)


def errors(num_weeks: int, num_epochs: int) -> dict[str, float]:
  """Root mean squared errors after the first week of the test."""
  series = make_series(num_weeks)
  training, test = np.split(series, [len(series) * 4 // 5])
  forecasts = {
    "the hour before": test[:-1],
    "the hour a week ago": np.roll(test, WEEK - 1, axis=0)[:-1],
  }
  for name, mem_len in (("network without memory", 0), ("with memory", 192)):
    forecasts[name] = forecast(
      training, test, mem_len=mem_len, num_epochs=num_epochs
    )

  def error(found: np.ndarray) -> float:
    return float(np.square(found - test[1:][: len(found)])[WEEK:].mean() ** 0.5)

  return {name: error(found) for name, found in forecasts.items()}


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("--num_weeks", type=int, default=100)
  parser.add_argument("--num_epochs", type=int, default=20)
  flags = parser.parse_args()
  for name, error in errors(flags.num_weeks, flags.num_epochs).items():
    print(f"{name:24}{error:.3f}")


if __name__ == "__main__":
  main()
