"""Which kinds of memory and encodings the rules of configurations refuse."""

from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import model_fields

ENCODINGS = {f"`{n}`": {"model.encoding": n} for n in model_fields.ENCODINGS}
MEMORIES = {
  **{
    f"compressive ({name})": {
      "model.compression": name,
      "train.compressed_len": 2,
    }
    for name in ("mean", "max", "conv")
  },
  "`memory_lens`": {"model.memory_lens": ((1, 4), (1, 0))},
  "`gradient_segments`": {"train.gradient_segments": 2},
  "`memory_start` zeros": {"model.memory_start": "zeros"},
  "`log_memory_use`": {"train.log_memory_use": True},
  **{
    name: {"model.kind": name, "eval.mem_len": (1,)}
    for name in model_fields.KINDS[1:]
  },
}

ALTERNATIVES = ("model.compression", "model.kind")


def found() -> dict[str, list[str]]:
  """What each kind of memory is refused with; each by itself is accepted."""
  assert all(map(_is_legal, (MEMORIES | ENCODINGS).values()))
  return {
    name: [
      other
      for other, fields in (MEMORIES | ENCODINGS).items()
      # A model has one kind and one compression.
      if not {*fields} & {*MEMORIES[name]} & {*ALTERNATIVES}
      and not _is_legal(fields | MEMORIES[name])
    ]
    for name in MEMORIES
  }


def _is_legal(fields) -> bool:
  try:
    # One position: all that a recurrent network remembers.
    load.from_config_dict(tiny.config_dict(**{"train.mem_len": 1} | fields))
  except errors.UserError:
    return False
  return True
