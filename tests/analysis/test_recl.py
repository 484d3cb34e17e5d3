"""RECL against a direct implementation; its losses against single tokens."""

import itertools
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import corpus
from tests import kinds
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import group
from transformer_xl.analysis import recl
from transformer_xl.config import load

RECURRENT = {
  "model.layers": (kinds.recurrent(),),
  "train.mem_len": 1,
  "eval.mem_len": (1,),
}
ROUNDING = 1e-5  # Float32 against float64, see `conformance`.


def direct(losses, model, contexts, *, fraction, threshold):
  """Appendix C as loops over lists of tokens."""
  models = range(len(losses))
  tokens = range(len(losses[0][0]))
  for k, context in enumerate(contexts[:-1]):
    best = [min(losses[m][k][t] for m in models) for t in tokens]
    count = max(1, round(fraction * len(best)))
    hardest = sorted(tokens, key=lambda t: -best[t])[:count]

    def relative_loss(index, best=best, hardest=hardest):
      row = losses[model][index]
      return sum(min(best[t], row[t]) for t in hardest) / len(hardest)

    before = math.exp(relative_loss(k))
    if (before - math.exp(relative_loss(k + 1))) / before < threshold:
      return context, True
  return contexts[-1], False


@given(
  seed=st.integers(0, 10**6),
  num_models=st.integers(1, 3),
  num_contexts=st.integers(2, 7),
  num_tokens=st.integers(1, 40),
  fraction=st.sampled_from([0.1, 0.5, 1.0]),
  threshold=st.sampled_from([0.001, 0.01, 0.05, 0.2]),
)
def test_lengths_are_those_of_the_definition(
  seed, num_models, num_contexts, num_tokens, fraction, threshold
):
  generator = np.random.default_rng(seed)
  shape = (num_models, num_contexts, num_tokens)
  # Losses mostly fall with context, like those of models.
  losses = generator.exponential(2.0, (num_models, 1, num_tokens))
  losses = losses * 0.9 ** np.arange(num_contexts)[:, None]
  losses = losses + 0.05 * generator.standard_normal(shape) ** 2
  contexts = list(range(5, 5 + 3 * num_contexts, 3))
  found = recl.gains(losses, fraction=fraction)
  for model in range(num_models):
    actual = recl.effective_length(
      found.relative[model], contexts, threshold=threshold
    )
    assert actual == direct(
      losses, model, contexts, fraction=fraction, threshold=threshold
    )


def test_a_model_gains_only_where_it_beats_the_group():
  """The second model is best at every context and never gains."""
  losses = np.array([[[3.0, 3.0], [2.0, 2.0]], [[1.0, 1.0], [1.0, 1.0]]])
  assert not recl.gains(losses, fraction=1.0).relative.any()
  alone = recl.gains(losses[:1], fraction=1.0)
  assert alone.relative.item() == pytest.approx(1 - math.exp(-1))
  assert alone.perplexity.item() == pytest.approx(math.e**3 - math.e**2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("recl")
  corpus.write(folder / "data")
  return folder


def read(folder, contexts, **updates):
  updates = {"eval.segment_len": 5, "analysis.num_tokens": 40} | updates
  subject, file = runs.model(f"{folder}/data", **updates)
  losses, _ = recl.measure(subject, contexts)
  return subject.config, file, losses


@pytest.mark.some(2)
@pytest.mark.parametrize(
  ("fields", "segment_len"),
  [
    ({"model.encoding": "relative"}, 5),
    ({"model.encoding": "absolute"}, 8),
    (RECURRENT, 5),
    *(
      (RECURRENT | {"model.layers": (name, "attention")}, 5)
      for name in kinds.mixers(attends=False, Fields=None)[1:]
    ),
  ],
)
def test_losses_are_those_of_single_tokens_with_a_truncated_context(
  folder, fields, segment_len
):
  """Uses two layers, so that windows of keys reach twice as far."""
  contexts = [2, 5, 8]
  config, file, losses = read(
    folder,
    contexts,
    **fields | {"train.segment_len": segment_len},
  )
  assert losses.shape == (3, 40)
  for index, token in itertools.product(range(3), [8, 9, 20, 47]):
    expected = runs.slow_loss(config, file.tokens, token, contexts[index])
    assert losses[index, token - 8] == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("lengths", [(5, 0), (3, 2)])
def test_absolute_positions_are_read_no_farther_than_in_training(
  folder, lengths
):
  """Training reads a segment, and with it the text before that again."""
  absolute = {"model.encoding": "absolute", "train.mem_len": 0}
  absolute |= {"train.segment_len": lengths[0], "train.context_len": lengths[1]}
  *_, losses = read(folder, [2, 5, 8], **absolute)
  whole = {**absolute, "train.segment_len": 5, "train.context_len": 0}
  *_, shorter = read(folder, [2, 5], **whole)
  np.testing.assert_array_equal(losses[2], losses[1])
  # The tokens start after the longest context.
  np.testing.assert_allclose(losses[:2, :37], shorter[:, 3:], atol=ROUNDING)


def test_a_context_ends_where_a_document_starts(folder):
  config, file, losses = read(
    folder, [3, 7], **{"model.num_layers": 1, "data.reset_at_documents": True}
  )
  num_cut = 0
  for index, token in itertools.product(range(2), range(7, 47)):
    context = (3, 7)[index]
    begin = max([start for start in file.documents if start < token])
    num_cut += begin > token - context
    known = min(token - begin, context)
    expected = runs.slow_loss(config, file.tokens, token, known)
    assert losses[index, token - 7] == pytest.approx(expected, abs=ROUNDING)
  assert num_cut > 0


def test_members_of_a_group_are_evaluated_as_the_first_one(folder):
  """Whatever was saved with them: temperature and average of the parameters."""
  lengths = {
    "analysis.contexts": (2, 5, 3),
    "analysis.num_tokens": 40,
  }
  hot = {"eval.temperature": (3.0,), "eval.parameters": "ema"}
  runs.write(
    f"{folder}/data", folder / "hot", **hot, **{"train.ema_decay": 0.5}
  )
  config = runs.write(
    f"{folder}/data",
    folder / "first",
    **lengths,
    **{"analysis.group": (f"{folder}/hot",)},
  )
  first, second = recl.run(config, f"{folder}/first")["models"]
  assert first["perplexity"] == second["perplexity"]
  assert first["settings"] == second["settings"]
  assert first["settings"]["parameters"] == "raw"


def test_runs_of_a_group_have_different_names(tmp_path):
  """As seeds of a study, whose folders have the same name."""
  folders = [f"{tmp_path}/seed_{seed}/base" for seed in (0, 1)]
  other = f"{tmp_path}/other"
  data = corpus.write(tmp_path / "data")
  for folder in (*folders, other):
    config = runs.write(data, folder)
  of_all = {"analysis.group": (folders[0], folders[1], f"{folders[1]}/")}
  config = load.replaced(config, of_all)
  read = [folder for folder, _ in group.configurations(config, folders[0])]
  assert [os.path.normpath(folder) for folder in read] == folders
  names = group.names(config.analysis.group, folders[0])
  assert len({*names.values()}) == len(read) == 2
  config = load.replaced(config, {"analysis.group": (folders[0],)})
  assert [*group.names(config.analysis.group, other).values()] == [
    "other",
    "base",
  ]


def test_a_group_is_compared_and_drawn(folder):
  twin = {"model.encoding": "absolute", "train.mem_len": 0}
  runs.write(f"{folder}/data", folder / "twin", **twin)
  runs.write(f"{folder}/data", folder / "recurrent", **RECURRENT)
  config = runs.write(
    f"{folder}/data",
    folder / "run",
    **{
      "analysis.group": (f"{folder}/twin", f"{folder}/recurrent"),
      "analysis.contexts": (2, 12, 3),
      "analysis.num_tokens": 60,
    },
  )
  result = recl.run(config, f"{folder}/run")
  assert result["contexts"] == [2, 5, 8, 11]
  names = [model["name"] for model in result["models"]]
  assert names == ["run", "twin", "recurrent"]
  assert [entry["fraction"] for entry in result["recl"]] == [0.1, 0.5, 1.0]
  path = folder / "run" / "results"
  assert json.loads((path / "recl.json").read_text()) == result
  losses = np.load(path / "recl.npz")["losses"]
  assert losses.shape == (3, 4, 60)
  assert result["made_by"].encode() in (path / "recl.png").read_bytes()


@pytest.mark.parametrize(
  ("updates", "text"),
  [
    ({"analysis.contexts": (16, 17, 16)}, "has no context to compare with 16"),
    ({"analysis.contexts": (16, 17)}, "must be three numbers"),
    (
      {
        "analysis.contexts": (16, 20, 4),
        "analysis.num_tokens": 20,
        "model.encoding": kinds.learned(counts_from_segment=True),
        "model.num_positions": 8,
        "train.segment_len": 20,
      },
      "has learned 8 positions and cannot read a segment of 20",
    ),
  ],
)
def test_a_mistake_is_one_line(folder, tmp_path, updates, text):
  config = runs.write(f"{folder}/data", tmp_path, **updates)
  with pytest.raises(errors.UserError, match=text):
    recl.run(config, str(tmp_path))
