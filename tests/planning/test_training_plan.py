"""What a plan counts: tokens that are read, and chips."""

import types

import numpy as np
import pytest

from tests import chips
from transformer_xl import hardware
from transformer_xl.config import load
from transformer_xl.experiments import ptb_published
from transformer_xl.model import network
from transformer_xl.planning import plan


@pytest.mark.parametrize(
  ("std", "tokens"),
  [(5.0, 68), (0.0, 70)],  # 0.975 of 70; padded to 85.
)
def test_padding_is_neither_read_nor_useful(monkeypatch, std, tokens):
  monkeypatch.setattr(plan, "lower_updates", lambda *_, **__: None)
  monkeypatch.setattr(plan, "_plan", lambda *_, **counted: counted)
  config = load.from_config_dict(ptb_published.get_config())
  config = load.replaced(config, {"train.segment_len_std": std})
  counted = plan.train_plan(config.recipe, config.data, None, count=1)
  assert counted["tokens"] == 10 * tokens
  useful = 3 * network.forward_flops_per_token(
    config.model, segment_len=tokens, mem_len=0, context_len=70
  )
  assert counted["useful"] == useful


class Compiled:
  """What a plan reads of a program: its cycles and bytes."""

  def as_text(self):
    return (
      "ENTRY %main (p: f32[8]) -> f32[8] {\n"
      "  ROOT %c = f32[8] copy(%p), "
      'backend_config={"estimated_cycles":"2100"}\n'
      "}\n"
    )

  def memory_analysis(self):
    return types.SimpleNamespace(
      argument_size_in_bytes=3,
      output_size_in_bytes=2,
      alias_size_in_bytes=1,
      temp_size_in_bytes=4,
    )


class Lowered:
  def compile(self, options):
    del options
    return Compiled()


@pytest.mark.parametrize(
  ("kind", "num_devices"), [("v4", 1), ("v4", 2), ("v5e", 1), ("v5e", 4)]
)
def test_a_program_may_be_of_a_part_of_a_chip(kind, num_devices):
  """A v4 topology lists both cores of a chip, of which generation takes one."""
  devices = chips.make(kind, (num_devices, 1))
  mesh = types.SimpleNamespace(
    devices=np.array(devices, object), size=num_devices
  )
  found = plan._plan(Lowered(), mesh, count=1, tokens=12, useful=1.0)
  per_chip = hardware.CHIPS[chips.KINDS[kind]].devices
  assert found["hbm_bytes_per_chip"] == 8 * per_chip
  seconds = found["estimated_step_seconds"]
  assert found["estimated_tokens_per_second_per_chip"] == pytest.approx(
    12 / seconds / num_devices * per_chip
  )
