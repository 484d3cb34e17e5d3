"""Exported functions give our numbers in a process that has JAX alone."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import transformer_xl
from tests import kinds
from tests import saved_runs
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.importers import export_run

pytest.importorskip("flatbuffers")
PAGE = pathlib.Path(__file__).parents[2] / "docs/sharing.md"
LENGTHS = {
  "score.batch_size": 2,
  "score.segment_len": 4,
  "score.mem_len": 6,
  "score.prefix": "",
  "generate.segment_len": 4,
  "generate.mem_len": 6,
}
CASES = {"tails": {"model.cutoffs": (7, 12), "model.div_val": 2}}
MORE = {
  "hybrid": {"model.layers": ("attention:3", kinds.recurrent())},
  "what hands on more": {
    "model.layers": (
      kinds.mixer(attends=False),
      kinds.mixer(has_gradient_to_memory=False) + ":3",
      kinds.mixer(writes_segments=True),
    ),
    "model.num_layers": 3,
  },
  "no memory": {"score.mem_len": 0, "generate.mem_len": 0},
  "memory tokens": {
    "model.num_memory_tokens": 2,
    "train.gradient_segments": 2,
  },
  "slots": kinds.model(kinds.compressing()),
  "slopes, zeros": {
    "model.encoding": kinds.sloping(),
    "model.memory_start": "zeros",
  },
  "bfloat16": {"model.dtype": "bfloat16"},
}
# Several times as long as memory and segment, and of unequal lengths.
TEXTS = ["abcabcaab cab bca abc", "cab cab"]
# After the example of the page: losses of two texts by segments; then single
# tokens of the first, with and without a reset; then the likeliest tokens after
# a prompt.
PROGRAM = """
import sys

for entry in about["functions"].values():
  program = open(f"compiled/{entry['file']}", "rb").read()
  platforms = jax.export.deserialize(bytearray(program)).platforms
  assert list(platforms) == about["platforms"] == ["cpu", "tpu"]
rows, prompt, count = json.load(sys.stdin)
score, score_weights, memory = load("score")
inputs = about["functions"]["score"]["inputs"]["inputs"]
lanes, length = inputs["shape"]
longest = -(-max(map(len, rows)) // length) * length
padded = np.zeros((lanes, longest + 1), np.int32)
for lane, row in enumerate(rows):
  padded[lane, : len(row)] = row
losses = []
for start in range(0, longest, length):
  stop = start + length
  nll, memory = score(
    score_weights,
    memory,
    padded[:, start:stop],
    padded[:, start + 1 : stop + 1],
  )
  losses.append(nll)
losses = np.concatenate(losses, axis=1)

def read(tokens, state):
  for token in tokens:
    token = np.array([[token]], np.int32)
    log_probs, state = step(weights, state, token, resets)
    yield log_probs[0, 0], state

_, weights, first = load("step")
single = [log_probs.tolist() for log_probs, _ in read(rows[0], first)]
*_, (log_probs, state) = read([1, 2, *prompt], first)
again = np.ones((1, 1), bool)
reset, _ = step(weights, state, np.array([[3]], np.int32), again)
fresh, _ = step(weights, first, np.array([[3]], np.int32), resets)
*_, (log_probs, state) = read(prompt, first)
drawn = []
for _ in range(count):
  drawn.append(int(log_probs.argmax()))
  *_, (log_probs, state) = read(drawn[-1:], state)
print(json.dumps({
  "losses": [losses[i, : len(r) - 1].tolist() for i, r in enumerate(rows)],
  "single": single,
  "drawn": drawn,
  "reset": reset.tolist(),
  "fresh": fresh.tolist(),
}))
for name in ("transformer_xl", "flax", "optax", "orbax"):
  assert name not in sys.modules, name
"""


def exported(tmp_path, **fields):
  """A run, and the configuration that it saved, exported beside it."""
  run = saved_runs.write(tmp_path / "run", **LENGTHS | fields)
  config = load.from_config_dict(load.saved(run))
  target = str(tmp_path / "compiled")
  result = export_run.run(config, run, target=target, format="stablehlo")
  assert result == {"format": "stablehlo", "target": target}
  return run


def read_elsewhere(folder, *arguments):
  """What PROGRAM prints in a process where this package cannot be imported."""
  (example,) = re.findall(r"```\n(import json\n.*?)```", PAGE.read_text(), re.S)
  script = folder / "program.py"
  forbidden = "import sys\nsys.modules['transformer_xl'] = None\n"
  allowed = "del sys.modules['transformer_xl']\n"
  script.write_text(
    forbidden
    + example
    + PROGRAM.replace("for name in", allowed + "for name in")
  )
  done = subprocess.run(
    [sys.executable, str(script)],
    input=json.dumps(arguments),
    capture_output=True,
    cwd=folder,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.rest
@pytest.mark.parametrize(
  "case",
  [*CASES, *(pytest.param(one, marks=pytest.mark.rest) for one in MORE)],
)
def test_it_scores_and_generates_as_we_do(tmp_path, case):
  run = exported(tmp_path, **(CASES | MORE)[case])
  model = transformer_xl.load(run)
  rows = [model.vocabulary.encode(text).tolist() for text in TEXTS]
  prompt = rows[0][:9]
  found = read_elsewhere(tmp_path, rows, prompt, 12)

  # The same program, compiled for other shapes; bfloat16 rounds to 8 bits.
  tolerance = 0.02 if case == "bfloat16" else 1e-5
  scores = model.score(TEXTS)
  for losses, score in zip(found["losses"], scores, strict=True):
    np.testing.assert_allclose(
      losses, -np.array(score.log_probs[1:], float), rtol=tolerance
    )
  _, log_probs = model.step(model.init_state(), [rows[0]])
  np.testing.assert_allclose(found["single"], log_probs[0], rtol=tolerance)
  if case != "memory tokens":  # None are read where a document starts inside.
    np.testing.assert_allclose(found["reset"], found["fresh"], rtol=tolerance)
  if case != "bfloat16":  # Where several tokens may be equally likely.
    text = model.vocabulary.decode(prompt)
    ours = model.generate(text, temperature=0.0, num_tokens=12, num_samples=1)
    assert model.vocabulary.decode(found["drawn"]) == ours.text


def test_without_flatbuffers_the_package_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with pytest.raises(errors.UserError, match=r"pip install .*stablehlo"):
    exported(tmp_path)
  assert not (tmp_path / "compiled").exists()
