"""A Llama of SmolLM2-135M's shape beside transformers and PEFT, on one machine.

    .venv-transformers/bin/python -m benchmarks.decoders

after `make .venv-transformers/installed`. Weights are random. Both sides read
the same folder, in processes of their own that take turns, and use all cores.
With `preload`, as libjemalloc.so.2, theirs has that allocator; ours has huge
pages.

Prints a table: for each side the median of the rounds in the faster of float32
and bfloat16, and theirs divided by ours. Texts are read in parts of 512 tokens.
With a window of 2,048, theirs is the same model as a Mistral, whose cache holds
the window ("cache"), or reads the window again with every part, as the guide
of transformers to texts of any length does ("again"). The first row begins with
an empty process, since ours imports JAX when it loads. The last rows are peak
memory: of an import, above a process that has imported the package, as a
multiple of the file; and of reading the long text, above a short one's.
"""

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

SHAPE = {
  **{"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536},
  **{"num_hidden_layers": 30, "num_attention_heads": 9},
  **{"num_key_value_heads": 3, "max_position_embeddings": 8192},
  "tie_word_embeddings": True,
}
WINDOW = 2048
PART = 512
LONG = 32768
LANES = 4
RANK = 8
# The tokenizer's first symbols are the printable characters of ASCII.
CHARACTERS = 94
UPDATES = 3  # After the first, which compiles.
ROWS = {
  "load": "import, load, and score 16 tokens",
  "score": "score 2,048 tokens",
  "generate": "generate 64 tokens after 64",
  "long": "read {long:,} tokens, window 2,048, cache",
  "again": "read {long:,} tokens, window 2,048, again",
  "lora": "a LoRA update of 4 x 512 tokens",
}
DTYPES = ("float32", "bfloat16")
Times = dict[str, float]


class Median(NamedTuple):
  """Of the rounds with one type, in seconds or MiB."""

  value: float
  dtype: str


def main() -> None:
  """Runs both sides in turn, and prints the table."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--rounds", type=int, default=3)
  parser.add_argument("--long", type=int, default=LONG, help="tokens")
  parser.add_argument("--rows", default=",".join((*ROWS, "import")))
  parser.add_argument("--dtypes", default=",".join(DTYPES))
  parser.add_argument("--preload", default="", help="an allocator for theirs")
  parser.add_argument("--side", default="", help=argparse.SUPPRESS)
  parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.side:
    print(json.dumps(_run_side(options)))
    return
  found: dict[tuple[str, str], list[Times]] = {}
  with tempfile.TemporaryDirectory() as folder:
    _write(folder)
    for _ in range(options.rounds):
      for dtype in options.dtypes.split(","):
        for side in ("ours", "theirs"):
          result = _in_a_process(side, dtype, folder, options)
          found.setdefault((side, dtype), []).append(result)
          print(side, dtype, result, file=sys.stderr, flush=True)
    if "import" in options.rows.split(","):
      in_import = _in_a_process("import", "bfloat16", folder, options)
      found["import", "bfloat16"] = [in_import]
  _print_table(found, options)


def _run_side(options: argparse.Namespace) -> Times:
  """What one process measures; its name is a side, a comma and a type."""
  side, dtype = options.side.split(",")
  folder = os.path.join(options.folder, dtype)
  rows = set(options.rows.split(","))
  if side == "import":
    return _import(folder)
  if side == "ours":
    return _ours(folder, dtype, rows, options.long)
  return _theirs(folder, dtype, rows, options.long)


def _print_table(
  found: dict[tuple[str, str], list[Times]], options: argparse.Namespace
) -> None:
  def median(side: str, name: str) -> Median:
    """That of the faster type."""
    medians = [
      Median(statistics.median(result[name] for result in results), dtype)
      for (one, dtype), results in found.items()
      if one == side and name in results[0]
    ]
    return min(medians, default=Median(math.nan, ""))

  print("| seconds | ours | theirs | theirs / ours |")
  print("|---|---|---|---|")
  for name, title in ROWS.items():
    if name not in options.rows.split(","):
      continue
    our_name = name
    if name == "again":  # Ours reads long texts in one way.
      our_name = "long"
    ours = median("ours", our_name)
    theirs = median("theirs", name)
    print(
      f"| {title.format(long=options.long)} | {ours.value:.2f} {ours.dtype} | "
      f"{theirs.value:.2f} {theirs.dtype} | {theirs.value / ours.value:.2f} |"
    )
  for side in ("ours", "theirs"):
    more = median(side, "long_mib")
    print(
      f"| {side}: memory of the long text, MiB | {more.value:.0f} "
      f"{more.dtype} | | |"
    )
  for result in found.get(("import", "bfloat16"), []):
    print(f"| memory of an import / its file | {result['import']:.2f} | | |")


def _in_a_process(
  side: str, dtype: str, folder: str, options: argparse.Namespace
) -> Times:
  command = [
    *(sys.executable, "-m", "benchmarks.decoders", f"--side={side},{dtype}"),
    *(f"--folder={folder}", f"--long={options.long}", f"--rows={options.rows}"),
  ]
  environment = dict(os.environ)
  if side == "theirs" and options.preload:
    environment["LD_PRELOAD"] = options.preload
  elif side == "ours":  # As docs/kernels.md says, and commands do themselves.
    environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
  done = subprocess.run(
    command, check=True, stdout=subprocess.PIPE, text=True, env=environment
  )
  return json.loads(done.stdout.splitlines()[-1])


def _write(folder: str) -> None:
  """Random models by type, and a tokenizer whose symbols are bytes."""
  import torch
  import transformers

  from tests.importers import decoders_by_hand

  torch.manual_seed(0)
  config = transformers.LlamaConfig(**SHAPE)
  model = transformers.AutoModelForCausalLM.from_config(config)
  for dtype in DTYPES:
    path = pathlib.Path(folder, dtype)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size="64MB")
    decoders_by_hand.write_tokenizer(path)
    # An import computes in float32 unless its own entry says otherwise.
    fields = json.loads((path / "config.json").read_text("utf-8"))
    fields["transformer_xl"] = {"model": {"dtype": dtype}}
    (path / "config.json").write_text(json.dumps(fields), "utf-8")


def _timed(call: Callable[[], object]) -> float:
  start = time.perf_counter()
  call()
  return time.perf_counter() - start


def _mib() -> float:
  """The peak of this process; that of getrusage begins with its parent's."""
  status = pathlib.Path("/proc/self/status").read_text("utf-8")
  (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
  return int(kib) / 1024


def _tokens(count: int) -> list[int]:
  """Those of a text of as many printable characters."""
  return [(7 * index + index // 5) % CHARACTERS for index in range(count)]


def _import(folder: str) -> Times:
  """The peak of memory of an import, by the size of its file."""
  import jax

  import transformer_xl  # noqa: F401
  from transformer_xl.importers import import_run

  jax.devices()
  before = _mib()
  with tempfile.TemporaryDirectory() as made:
    import_run.make(import_run.Request("huggingface", folder), f"{made}/run")
  files = pathlib.Path(folder).glob("*.safetensors")
  size = sum(path.stat().st_size for path in files) / 2**20
  return {"import": (_mib() - before) / size}


def _ours(folder: str, dtype: str, rows: set[str], long: int) -> Times:
  start = time.perf_counter()
  import transformer_xl

  model = transformer_xl.load(folder, mem_len=WINDOW, segment_len=PART)
  result = {}

  def score(count: int) -> None:
    (read,) = model.score([model.vocabulary.decode(_tokens(count))])
    assert read.num_tokens == count, read.num_tokens  # Theirs reads ids.

  score(16)
  result["load"] = time.perf_counter() - start
  if "score" in rows:
    score(WINDOW)
    result["score"] = _timed(lambda: score(WINDOW))
  if "generate" in rows:
    prompt = model.vocabulary.decode(_tokens(64))
    model.generate(prompt, num_tokens=64, temperature=0)
    result["generate"] = _timed(
      lambda: model.generate(prompt, num_tokens=64, temperature=0)
    )
  if "long" in rows:
    score(2 * WINDOW)
    before = _mib()
    result["long"] = _timed(lambda: score(long))
    result["long_mib"] = _mib() - before
  del model
  if "lora" in rows:
    result["lora"] = _our_update(folder, dtype)
  return result


def _our_update(folder: str, dtype: str) -> float:
  import jax
  import jax.numpy as jnp

  from transformer_xl.config import load
  from transformer_xl.data import segment as segment_lib
  from transformer_xl.importers import import_run
  from transformer_xl.training import programs

  with import_run.opened(import_run.Request("huggingface", folder)) as found:
    config = load.changed(
      found.config,
      {
        "model.dtype": dtype,
        "train.init_from": folder,  # The numbers do not matter here.
        "train.lora.rank": RANK,
        "train.optimizer": "adamw",
        "train.batch_size": LANES,
        "train.segment_len": PART,
        "train.mem_len": 0,
      },
    )
  mesh = programs.make_mesh(config.recipe, config.mesh)
  with jax.set_mesh(mesh):
    create_state, create_memory = programs.creators(config.recipe, mesh)
    state = create_state()
    memory = create_memory()
    update = programs.update(config.recipe, mesh)
    numbers = programs.numbers(config.recipe)
    ids = jnp.array([_tokens(LANES * PART + 1)])
    segment = segment_lib.Segment(
      ids[:, :-1].reshape(1, LANES, PART),
      ids[:, 1:].reshape(1, LANES, PART),
      resets=jnp.zeros((1, LANES, PART), bool),
      weights=None,
    )
    times = []
    for _ in range(1 + UPDATES):
      start = time.perf_counter()
      state, memory, _ = update(numbers, state, memory, segment)
      jax.block_until_ready(state)
      times.append(time.perf_counter() - start)
  return statistics.median(times[1:])


def _theirs(folder: str, dtype: str, rows: set[str], long: int) -> Times:
  start = time.perf_counter()
  import torch
  import transformers

  kind = transformers.AutoModelForCausalLM
  model = kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
  result = {}

  def score(model, ids: list[int], count: int, **options: object) -> None:
    """The log-probabilities of the last `count` of the tokens."""
    inputs = torch.tensor([ids])
    logits = model(inputs, logits_to_keep=count, **options).logits
    torch.nn.functional.cross_entropy(
      logits[0, :-1].float(), inputs[0, len(ids) - count + 1 :]
    )

  with torch.inference_mode():
    score(model, _tokens(16), 16)
    result["load"] = time.perf_counter() - start
    if "score" in rows:
      ids = _tokens(WINDOW)
      score(model, ids, WINDOW)
      result["score"] = _timed(lambda: score(model, ids, WINDOW))
    if "generate" in rows:
      settings = {"max_new_tokens": 64, "do_sample": False, "pad_token_id": 0}
      prompt = torch.tensor([_tokens(64)])

      def generate() -> None:
        model.generate(prompt, min_new_tokens=64, **settings)

      generate()
      result["generate"] = _timed(generate)
    if "again" in rows:

      def read_again(count: int) -> None:
        tokens = _tokens(count)
        for first in range(0, count, PART):
          seen = tokens[max(0, first - WINDOW) : first + PART]
          score(model, seen, PART)

      read_again(2 * PART)
      result["again"] = _timed(lambda: read_again(long))
    if "long" in rows:
      windowed, config = _with_a_window(model)

      def read(count: int) -> None:
        cache = transformers.DynamicCache(config=config)
        tokens = _tokens(count)
        for first in range(0, count, PART):
          part = tokens[first : first + PART]
          score(windowed, part, PART, past_key_values=cache, use_cache=True)

      read(2 * WINDOW)
      before = _mib()
      result["long"] = _timed(lambda: read(long))
      result["long_mib"] = _mib() - before
  if "lora" in rows:
    result["lora"] = _their_update(model)
  return result


def _with_a_window(model):
  """The same model as a Mistral, whose layers see a window."""
  import transformers

  fields = model.config.to_dict() | {"model_type": "mistral"}
  fields |= {"sliding_window": WINDOW}
  for name in (
    *("architectures", "attention_bias", "mlp_bias", "layer_types"),
    *("rope_parameters", "pretraining_tp", "transformer_xl"),
  ):
    fields.pop(name, None)
  config = transformers.MistralConfig(**fields)
  kind = transformers.AutoModelForCausalLM
  windowed = kind.from_config(config).to(model.dtype).eval()
  windowed.load_state_dict(model.state_dict())
  return windowed, config


def _their_update(model) -> float:
  import peft
  import torch

  settings = peft.LoraConfig(
    r=RANK,
    lora_alpha=16,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    task_type="CAUSAL_LM",
  )
  adapted = peft.get_peft_model(model, settings).train()
  trained = [one for one in adapted.parameters() if one.requires_grad]
  optimizer = torch.optim.AdamW(trained, lr=1e-4)
  ids = torch.tensor([_tokens(LANES * PART)]).reshape(LANES, PART)

  def update() -> None:
    optimizer.zero_grad(set_to_none=True)
    adapted(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()

  update()
  return statistics.median(_timed(update) for _ in range(UPDATES))


if __name__ == "__main__":
  main()
