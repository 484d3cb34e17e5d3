"""Which kinds of memory and encodings the rules of configurations refuse."""

from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import registry

ENCODINGS = {f"`{n}`": {"model.encoding": n} for n in registry.encodings}
MEMORIES = {
  **{f"`{name}`": {"model.layers": (name,)} for name in registry.mixers},
  "a limit": {"model.layers": ("attention:4", "attention")},
  "`gradient_segments`": {"train.gradient_segments": 2},
  "`memory_start` zeros": {"model.memory_start": "zeros"},
  "`log_memory_use`": {"train.log_memory_use": True},
}


def found() -> dict[str, list[str]]:
  """What each kind of memory is refused with; each by itself is accepted."""
  assert all(map(_is_legal, (MEMORIES | ENCODINGS).values()))
  return {
    name: [
      other
      for other, fields in (MEMORIES | ENCODINGS).items()
      if not {*fields} & {*MEMORIES[name]}  # A model has one pattern.
      and not _is_legal(fields | MEMORIES[name])
    ]
    for name in MEMORIES
  }


def _is_legal(fields) -> bool:
  try:
    load.from_config_dict(tiny.config_dict(**fields))
  except errors.UserError:
    return False
  return True
