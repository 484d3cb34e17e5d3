"""A Llama of SmolLM2-135M's shape beside transformers, on one machine.

    .venv-transformers/bin/python -m benchmarks.decoders

after `make .venv-transformers/installed`. Weights are random. Both sides read
the same folder, in processes of their own that take turns, and use all cores.
Prints a table: seconds, and theirs divided by ours; medians of the rounds.
Reading 32,768 tokens has a window of 2,048: theirs is the same model as a
Mistral, whose cache holds the window, in parts of 512 tokens as ours.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

SHAPE = {
  **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536},
  **{"num_hidden_layers": 30, "num_attention_heads": 9},
  **{"num_key_value_heads": 3, "max_position_embeddings": 8192},
  "tie_word_embeddings": True,
}
WINDOW = 2048
PART = 512
LONG = 32768
ROWS = {
  "load": "load, and score 16 tokens",
  "score": "score 2,048 tokens",
  "generate": "generate 64 tokens after 64",
  "long": "read 32,768 tokens with a window of 2,048",
}


def main() -> None:
  """Runs both sides in turn, and prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--long", type=int, default=LONG, help="tokens")
  parser.add_argument("--side", default="", help=argparse.SUPPRESS)
  parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.side:
    side = {"ours": _ours, "theirs": _theirs}[options.side]
    print(json.dumps(side(options.folder, options.long)))
    return
  with tempfile.TemporaryDirectory() as folder:
    _write(folder)
    found: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for _ in range(options.rounds):
      for side, results in found.items():
        results.append(_in_a_process(side, folder, options))
        print(side, results[-1], file=sys.stderr, flush=True)
  print("| float32 | ours | theirs | theirs / ours |")
  print("|---|---|---|---|")
  for name, title in ROWS.items():
    _print_row(f"{title}, s", name, found)
  for name in ("score", "long"):
    _print_row(f"most memory until then, MiB: {name}", f"{name}_mib", found)


def _print_row(
  title: str, name: str, found: dict[str, list[dict[str, float]]]
) -> None:
  ours, theirs = (
    statistics.median(result[name] for result in found[side])
    for side in ("ours", "theirs")
  )
  print(f"| {title} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")


def _in_a_process(
  side: str, folder: str, options: argparse.Namespace
) -> dict[str, float]:
  command = [
    *(sys.executable, "-m", "benchmarks.decoders", f"--side={side}"),
    *(f"--folder={folder}", f"--long={options.long}"),
  ]
  done = subprocess.run(
    command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ
  )
  return json.loads(done.stdout.splitlines()[-1])


def _write(folder: str) -> None:
  """A random model, and a tokenizer whose symbols are bytes."""
  import torch
  import transformers

  from tests.importers import decoders_by_hand

  torch.manual_seed(0)
  config = transformers.LlamaConfig(**SHAPE)
  model = transformers.AutoModelForCausalLM.from_config(config)
  model.save_pretrained(folder)
  decoders_by_hand.write_tokenizer(pathlib.Path(folder))


def _timed(call: Callable[[], object]) -> float:
  start = time.perf_counter()
  call()
  return time.perf_counter() - start


def _mib() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _tokens(count: int) -> list[int]:
  return [(7 * index + index // 5) % 256 for index in range(count)]


def _ours(folder: str, long: int) -> dict[str, float]:
  import jax
  import numpy as np

  import transformer_xl

  start = time.perf_counter()
  model = transformer_xl.load(folder, mem_len=WINDOW, segment_len=PART)
  result = {}

  def read(count: int) -> None:
    """Log-probabilities of every next token, a part at a time."""
    state = model.init_state()
    tokens = np.array([_tokens(count)])
    for first in range(0, count, PART):
      part = tokens[:, first : first + PART]
      state, found = model.step(state, part)
      jax.block_until_ready(found)

  read(16)
  result["load"] = time.perf_counter() - start
  read(WINDOW)
  result["score"] = _timed(lambda: read(WINDOW))
  result["score_mib"] = _mib()
  prompt = model.vocabulary.decode(_tokens(64))
  model.generate(prompt, num_tokens=64, temperature=0)
  result["generate"] = _timed(
    lambda: model.generate(prompt, num_tokens=64, temperature=0)
  )
  result["long"] = _timed(lambda: read(long))
  result["long_mib"] = _mib()
  return result


def _theirs(folder: str, long: int) -> dict[str, float]:
  import torch
  import transformers

  start = time.perf_counter()
  kind = transformers.AutoModelForCausalLM
  model = kind.from_pretrained(folder, dtype=torch.float32).eval()
  result = {}

  def log_probabilities(ids: list[int], **options: object) -> None:
    logits = model(torch.tensor([ids]), **options).logits
    torch.log_softmax(logits, dim=-1)

  with torch.inference_mode():
    log_probabilities(_tokens(16))
    result["load"] = time.perf_counter() - start
    log_probabilities(_tokens(WINDOW))
    result["score"] = _timed(lambda: log_probabilities(_tokens(WINDOW)))
    result["score_mib"] = _mib()
    settings = {"max_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
    prompt = torch.tensor([_tokens(64)])
    model.generate(prompt, min_new_tokens=64, **settings)
    result["generate"] = _timed(
      lambda: model.generate(prompt, min_new_tokens=64, **settings)
    )
    fields = model.config.to_dict() | {"model_type": "mistral"}
    fields.pop("rope_parameters", None)
    fields |= {"sliding_window": WINDOW, "layer_types": None}
    for name in ("architectures", "attention_bias", "mlp_bias"):
      fields.pop(name, None)
    config = transformers.MistralConfig(**fields)
    windowed = kind.from_config(config).eval()
    windowed.load_state_dict(model.state_dict())
    model = windowed

    def read(count: int) -> None:
      cache = transformers.DynamicCache(config=config)
      tokens = _tokens(count)
      for first in range(0, count, PART):
        part = tokens[first : first + PART]
        log_probabilities(part, past_key_values=cache, use_cache=True)

    read(2 * PART)
    result["long"] = _timed(lambda: read(long))
    result["long_mib"] = _mib()
  return result


if __name__ == "__main__":
  main()
