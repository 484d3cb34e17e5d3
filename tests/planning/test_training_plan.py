"""What the plan of training counts as read."""

import pytest

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
