"""How far imported models are from transformers: types, sizes, formats.

    .venv-transformers/bin/python -m benchmarks.decoder_equality

after `make .venv-transformers/installed`. Prints a table of the largest
difference of a log-probability, over all words after each of 3 x 160 tokens,
which are read whole and in parts with memory. Weights are random; both sides
compute in float32. `make transformers-check` has the same models with a limit.

    .venv-transformers/bin/python -m benchmarks.decoder_equality \
      --weights=SmolLM2-135M-Instruct.Q4_1.gguf --text=test.txt

compares one model on the first 1,024 tokens of a text, and 64 greedy tokens
after them. Its weights are a folder of transformers, or a file of GGUF, which
transformers expands with the package `gguf`.
"""

import argparse
import pathlib
import tempfile

import numpy as np

import transformer_xl
from tests.importers import decoders_by_hand

NUM_LANES = 3
TEXT_LEN = 1024
SEGMENT_LEN = 256
NUM_GREEDY = 64


def main() -> None:
  """Compares all models and prints the table, or compares one."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--weights", type=pathlib.Path, help="a folder or a file")
  parser.add_argument("--text", type=pathlib.Path, help="a file")
  options = parser.parse_args()
  if options.weights is None:
    compare_types()
    return
  if options.text is None:
    parser.error("--weights are compared on a text: name a file, --text=FILE.")
  text = options.text.read_text("utf-8")
  with tempfile.TemporaryDirectory() as temporary:
    folder = options.weights
    if folder.is_file():
      folder = pathlib.Path(temporary)
      expand(options.weights, folder)
    compare_on_a_text(folder, text)


def compare_types() -> None:
  """Prints a row for each type, with a cell for each format of files."""
  from tests.importers import beside_transformers

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
  """Returns by how many nats log-probabilities of a model differ at most."""
  from tests.importers import beside_transformers

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


def expand(file: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes the model and the tokenizer of a GGUF file as a folder, float32."""
  from tests.importers import beside_transformers

  transformers = beside_transformers.transformers
  source = {"gguf_file": file.name}
  kind = transformers.AutoModelForCausalLM
  expanded = kind.from_pretrained(
    file.parent, dtype=beside_transformers.torch.float32, **source
  )
  fields = expanded.config.to_dict()
  fields.pop("quantization_config")  # With it, nothing is written.
  model = kind.from_config(type(expanded.config)(**fields))
  model.load_state_dict(expanded.state_dict())
  model.save_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **source)
  tokenizer.save_pretrained(folder)


def compare_on_a_text(folder: pathlib.Path, text: str) -> None:
  """Prints how a model's tokens, log-probabilities and greedy text differ."""
  from tests.importers import beside_transformers

  transformers = beside_transformers.transformers
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=beside_transformers.torch.float32
  ).eval()
  mine = transformer_xl.load(
    folder, mem_len=TEXT_LEN + NUM_GREEDY, segment_len=SEGMENT_LEN
  )
  encoded = tokenizer.encode(text, add_special_tokens=False)
  print("equal tokens:", encoded == mine.vocabulary.encode(text).tolist())
  tokens = np.array([encoded[:TEXT_LEN]])
  expected = beside_transformers.theirs(theirs, tokens)[0]
  exact = beside_transformers.theirs(theirs.double(), tokens)[0]
  stops = range(SEGMENT_LEN, TEXT_LEN, SEGMENT_LEN)
  found = beside_transformers.ours(mine, tokens, stops)[0]
  print("largest difference, nats:", np.max(np.abs(found - expected)))
  places = np.arange(TEXT_LEN - 1)
  for side, each in (("ours", found), ("theirs", expected)):
    distance = np.sqrt(np.mean((each - exact) ** 2))
    mean = -np.mean(each[places, tokens[0, 1:]])
    print(f"{side}: {mean:.5f} nats a token, {distance:.1e} from float64 (RMS)")
  theirs.float()
  continued = theirs.generate(
    beside_transformers.torch.tensor(tokens),
    max_new_tokens=NUM_GREEDY,
    do_sample=False,
    eos_token_id=None,  # Else it would be left out until then.
    pad_token_id=0,
  )
  prompt = tokenizer.decode(tokens[0])
  drawn = mine.generate(prompt, num_tokens=NUM_GREEDY, temperature=0)
  expected_tokens = continued[0, TEXT_LEN:].tolist()
  print("equal greedy tokens:", drawn.tokens.tolist() == expected_tokens)


if __name__ == "__main__":
  main()
