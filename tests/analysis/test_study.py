"""A study: variants are trained once, timed in turns and compared."""

import json
import math

import pytest

from tests import corpus
from transformer_xl import errors
from transformer_xl.analysis import study
from transformer_xl.config import schema
from transformer_xl.training import loop

VARIANTS = (
  "base: ",
  "half: train.num_steps=2",
  "long: train.mem_len=16; eval.mem_len=(16,)",
)


@pytest.mark.rest  # Six runs are compiled.
def test_variants_are_trained_once_with_each_seed(
  data_dir, tmp_path, monkeypatch
):
  config = corpus.config(
    data_dir,
    **{
      "analysis.variants": VARIANTS,
      "analysis.seeds": (0, 1),
      "analysis.table": "lengths",
      "train.num_steps": 4,
    },
  )
  trained = []
  original = loop.train

  def counted(config, workdir):
    trained.append((config.seed, config.train.mem_len))
    # The third run is interrupted on the first attempt.
    return len(trained) != 3 and original(config, workdir)

  monkeypatch.setattr(loop, "train", counted)
  assert study.run(config, str(tmp_path)) == {}
  result = study.run(config, str(tmp_path))
  assert trained == [(0, 8), (1, 8), *[(0, 8)] * 2, (1, 8), (0, 16), (1, 16)]
  base, half, long = result["rows"]
  assert base["tokens"] == 2 * half["tokens"] == long["tokens"]
  assert base["seconds_per_token"] == half["seconds_per_token"] > 0
  assert long["planned_bytes"] > base["planned_bytes"]
  assert base["relative_seconds"] == 1
  assert (base["mem_len"], long["mem_len"]) == (8, 16)
  saved = json.loads((tmp_path / "results" / "lengths.json").read_text())
  assert saved == json.loads(json.dumps(result))
  assert (tmp_path / "results" / "lengths.md").read_text().count("\n") == 5
  picture = (tmp_path / "results" / "lengths.png").read_bytes()
  assert result["made_by"].encode() in picture


def _row(name, *, tokens, nll, seconds=1.0, spread=0.0, **changes):
  return {
    "name": name,
    "changes": changes,
    "tokens": tokens,
    "nll": nll,
    "spread": spread,
    "relative_seconds": seconds,
  }


def test_equal_time_compares_with_the_first_variant_at_other_tokens():
  rows = [
    _row("base", tokens=100, nll=5.0, spread=0.02),
    _row("double", tokens=200, nll=4.0, **{"train.num_steps": 2}),
    # Twice as slow, so the first variant reads 200 tokens meanwhile.
    _row("slow", tokens=100, nll=4.5, seconds=2.0, other=1),
    _row("same", tokens=100, nll=4.99, other=2),
    _row("too slow", tokens=100, nll=3.0, seconds=2.1, other=3),
    _row("between", tokens=100, nll=4.5, seconds=math.sqrt(2), other=4),
  ]
  study.compare(rows)
  values = {
    row["name"]: (row["at_equal_tokens"], row["at_equal_time"]) for row in rows
  }
  assert values["base"] == (0, 0)
  assert values["double"] == (None, 0)
  assert values["slow"] == (-0.5, pytest.approx(0.5))
  assert values["too slow"] == (-2.0, None)
  assert values["between"][1] == pytest.approx(0.0)
  assert [row["is_noise"] for row in rows] == [True, False, False, True] + [
    False
  ] * 2


@pytest.mark.parametrize(
  "text",
  [
    "",
    "train.mem_len=3",
    "a/b: train.mem_len=3",
    "long: train.memory=3",
    "..: train.mem_len=3",
  ],
)
def test_what_is_not_a_variant_is_one_line(text):
  with pytest.raises(errors.UserError, match=r"is not 'NAME: FIELD=VALUE"):
    study.parse(text)


def test_values_are_literals_or_words():
  variant = study.parse(
    "a-1: model.encoding=rope; train.mem_len=3 ;"
    "model.layers=('lstm', 'attention'); train.same_length=True"
  )
  assert variant == (
    "a-1",
    {
      "model.encoding": "rope",
      "train.mem_len": 3,
      "model.layers": ("lstm", "attention"),
      "train.same_length": True,
    },
  )
  assert {*variant.changes} <= {*schema.FIELDS}


@pytest.mark.parametrize(
  ("variants", "message"),
  [
    ((), "needs variants to compare"),
    (("a: ", "a: train.mem_len=4"), "have one name"),
    (("a: train.mem_len=-4",), "train.mem_len must be 0 or more"),
    (("a: train.mem_len=x",), "train.mem_len must be a int"),
    (("a: eval.cache.size=-1",), "eval.cache.size must be 0 or more"),
    (("a: seed=1",), "set --config.analysis.seeds"),
  ],
)
def test_a_study_that_cannot_be_is_one_line(
  data_dir, tmp_path, variants, message
):
  config = corpus.config(data_dir, **{"analysis.variants": variants})
  with pytest.raises(errors.UserError, match=message):
    study.run(config, str(tmp_path))
