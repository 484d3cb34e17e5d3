"""Facts hidden in long texts, for the task `ruler_niah` of this folder.

    python examples/lm_eval/needles.py --num_tokens=16384 --num_texts=50

writes `ruler_niah.jsonl`: prose of the synthetic task `passkey` (docs/data.md),
whose words are tokens, with a key somewhere in it and the question at its end.
"""

import argparse
import json
import pathlib

import numpy as np

from transformer_xl.data_prep.synthetic import passkey
from transformer_xl.data_prep.synthetic import prose


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--num_tokens", type=int, default=16384)
  parser.add_argument("--num_texts", type=int, default=50)
  parser.add_argument("--num_digits", type=int, default=2)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--file", default="ruler_niah.jsonl")
  options = parser.parse_args()
  words = prose.words(None, num_words=passkey.NUM_WORDS)
  generator = np.random.default_rng(options.seed)
  # The key, and the question without its answer.
  length = options.num_tokens - 2 * len(passkey.MARKER) - options.num_digits
  lines = []
  for _ in range(options.num_texts):
    start = generator.integers(len(words) - length + 1)
    place = start + generator.integers(length + 1)
    digits = [
      str(digit) for digit in generator.integers(10, size=options.num_digits)
    ]
    text = [
      *words[start:place],
      *(*passkey.MARKER, *digits),
      *words[place : start + length],
      *passkey.MARKER,
    ]
    line = {"input": " ".join(text), "outputs": [" ".join(digits)]}
    lines.append(json.dumps(line))
  pathlib.Path(options.file).write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
  main()
