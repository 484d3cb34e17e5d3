"""What modes after training need is checked before the first update.

Each mode refuses in `check`, without a checkpoint, what it refuses when it
runs, in the same words.
"""

import importlib
import json
import typing

import pytest

from tests import corpus
from tests import kinds
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl import main
from transformer_xl.config import training_fields
from transformer_xl.workdir import run_record

SHORT = {
  "analysis.contexts": (2, 8, 3),
  "analysis.num_tokens": 40,
  "analysis.speed_lens": (4,),
  "analysis.attention_lens": (8,),
}
POSITIONS = {
  "model.encoding": kinds.learned(counts_from_segment=True),
  "model.num_positions": 8,
}
NO_RUN = "nowhere has no config.json"

# A mode, settings with which it cannot run, and what it says.
CASES = [
  ("eval", POSITIONS | {"eval.segment_len": 9}, "has learned 8 positions"),
  (
    "generate",
    POSITIONS | {"generate.prompt": "abc"},
    "cannot read a segment of 128",
  ),
  ("generate", {"generate.prompt": ""}, "generate.prompt is empty"),
  ("score", {"score.file": "texts"} | POSITIONS, "a segment of 128"),
  ("score", {}, "name the texts to score"),
  ("recl", {"analysis.contexts": (2, 3, 3)}, "no context to compare with 2"),
  ("recl", {"analysis.num_tokens": 999}, "needs 1015 tokens and test has 150"),
  ("recl", {"analysis.group": ("nowhere",)}, NO_RUN),
  ("recl", {"analysis.group": ("empty",)}, "there are no checkpoints in empty"),
  ("attention", {"analysis.num_tokens": 20}, "the text has 21 tokens"),
  ("attention", {"eval.mem_len": (0,)}, "there is no memory to pay attention"),
  ("eval_speed", {"model.layers": (kinds.recurrent(),)}, "needs attention"),
  ("eval_speed", POSITIONS | {"analysis.speed_lens": (9,)}, "a segment of 9"),
  ("ablation", {"analysis.rows": ("recurrent",)}, "which is not a row"),
  (
    "ablation",
    {
      "analysis.rows": ("segment-relative-all",),
      "analysis.split": "test",
      "train.segment_len": 160,
    },
    "a window of 160 tokens is longer than the 149 pairs of test; set a",
  ),
  ("recall", {}, "test of .*tiny has none"),
  ("report", {"report.runs": ("nowhere",)}, NO_RUN),
  ("study", {}, "needs variants to compare"),
  (
    "study",
    {"analysis.variants": ("a: train.mem_len=x",)},
    "must be a whole number",
  ),
  (
    "study",
    {"analysis.variants": ("a: ", "b: train.init_from=nowhere")},
    "train.init_from=nowhere has no config.json",
  ),
  (
    "study",
    {"analysis.variants": ("a: ", "b: train.init_from=raw; seed=1")},
    "all variants share seed",
  ),
  (
    "study",
    {
      "analysis.variants": (
        "a: ",
        "b: train.init_from=raw; train.init_checkpoint='7'",
      )
    },
    "train.init_checkpoint='7' is not in raw",
  ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with data, texts and a finished run of three updates."""
  folder = tmp_path_factory.mktemp("finish_with")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    (folder / "texts").write_text("abc\n")
    runs.write(corpus.write("data"), "raw")
    run_record.record(corpus.config("data"), "empty")
    yield folder


def module_of(mode):
  chosen = main.MODES[mode]
  module = importlib.import_module(f"transformer_xl.{chosen.module}")
  return module, getattr(module, chosen.function)


@pytest.mark.some(11)
@pytest.mark.parametrize(("mode", "updates", "text"), CASES)
def test_a_mode_refuses_before_training_what_it_refuses_afterwards(
  folder, request, mode, updates, text
):
  workdir = f"run{request.node.callspec.indices['mode']}"
  config = runs.write("data", workdir, **SHORT | updates)
  module, run = module_of(mode)
  with pytest.raises(errors.UserError, match=text) as before:
    module.check(config, "new")
  with pytest.raises(errors.UserError, match=text) as afterwards:
    run(config, workdir)
  assert str(before.value) == str(afterwards.value)
  assert not (folder / "new").exists()


PROMPTS = {"generate.prompt": "abc", "score.file": "texts"}
VARIANTS = {
  "analysis.variants": ("a: ", "b: train.init_from=raw"),
  "analysis.rows": ("segment-absolute-all",),
}


@pytest.mark.parametrize(
  "mode", sorted({*training_fields.FINISHES} - {"recall"})
)
def test_a_mode_that_can_run_is_not_refused(folder, mode):
  others = {"analysis.group": ("raw",), "report.runs": ("raw",)}
  updates = SHORT | PROMPTS | VARIANTS | others
  config = corpus.config("data", **updates)
  module, _ = module_of(mode)
  module.check(config, "new")
  assert not (folder / "new").exists()


@pytest.mark.parametrize("mode", ["recl", "report"])
def test_runs_in_the_workdir_may_still_have_to_be_trained(folder, mode):
  inside = ("new/long",)
  others = {"analysis.group": inside, "report.runs": inside}
  config = corpus.config("data", **SHORT, **others)
  module, _ = module_of(mode)
  module.check(config, "new")
  with pytest.raises(errors.UserError, match=r"new/long has no config"):
    module.check(config, "other")


def test_a_trial_of_other_settings_is_found_before_training(folder):
  variants = {"analysis.variants": ("a: ",)}
  config = corpus.config("data", **variants)
  results = folder / "tried" / "a" / "results"
  results.mkdir(parents=True)
  kept = {
    "trained_with": {"train.mem_len": 5},
    "seconds": 1.0,
    "measured": [],
  }
  (results / "trial.json").write_text(json.dumps(kept))
  module, _ = module_of("study")
  with pytest.raises(errors.UserError, match=r"trained with train\.mem_len=5"):
    module.check(config, "tried")


@pytest.fixture
def ran(monkeypatch):
  """Names of the modes that were run, none of which does anything.

  Errors that modes raise are in `ran.errors`.
  """

  class Ran(list):
    errors: typing.ClassVar[dict[str, Exception]] = {}

  result = Ran()

  def run(mode, config, workdir):
    result.append(mode)
    if mode in result.errors:
      raise result.errors[mode]
    return True

  monkeypatch.setattr(main, "_run", run)
  return result


def finish(data_dir, *modes):
  config = corpus.config(data_dir, **SHORT, **PROMPTS, **VARIANTS)
  config = main.load.replaced(config, {"train.finish_with": modes})
  return main._train(config, "new")


def test_modes_after_one_that_fails_still_run(folder, ran):
  ran.errors = {
    "generate": errors.UserError("generate is impossible."),
    "score": errors.UserError("score is impossible."),
  }
  modes = ("generate", "eval", "score", "report")
  with pytest.raises(errors.UserError, match=r"generate is .* score is imp"):
    finish("data", *modes)
  assert ran == ["train", *modes]


@pytest.mark.parametrize(
  "error", [OSError(28, "No space left on device"), KeyError("mistake")]
)
def test_modes_after_an_error_of_another_kind_run_before_it_is_raised(
  folder, ran, error
):
  ran.errors = {"eval": error, "report": errors.UserError("no report.")}
  with pytest.raises(type(error)) as caught:
    finish("data", "eval", "report", "generate")
  assert caught.value is error
  assert ran == ["train", "eval", "report", "generate"]


def test_another_vocabulary_is_named_before_what_a_mode_needs(
  folder, ran, monkeypatch
):
  with monkeypatch.context() as patch:
    patch.setattr(corpus, "SYMBOLS", corpus.SYMBOLS[::-1])
    corpus.write("other")
  run_record.keep_vocabulary("other/tiny", "source")
  updates = {
    "train.init_from": "source",
    "train.finish_with": ("generate",),
    "generate.prompt": "not in the vocabulary: XYZ",
  }
  said = "the vocabulary of data/tiny is neither that of source nor"
  with pytest.raises(errors.UserError, match=said):
    main._train(corpus.config("data", **updates), "new")
  assert not ran


def test_nothing_is_trained_if_a_mode_cannot_follow(folder, ran):
  with pytest.raises(
    errors.UserError, match=r"recall in train\.finish_with could not run: "
  ):
    finish("data", "eval", "recall")
  assert not ran
