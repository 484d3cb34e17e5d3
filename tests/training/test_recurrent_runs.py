"""Runs of recurrent layers: they learn, resume, and are evaluated."""

import jax
import numpy as np
import pytest

import transformer_xl
from tests import corpus
from tests import kinds
from tests.training import test_resume
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate

# A state is carried with any length of memory above 0.
ONE_STATE = {"train.mem_len": 1, "eval.mem_len": (1,)}
# Those without fields of their own above one another, and each other one alone.
WITHOUT_FIELDS = kinds.mixers(attends=False, Fields=None)
PATTERNS = [
  WITHOUT_FIELDS[::-1],
  *(
    (name, name)
    for name in kinds.mixers(attends=False)
    if name not in WITHOUT_FIELDS
  ),
]


def alphabet(num_tokens, *, seed=0):
  """Each letter is most often the next one of the alphabet."""
  generator = np.random.default_rng(seed)
  size = len(corpus.SYMBOLS)
  steps = generator.integers(size, size=num_tokens)
  steps[generator.random(num_tokens) < 0.8] = 1
  return (np.cumsum(steps) % size).astype(np.uint8)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(corpus, "text", alphabet)
    return corpus.write(tmp_path_factory.mktemp("alphabet"))


def unigram_loss(config):
  """Of a split by the frequencies in the training text, with one added."""
  train, valid = (
    np.asarray(token_file.open_split(config.data.dataset_dir, name).tokens)
    for name in ("train", "valid")
  )
  counts = 1 + np.bincount(train, minlength=len(corpus.SYMBOLS))
  return -np.log(counts[valid[1:]] / counts.sum()).mean()


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("layers", PATTERNS)
def test_a_run_in_two_parts_is_the_run_in_one_and_learns(
  layers, data_dir, tmp_path
):
  config = corpus.config(
    data_dir,
    **ONE_STATE,
    **{
      "model.layers": layers,
      "model.model_dim": 16,
      "model.dropout_rate": 0.1,
      "model.weight_dropout_rate": 0.1,
      "model.locked_dropout": True,
      "train.num_steps": 240,
      "train.learning_rate": 0.03,
      "train.accumulation_steps": 2,
      "train.activation_penalty": 0.01,
      "train.log_every_steps": 120,
      "train.eval_every_steps": 240,
      "checkpoint.every_steps": 120,
      "eval.split": "valid",
      "eval.warmup_len": 128,
    },
  )
  whole = test_resume.assert_same_in_parts(config, tmp_path, 98)
  memory = test_resume.newest(whole, config).memory
  assert all(map(np.any, jax.tree.leaves(memory.layers)))
  (card,) = evaluate.run(config, whole)
  assert card["mem_len"] == 1
  (logged,) = [x for x in test_resume.lines(whole) if "split" in x]
  assert card["nll"] == pytest.approx(logged["nll"], rel=1e-6)
  assert card["nll"] < unigram_loss(config) - 0.5
  model = transformer_xl.load(whole)
  valid = token_file.open_split(config.data.dataset_dir, "valid").tokens
  (scored,) = model.score([model.vocabulary.decode(valid)], prefix="")
  assert scored.num_tokens == card["num_tokens"]
  # Evaluation has lanes, which warm up on the text before them.
  assert scored.nll / scored.num_tokens == pytest.approx(card["nll"], rel=1e-4)
  drawn = model.generate("abc", num_tokens=6, temperature=0.0)
  assert drawn.text == "defghi"
