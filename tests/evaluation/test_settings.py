"""What a result depends on: the fields of the mixers that a model has."""

import pytest

from tests import kinds
from tests import oracles
from tests import tiny
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.evaluation import settings

OTHER = kinds.recurrent()
WITH_FIELDS = {
  name: {field: value for field, (value, _) in values.items()}
  for name in registry.mixers
  if (values := oracles.get(name, "VALUES"))
}


def listed(fields):
  """As "rate 2, slots 3"."""
  return ", ".join(f"{field} {value}" for field, value in fields.items())


@pytest.mark.parametrize(
  ("layers", "mem_len", "fields", "text"),
  [
    (("attention",), 4, {}, "4"),
    ((OTHER, "attention:3"), 4, {}, f"4 in layers {OTHER},attention:3"),
    *(
      case
      for name, fields in WITH_FIELDS.items()
      for case in (
        (
          *((OTHER, name), 4, {name: fields}),
          f"4 in layers {OTHER},{name} ({listed(fields)})",
        ),
        ((name,), 0, {name: fields}, f"0 in layers {name}"),
      )
    ),
  ],
)
def test_layers_and_their_fields_are_stated(layers, mem_len, fields, text):
  values = {
    f"model.{name}.{field}": value
    for name, own in fields.items()
    for field, value in own.items()
  }
  config = load.from_config_dict(
    tiny.config_dict(**values, **{"model.layers": layers})
  )
  found = settings.of_evaluation(config.scoring, mem_len)
  assert found["layers"] == list(layers)
  assert found["mixer_fields"] == fields
  assert settings.memory_text(found) == text
