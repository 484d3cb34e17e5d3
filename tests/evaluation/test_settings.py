"""What a result depends on: the fields of the mixers that a model has."""

import pytest

from tests import tiny
from transformer_xl.config import load
from transformer_xl.evaluation import settings

SLOTS = {"function": "mean", "rate": 2, "slots": 3}


@pytest.mark.parametrize(
  ("layers", "mem_len", "fields", "text"),
  [
    (("attention",), 4, {}, "4"),
    (("lstm", "attention:3"), 4, {}, "4 in layers lstm,attention:3"),
    (
      *(("lstm", "compressive"), 4, {"compressive": SLOTS}),
      "4 in layers lstm,compressive (function mean, rate 2, slots 3)",
    ),
    (("compressive",), 0, {"compressive": SLOTS}, "0 in layers compressive"),
  ],
)
def test_layers_and_their_fields_are_stated(layers, mem_len, fields, text):
  values = {f"model.compressive.{name}": value for name, value in SLOTS.items()}
  config = load.from_config_dict(
    tiny.config_dict(**values, **{"model.layers": layers})
  )
  found = settings.of_evaluation(config, mem_len)
  assert found["layers"] == list(layers)
  assert found["mixer_fields"] == fields
  assert settings.memory_text(found) == text
