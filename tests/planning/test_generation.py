"""What the plan of `--mode=generate` is made of."""

import jax

from tests import tiny
from transformer_xl.config import load
from transformer_xl.planning import generation
from transformer_xl.planning import plan

COMPRESSED = {
  **{"model.compression": "mean", "model.compression_rate": 2},
  **{"train.compressed_len": 4, "generate.mem_len": 8},
}


def planned_bytes(**updates):
  config = load.from_config_dict(tiny.config_dict(**COMPRESSED, **updates))
  lowered = generation.lower(config, jax.devices()[0])
  return plan.held_bytes(lowered.compile())


def test_the_slots_of_a_compressed_memory_are_held():
  slots = 64
  without = planned_bytes()
  model = load.from_config_dict(tiny.config_dict()).model
  kept = 2 * 4 * model.num_layers * model.num_heads * model.head_dim * slots
  assert planned_bytes(**{"generate.compressed_len": slots}) >= without + kept
