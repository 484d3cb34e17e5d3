"""A finished run with a log, cards and a sample, and its report."""

import hashlib
import json

import pytest

from tests import corpus
from tests.analysis import runs
from transformer_xl.data import vocabulary
from transformer_xl.workdir import goodput

# As a corpus, a run's name or a sample: to be shown, never to be run.
HOSTILE = (
  "</script><script>document.title='owned'</script><!-- \"'&\\\x00\u2028\ud800"
)


@pytest.fixture(scope="package")
def data_dir(tmp_path_factory):
  return corpus.write(tmp_path_factory.mktemp("data"))


def write_run(data_dir, workdir, *, num_lines=40, **updates):
  """A run with random parameters and all that a report shows."""
  config = runs.write(data_dir, workdir, **updates)
  results = workdir / "results"
  results.mkdir()
  with open(workdir / "metrics.jsonl", "w") as file:
    for step in range(1, num_lines + 1):
      line = {
        **{"step": step, "tokens": 32 * step, "loss": 3 - step / num_lines},
        **{"learning_rate": 1e-3, "gradient_norm": 0.5 + step % 7},
        "tokens_per_second": 100.0,
      }
      file.write(json.dumps(line) + "\n")
    file.write(json.dumps({"step": 30, "split": "valid", "nll": 2.5}) + "\n")
    file.write(json.dumps({"step": 21, "rewound_to": 20}) + "\n")
  seconds = dict.fromkeys(goodput.OVERHEAD, 0.0)
  time = {
    "step": 40,
    "is_last": False,
    "saved_at": 5000.0,
    "total_seconds": 4000.0,
    "seconds": seconds
    | {"compiling": 100.0, "lost to restarts": 900.0, "saving": 1.0},
  }
  (workdir / "goodput.jsonl").write_text(f"{json.dumps(time)}\n{{")
  cards = [
    {
      **{"split": "test", "nll": 3.0 - mem_len / 100, "mem_len": mem_len},
      **{"checkpoint_step": 3, "num_parameters": 1000, "seconds": 1.5},
    }
    for mem_len in (0, 8, 16)
  ]
  (results / "cards.jsonl").write_text(
    "".join(json.dumps(card) + "\n" for card in cards)
  )
  sample = {"prompt": "abc", "samples": [{"text": HOSTILE}], "seed": 0}
  (results / "generate.json").write_text(json.dumps(sample))
  return config


def write_hostile(data_dir):
  """A dataset whose words are parts of a page."""
  corpus.write(data_dir)
  folder = data_dir / corpus.NAME
  words = [HOSTILE.replace(" ", "_"), "<b>", "&lt;", "'\"`${1}", "a\u202eb"]
  words += [f"w{n}" for n in range(len(corpus.SYMBOLS) - len(words))]
  content = "".join(vocabulary.escape(word) + "\n" for word in words).encode()
  (folder / "vocabulary.txt").write_bytes(content)
  meta = json.loads((folder / "meta.json").read_text())
  meta["unit"] = "word"
  meta["tokenizer"] = {"kind": "word", "lower_case": False}
  meta["tokenizer"] |= {"end_of_line": None, "unk": None}
  meta["vocabulary"]["sha256"] = hashlib.sha256(content).hexdigest()
  (folder / "meta.json").write_text(json.dumps(meta))
  return str(data_dir)


# Of a prompt from a split.
EXCERPT = {
  "prompt": "what was written",
  "num_prompt_tokens": 1512,
  "text": "drawn",
  "num_tokens": 40,
  "prompt_split": "test",
  "prompt_start": 0,
  "reference": "what follows",
  "num_reference_tokens": 30,
  "samples": [{"text": "drawn", "num_tokens": 40, "stopped": False}],
}
_TEXT = {"dataset": HOSTILE, "split": "test", "num_tokens": 2000}
RECL = {
  **_TEXT,
  "contexts": [4, 8, 12],
  "models": [
    {"name": HOSTILE, "perplexity": [9.0, 8.0, 7.5], "checkpoint_step": 3}
  ],
  "recl": [
    {
      **{"fraction": 0.1, "recl": [12], "is_reached": [False]},
      "relative_gains": [[0.2, 0.1]],
    }
  ],
}
ATTENTION = {
  **_TEXT,
  "checkpoint_step": 3,
  "attending_layers": [1, 2],
  "mean_distance": [[1.0, 2.0], [3.0, 4.0]],
  "memory_share_by_layer": [0.25, 0.5],
}
