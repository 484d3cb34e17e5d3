"""How far imported models are from transformers: types, sizes, formats.

    .venv-transformers/bin/python -m benchmarks.decoder_equality

after `make .venv-transformers/installed`. Prints a table of the largest
difference of a log-probability, over all words after each of 3 x 160 tokens,
which are read whole and in parts with memory. Weights are random; both sides
compute in float32. `make transformers-check` has the same models with a limit.
"""

import pathlib
import tempfile

import numpy as np

import transformer_xl
from tests.importers import beside_transformers
from tests.importers import decoders_by_hand

NUM_LANES = 3


def main() -> None:
  """Compares all models, and prints the table."""
  sizes = " / ".join(beside_transformers.SIZES)
  print(f"| {sizes} | {' | '.join(beside_transformers.FORMATS)} |")
  print("|---" * (1 + len(beside_transformers.FORMATS)) + "|")
  for name in decoders_by_hand.KINDS:
    cells = [
      " / ".join(
        f"{largest_difference(name, size, dtype):.0e}"
        for size in beside_transformers.SIZES
      )
      for dtype in beside_transformers.FORMATS
    ]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def largest_difference(name: str, size: str, dtype: str) -> float:
  """Of the log-probabilities of a model, in nats."""
  tokens = beside_transformers.tokens_of(NUM_LANES)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    theirs = beside_transformers.written(name, size, folder, dtype)
    expected = beside_transformers.theirs(theirs, tokens)
    mine = transformer_xl.load(folder)
    return max(
      float(np.max(np.abs(found - expected)))
      for found in (
        beside_transformers.ours(mine, tokens, stops)
        for stops in beside_transformers.STOPS
      )
    )


if __name__ == "__main__":
  main()
