"""Names of the registry, chosen by what their classes say of themselves.

    kinds.mixers(attends=True)       all that attend
    kinds.encoding(rotates=True)     one that rotates, always the same

A test that needs some mixer or encoding of a kind asks here. What is true of a
single one alone is in `tests/oracles/<name>.py`, and its tests are in
`tests/model/test_<name>.py`.
"""

from typing import NamedTuple

from tests import oracles
from transformer_xl.config import load
from transformer_xl.config import registry

USUAL = load.default().model.layers[0]


def mixers(**said: object) -> tuple[str, ...]:
  """All mixers whose classes have these attributes, in the registry's order."""
  return _where(registry.mixers, said)


def encodings(**said: object) -> tuple[str, ...]:
  """All encodings whose classes have these attributes."""
  return _where(registry.encodings, said)


def mixer(**said: object) -> str:
  """The first of `mixers`."""
  return mixers(**said)[0]


def encoding(**said: object) -> str:
  """The first of `encodings`."""
  return encodings(**said)[0]


def recurrent() -> str:
  """A mixer that hands on a state and has no fields of its own."""
  return mixer(attends=False, Fields=None)


def compressing() -> str:
  """A mixer each of whose keys may stand for several tokens."""
  return mixer(keys_are_tokens=False)


def learned(*, counts_from_segment: bool = False) -> str:
  """An encoding with a table, of distances or of positions in a segment."""
  return encoding(has_table=True, counts_from_segment=counts_from_segment)


def sloping() -> str:
  """An encoding that lowers a score by a slope for each token of distance."""
  return next(
    name for name in registry.encodings if oracles.get(name, "slopes")
  )


def own_fields(name: str, num_tokens: int = 8) -> dict[str, object]:
  """Small values of a mixer's own fields, as `{"name.field": value}`."""
  _, fields = registry.mixers[name].trial(num_tokens)
  return {f"{name}.{field}": value for field, value in fields.items()}


def model(*layers: str, num_tokens: int = 8) -> dict[str, object]:
  """Fields of a configuration whose layers are these, with small own fields."""
  fields: dict[str, object] = {"model.layers": layers}
  for entry in layers:
    own = own_fields(entry.partition(":")[0], num_tokens)
    fields |= {f"model.{name}": value for name, value in own.items()}
  return fields


class OwnField(NamedTuple):
  """A field that one mixer or encoding alone has.

  Attributes:
    path: such as `model.NAME.FIELD`.
    values: two that are not the default.
    model: fields of a configuration with the mixer or the encoding.
  """

  path: str
  values: tuple[object, object]
  model: dict[str, object]


def all_own_fields() -> list[OwnField]:
  """Those of all mixers, then those of all encodings."""
  models: list[tuple[str, dict[str, object]]] = [
    *((name, {"model.layers": (name,)}) for name in registry.mixers),
    *((name, {"model.encoding": name}) for name in registry.encodings),
  ]
  return [
    OwnField(f"model.{name}.{field}", values, model)
    for name, model in models
    for field, values in oracles.get(name, "VALUES", {}).items()
  ]


def _where(kind, said):
  return tuple(
    name
    for name, found in kind.items()
    if all(getattr(found, field) == value for field, value in said.items())
  )
