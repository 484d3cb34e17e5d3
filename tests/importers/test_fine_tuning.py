"""A model in HuggingFace's format is imported and tuned on other text."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import corpus
from tests.training import runs as finished
from transformer_xl.config import load as load_lib
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.evaluation import evaluate
from transformer_xl.importers import export_run
from transformer_xl.importers import import_run
from transformer_xl.model import network
from transformer_xl.training import initial_parameters
from transformer_xl.training import loop
from transformer_xl.training import programs
from transformer_xl.workdir import trained_model

pytestmark = [pytest.mark.slow, pytest.mark.rest]

NUM_WORDS, NUM_NEW = 30, 50
STEPS = 40
CLUSTERS = {"model.cutoffs": (12,), "model.memory_start": "masked"}


def sentences(count, *, seed, swapped=()):
  """Lines in which each word decides on two that may follow it."""
  random = np.random.default_rng(seed)
  names = [f"w{number}" for number in range(NUM_WORDS)]
  for one, other in swapped:
    names[one], names[other] = names[other], names[one]
  word, lines = 0, []
  for _ in range(count):
    line = []
    for _ in range(9):
      word = (7 * word + int(random.integers(1, 3))) % NUM_WORDS
      line.append(names[word])
    lines.append(" ".join(line))
  return "\n".join(lines) + "\n"


def prepare(data_dir, name, text, **options):
  path = pathlib.Path(data_dir, f"{name}.txt")
  path.parent.mkdir(exist_ok=True)
  path.write_text(text)
  preparation.prepare(
    dataset="text",
    source=str(path),
    data_dir=str(data_dir),
    name=name,
    **options,
  )


def make_config(data_dir, name, **updates):
  values = {"data.name": name, **CLUSTERS, **updates}
  config = corpus.config_dict(str(data_dir), **values)
  meta = token_file.read_meta(f"{data_dir}/{name}")
  return load_lib.with_vocab_size(load_lib.from_config_dict(config), meta)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """An import that was trained on the text `old`, and two other texts."""
  folder = tmp_path_factory.mktemp("tuning")
  data = folder / "data"
  prepare(data, "old", sentences(900, seed=0), tokenizer="word")
  config = make_config(data, "old", **{"train.num_steps": 300})
  assert loop.train(config, str(folder / "source"))
  export_run.export(str(folder / "source"), str(folder / "huggingface"))
  import_run.make(
    import_run.Request("huggingface", str(folder / "huggingface")),
    str(folder / "imported"),
  )
  kept = {"vocabulary_file": str(folder / "imported")}
  swapped = sentences(900, seed=1, swapped=[(3, 7), (5, 20)])
  prepare(data, "other", swapped, **kept)
  new = " ".join(f"n{number}" for number in range(NUM_NEW))
  more = {**kept, "extend_vocabulary": True, "test_fraction": 0.0}
  prepare(data, "more", f"{new}\n{swapped}", **more)
  return folder


def losses(workdir):
  """Validation losses by step."""
  lines = finished.lines(workdir)
  return {line["step"]: line["nll"] for line in lines if "split" in line}


def test_tuning_starts_at_the_evaluation_and_beats_training_from_scratch(
  folder,
):
  source = {"train.init_from": str(folder / "imported")}
  updates = {"train.num_steps": STEPS, "train.eval_every_steps": STEPS}
  config = make_config(folder / "data", "other", **updates)
  tuned = make_config(folder / "data", "other", **updates, **source)
  assert loop.train(config, str(folder / "scratch"))
  assert loop.train(tuned, str(folder / "tuned"))
  valid = dataclasses.replace(config.eval, split="valid")
  (card,) = evaluate.run(
    dataclasses.replace(config, eval=valid), str(folder / "imported")
  )
  scratch, found = losses(folder / "scratch"), losses(folder / "tuned")
  assert found[0] == card["nll"]  # The same program, to the bit.
  assert found[STEPS] < found[0] - 0.1
  assert found[STEPS] < scratch[STEPS] - 0.1


def test_fifty_more_symbols_leave_old_probabilities_as_defined(folder):
  data = folder / "data"
  source = {"train.init_from": str(folder / "imported")}
  new = make_config(data, "more", **source)
  old = make_config(data, "other")
  size = old.model.vocab_size
  assert new.model.vocab_size == size + NUM_NEW
  mesh = programs.make_mesh(new.recipe, new.mesh)
  with jax.set_mesh(mesh):
    grown, record = initial_parameters.load(
      new.recipe, new.data.dataset_dir, mesh
    )
  assert record["new_symbols"] == NUM_NEW
  params = trained_model.load(old, str(folder / "imported")).params
  tokens = token_file.open_split(old.data.dataset_dir, "valid").tokens[:128]
  before, after = (
    read(config.model, weights, tokens)
    for config, weights in ((old, params), (new, grown))
  )
  first, exact = CLUSTERS["model.cutoffs"][0], {"rtol": 0, "atol": 2e-5}
  # Float32 log-probabilities down to -20.
  np.testing.assert_allclose(after[:, :first], before[:, :first], **exact)
  fall = before[:, first:] - after[:, first:size]
  assert fall.min() > -2e-5
  assert fall.max() < np.log1p(initial_parameters.ODDS) + 2e-5
  # All symbols of the cluster fall alike: given the cluster nothing changes.
  np.testing.assert_allclose(fall, fall[:, :1] + 0 * fall, **exact)
  odds = np.exp(after[:, size:]).sum(1) / np.exp(after[:, first:size]).sum(1)
  assert 0 < odds.max() <= initial_parameters.ODDS * (1 + 1e-4)


def read(config, params, tokens):
  """Log-probabilities [tokens, V] after a text."""
  model = network.Network(config)
  memory = network.empty_state(config, batch_size=1, mem_len=0, step_len=1)
  inputs = jnp.asarray(tokens.astype(np.int32))[None]
  result, _ = jax.jit(model.apply, static_argnames="method")(
    {"params": params}, inputs, memory, method="log_probs"
  )
  return np.asarray(result[0], np.float64)
