"""Feeds damaged and hostile files to every reader: `make fuzz`.

python -m tests.fuzz --inputs=1000000 [--seed=0] [--only=PART_OF_A_NAME]

Prints a table with a row for each reader and ends with status 1 if any crashed.
"""

import argparse
import os
import sys

from tests.fuzz import campaign
from tests.fuzz import readers


def main() -> None:
  """Runs one campaign for each reader."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--inputs", type=int, default=1_000_000)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--only", default="")
  options = parser.parse_args()
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # It does not fork well.
  chosen = {
    name: reader
    for name, reader in readers.all_readers().items()
    if options.only in name
  }
  total = sum(reader.share for reader in chosen.values())
  print("| reader | files | read | refused | crashes | slowest | memory |")
  print("|---|---|---|---|---|---|---|")
  sums = [0, 0, 0, 0]
  for name, reader in chosen.items():
    count = -(-options.inputs * reader.share // total)
    tally = campaign.run(name, reader, count=count, seed=options.seed)
    row = [count, tally.read, tally.refused, tally.num_crashes]
    sums = [a + b for a, b in zip(sums, row, strict=True)]
    cells = " | ".join(f"{number:,}" for number in row)
    print(
      f"| {name} | {cells} | {tally.slowest:.2f} s | {tally.growth} MiB |",
      flush=True,
    )
    for kind, example in tally.crashes.items():
      print(f"  {kind}: {example}", file=sys.stderr, flush=True)
  print(f"| all | {' | '.join(f'{number:,}' for number in sums)} | | |")
  sys.exit(sums[3] > 0)


if __name__ == "__main__":
  main()
