"""Files that are nearly right: what a disk, a network or an attacker makes."""

import random
import re
from collections.abc import Sequence

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**32 - 1)
_NUMBERS += (2**40, 2**62, 2**63 - 1, 2**64 - 1)
# What JSON, NumPy's headers, pickles and protocol buffers trip over.
_TOKENS = (
  *(b"null", b"NaN", b"-1", b"1e999", b"true", b'"', b"{}", b"[]", b"\\ud800"),
  *(b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xff", b"\x00" * 9, b"\n"),
  *(b"9223372036854775808", b"0.5", b'""', b'"x"', b"(" * 300, b"'O'"),
  *(b"cos\nsystem\n(S'false'\ntR.", b"r\xff\xff\xff\x7f", b"\x80" * 12),
)
_DECIMAL = re.compile(rb"\d+")


def mutate(
  content: bytes, others: Sequence[bytes], generator: random.Random
) -> bytes:
  """Changes a valid file in one to four ways, or makes up another."""
  if generator.random() < 0.05:
    return generator.randbytes(generator.randrange(400))
  for _ in range(generator.randint(1, 4)):
    change = generator.choice(_CHANGES)
    content = change(content, others, generator)
  return content


def _place(content, generator):
  return generator.randrange(len(content) + 1)


def _flip_bits(content, _, generator):
  changed = bytearray(content)
  for _ in range(generator.randint(1, 8) if changed else 0):
    changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
  return bytes(changed)


def _truncate(content, _, generator):
  return content[: _place(content, generator)]


def _delete(content, _, generator):
  start = _place(content, generator)
  return content[:start] + content[start + generator.randint(1, 64) :]


def _repeat(content, _, generator):
  start = _place(content, generator)
  part = content[start : start + generator.randint(1, 64)]
  return content[:start] + part * generator.randint(1, 9) + content[start:]


def _splice(content, others, generator):
  other = generator.choice(others)
  return (
    content[: _place(content, generator)] + other[_place(other, generator) :]
  )


def _set_number(content, _, generator):
  """A length field may be inflated by this."""
  start, size = _place(content, generator), generator.choice((1, 2, 4, 8))
  number = generator.choice(_NUMBERS) % 256**size
  order = generator.choice(("little", "big"))
  return (
    content[:start] + number.to_bytes(size, order) + content[start + size :]
  )


def _set_decimal(content, _, generator):
  found = list(_DECIMAL.finditer(content[:4000]))
  if not found:
    return content
  start, stop = generator.choice(found).span()
  number = generator.choice((*_NUMBERS, -1, -(2**63)))
  return content[:start] + str(number).encode() + content[stop:]


def _insert_token(content, _, generator):
  start = _place(content, generator)
  stop = start + generator.choice((0, 0, 1, 4))
  return content[:start] + generator.choice(_TOKENS) + content[stop:]


_CHANGES = (
  _flip_bits,
  _truncate,
  _delete,
  _repeat,
  _splice,
  _set_number,
  _set_decimal,
  _insert_token,
)
