"""What the plan of `--mode=generate` is made of."""

import jax
import pytest

from tests import kinds
from tests import tiny
from transformer_xl import mesh as mesh_lib
from transformer_xl.config import load
from transformer_xl.planning import generation
from transformer_xl.planning import plan

COMPRESSING = kinds.compressing()


def planned_bytes(num_slots):
  updates = {
    **kinds.model(kinds.recurrent(), COMPRESSING),
    f"model.{COMPRESSING}.slots": num_slots,
    "generate.mem_len": 8,
  }
  config = load.from_config_dict(tiny.config_dict(**updates))
  lowered = generation.lower(
    config.model,
    config.eval,
    config.generate,
    mesh_lib.of_one_device(jax.devices()[0]),
  )
  return plan.held_bytes(lowered.compile())


@pytest.mark.rest
def test_the_slots_of_a_compressed_memory_are_held():
  """One of the two layers has them; a number has 4 bytes."""
  more = 64
  slot = 4 * tiny.MODEL["model_dim"]
  assert planned_bytes(1 + more) >= planned_bytes(1) + more * slot
