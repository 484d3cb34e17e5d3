"""The harness's own command on local tasks: its numbers are ours."""

import inspect
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import types

import numpy as np
import pytest

import transformer_xl
from tests import corpus
from tests import saved_runs
from tests import spaced_subwords
from tests.importers import decoders_by_hand
from transformer_xl.config import load as load_lib
from transformer_xl.evaluation import evaluate
from transformer_xl.text import decoding
from transformer_xl.text import score as score_lib

pytest.importorskip(
  "lm_eval",
  reason="the lm-evaluation-harness is not installed: make lm-eval-check",
)

TASKS = pathlib.Path(__file__).parent / "tasks"
EXAMPLES = TASKS.parents[2] / "examples/lm_eval"
LENGTHS = {"mem_len": 40, "segment_len": 8}
FIELDS = {"model.cutoffs": (5, 11), "model.tie_weights": False}
# Sums in another order, in float32, of log-probabilities down to -30.
ROUNDING = {"rtol": 1e-5, "atol": 2e-5}


ALL = "choice,rolling,continued,last_word"


def run_harness(
  folder,
  out,
  *,
  tasks=ALL,
  arguments="",
  batch_size="3",
  include=TASKS,
  data=TASKS,
):
  """What the harness's command writes: its results, and samples by task."""
  given = ",".join(f"{name}={value}" for name, value in LENGTHS.items())
  command = [
    *(sys.executable, "-m", "transformer_xl.integrations.lm_eval"),
    *("--model", "transformer_xl"),
    *("--model_args", f"pretrained={folder},{given}{arguments}"),
    *("--tasks", tasks),
    *("--include_path", str(include), "--batch_size", batch_size),
    *("--output_path", str(out), "--log_samples"),
  ]
  offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": f"{out}_datasets"}
  done = subprocess.run(
    command,
    env={**os.environ, **offline},
    cwd=data,
    text=True,
    capture_output=True,
  )
  assert done.returncode == 0, done.stderr
  (path,) = out.rglob("results_*.json")
  samples = {}
  for task in out.rglob("samples_*.jsonl"):
    name = task.name.removeprefix("samples_").rpartition("_20")[0]
    lines = task.read_text("utf-8").splitlines()
    samples[name] = [json.loads(line) for line in lines]
  return json.loads(path.read_text("utf-8"))["results"], samples, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return saved_runs.write(tmp_path_factory.mktemp("run"), **FIELDS)


@pytest.fixture(scope="module")
def model(folder):
  return transformer_xl.load(folder, **LENGTHS)


@pytest.fixture(scope="module")
def harness(folder, tmp_path_factory):
  return run_harness(folder, tmp_path_factory.mktemp("harness"))


def documents(name):
  lines = (TASKS / f"{name}.jsonl").read_text("utf-8").splitlines()
  return [json.loads(line) for line in lines]


def scored(model, context, continuation):
  """The continuation's score, and whether it is the likeliest there."""
  entries = [context, {"text": continuation, "memory": "carry"}]
  _, found = model.score(entries, prefix="", top_k=1)
  best = [candidates[0].token for candidates in found.top]
  return -found.nll, best == found.tokens


def test_choices_have_the_scores_of_our_own(harness, model):
  results, samples, printed = harness
  right = 0
  for sample in samples["choice"]:
    document = sample["doc"]
    values = []
    for choice, found in zip(
      document["choices"], sample["filtered_resps"], strict=True
    ):
      value, is_likeliest = scored(model, document["question"], f" {choice}")
      values.append(value)
      np.testing.assert_allclose(float(found[0]), value, **ROUNDING)
      assert str(found[1]) == str(is_likeliest)
    right += int(np.argmax(values) == document["answer"])
  assert len(samples["choice"]) == len(documents("choice")) > 2
  assert max(len(one["question"]) for one in documents("choice")) > 100
  accuracy = results["choice"]["acc,none"]
  assert accuracy == pytest.approx(right / len(samples["choice"]))
  assert "|choice" in printed  # The harness's table.


def test_perplexities_are_those_of_score(harness, model):
  results, samples, _ = harness
  texts = [one["text"] for one in documents("rolling")]
  scores = model.score(texts)
  for sample, one in zip(samples["rolling"], scores, strict=True):
    np.testing.assert_allclose(
      float(sample["resps"][0][0]), -one.nll, **ROUNDING
    )
  total = sum(one.nll for one in scores)
  count = sum(len(text.encode()) for text in texts)
  assert results["rolling"]["byte_perplexity,none"] == pytest.approx(
    np.exp(total / count), rel=1e-5
  )


def test_the_perplexity_of_a_split_is_that_of_eval(
  harness, folder, model, tmp_path, monkeypatch
):
  _, samples, _ = harness
  sample = max(samples["rolling"], key=lambda one: len(one["doc"]["text"]))
  text = sample["doc"]["text"]
  # The prefix is the first token of the split, which is not scored.
  ids = model.vocabulary.encode(model.config.score.prefix + text)
  monkeypatch.setattr(corpus, "TOKENS", {"test": len(ids)})
  monkeypatch.setattr(corpus, "text", lambda *_, **__: ids)
  config = load_lib.saved(folder)
  config.data.dir = corpus.write(tmp_path)
  config.eval.update({"split": "test", "batch_size": 1, "segment_len": 8})
  config.eval.mem_len = (LENGTHS["mem_len"],)
  config = load_lib.from_config_dict(config)
  (card,) = evaluate.evaluate(evaluate.load(config, folder))
  assert card["num_tokens"] == len(text) > 5 * LENGTHS["mem_len"]
  found = float(sample["resps"][0][0])
  np.testing.assert_allclose(found, -card["nll"] * len(text), **ROUNDING)


def test_a_text_is_continued_up_to_a_stop_text(harness, model):
  _, samples, _ = harness
  num_stopped = 0
  for sample in samples["continued"]:
    prompt = sample["doc"]["prompt"]
    whole = model.generate(prompt, num_tokens=40, temperature=0.0).text
    expected = re.split("a|h\n", whole)[0]
    num_stopped += len(expected) < len(whole)
    assert sample["resps"][0][0] == expected
  assert num_stopped > 0


def test_repeated_requests_draw_other_samples(tmp_path):
  """And nothing but the task says how."""
  from lm_eval.api import instance

  from transformer_xl.integrations import lm_eval_model

  fields = {"generate.stop": "a", "generate.no_repeat_ngram": 2}
  folder = saved_runs.write(tmp_path, **FIELDS, **fields)
  asked = lm_eval_model.HarnessModel(folder, **LENGTHS)

  def requests(count, **settings):
    options = {"until": [], "max_gen_toks": 20, **settings}
    return [
      instance.Instance("generate_until", {}, ("the cat", options), number)
      for number in range(count)
    ]

  sampled = requests(4, do_sample=True, temperature=1.0)
  drawn = asked.generate_until(sampled)
  assert len({*drawn}) == 4
  assert asked.generate_until(sampled) == drawn
  assert asked.generate_until(requests(4, do_sample=True)) == drawn
  (likeliest,) = asked.generate_until(requests(1))
  plain = {"stop": "", "no_repeat_ngram": 0, "temperature": 0.0}
  expected = asked.model.generate("the cat", num_tokens=20, **plain).text
  assert likeliest == expected


def test_last_words_are_right_if_they_are_the_likeliest(harness, model):
  results, samples, _ = harness
  right = []
  for sample in samples["last_word"]:
    context, word = sample["doc"]["text"].rsplit(" ", 1)
    value, is_likeliest = scored(model, context, f" {word}")
    found = sample["filtered_resps"][0]
    np.testing.assert_allclose(float(found[0]), value, **ROUNDING)
    right.append(is_likeliest)
  assert results["last_word"]["acc,none"] == pytest.approx(np.mean(right))


def test_the_batch_does_not_matter_and_memory_does(harness, folder, tmp_path):
  samples = harness[1]
  tasks = "choice,rolling"
  _, one, _ = run_harness(folder, tmp_path / "1", tasks=tasks, batch_size="1")
  _, forgets, _ = run_harness(
    folder,
    tmp_path / "forgets",
    tasks=tasks,
    arguments=",mem_len=0",
    batch_size="auto",
  )
  values = []
  for found in (samples, one, forgets):
    rolling = [sample["resps"][0][0] for sample in found["rolling"]]
    choices = [sample["resps"][0][0][0] for sample in found["choice"]]
    values.append(np.array(rolling + choices, float))
  np.testing.assert_allclose(values[0], values[1], **ROUNDING)
  assert np.abs(values[0] - values[2]).max() > 0.01


def loglikelihoods(asked, pairs):
  from lm_eval.api import instance

  requests = [
    instance.Instance("loglikelihood", {}, pair, index)
    for index, pair in enumerate(pairs)
  ]
  return asked.loglikelihood(requests, disable_tqdm=True)


def test_an_option_that_cuts_a_subword_has_the_score_of_its_own_tokens(
  tmp_path,
):
  from transformer_xl.integrations import lm_eval_model

  folder = saved_runs.write(tmp_path, kind="subword")
  asked = lm_eval_model.HarnessModel(folder, **LENGTHS)
  pairs = [("the c", "at"), ("the c", "at on")]
  assert asked.model.score(["the cat"])[0].tokens[-1] == "cat"
  for pair, (found, is_likeliest), value in zip(
    pairs, loglikelihoods(asked, pairs), (-8.02, -22.59), strict=True
  ):
    assert found == pytest.approx(value, abs=0.01)
    expected, _ = scored(asked.model, *pair)
    np.testing.assert_allclose(found, expected, **ROUNDING)
    assert not is_likeliest


SCRIPTS = (
  "the cat sat on the mat",
  "言語モデルは次の語を予測する",
  "שפה e\u0301ta\u0301t 👩\u200d🔬",
)
KINDS = {
  "byte": ["abc de fgh", "hhgf  ed"],
  "character": ["abc de fgh", "hhgf  ed"],
  "word": [SCRIPTS[0], "the catsat on\na mat"],
  "subword": SCRIPTS,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_has_the_score_of_all_of_its_text(kind, tmp_path):
  """Wherever a text is cut, also without a context."""
  from transformer_xl.integrations import lm_eval_model

  folder = saved_runs.write(tmp_path, kind=kind)
  prefix = {"word": "<eos>", "subword": "\n"}.get(kind, "a")
  asked = lm_eval_model.HarnessModel(folder, prefix=prefix, **LENGTHS)
  model = asked.model
  pairs = [
    (text[:end], text[end:]) for text in KINDS[kind] for end in range(len(text))
  ]
  rows = []
  counts = []
  encode = model.vocabulary.encode
  for context, rest in pairs:
    kept = context.rstrip()
    rest = context[len(kept) :] + rest
    before = encode(kept or prefix)
    after = encode(kept + rest)[len(before) :] if kept else before[:0]
    # A cut inside a word makes two words, and one inside a subword two of them.
    if kind == "word" or model.vocabulary.decode(after) != rest:
      after = encode(rest)
    rows.append(np.concatenate([before, after]))
    counts.append(len(after))
  scores = score_lib.score_rows(model.trained, rows, batch_size=1, top_k=1)
  for (found, is_likeliest), row, count, one in zip(
    loglikelihoods(asked, pairs), rows, counts, scores, strict=True
  ):
    assert count > 0
    expected = -np.sum(one.nll[-count:], dtype=np.float64)
    np.testing.assert_allclose(found, expected, **ROUNDING)
    assert found < -1e-3
    best = one.top_tokens[-count:, 0]
    assert is_likeliest == np.array_equal(best, row[-count:])


def test_tokens_of_the_prefix_are_not_those_of_a_text(tmp_path):
  from transformer_xl.integrations import lm_eval_model

  folder = saved_runs.write(tmp_path)
  asked = lm_eval_model.HarnessModel(folder, prefix="aba", **LENGTHS)
  request = types.SimpleNamespace(args=("ba ab",))
  (found,) = asked.loglikelihood_rolling([request], disable_tqdm=True)
  (scored,) = asked.model.score(["ba ab"], prefix="aba")
  np.testing.assert_allclose(found, -scored.nll, **ROUNDING)


def test_an_import_is_asked_between_its_start_and_its_end(
  tmp_path, monkeypatch
):
  """Its vocabulary says which tokens these are, as for the harness's own."""
  from transformer_xl.integrations import lm_eval_model

  folder = saved_runs.write(tmp_path)
  options = {"prefix": "a", **LENGTHS}
  plain = lm_eval_model.HarnessModel(folder, **options)
  roles = {"bos_token": "a", "eos_token": "b"}
  vocabulary = type(plain.model.vocabulary)
  monkeypatch.setattr(vocabulary, "roles", roles, raising=False)
  asked = lm_eval_model.HarnessModel(folder, **options)
  pairs = [("ba", "b"), ("aba", "b"), ("", "b")]
  after_start = [("aba", "b"), ("aba", "b"), ("", "b")]
  found = loglikelihoods(asked, pairs)
  assert found == loglikelihoods(plain, after_start)
  assert found[:1] != loglikelihoods(plain, pairs[:1])

  asked_for = []

  def stream(self, prompt, state, **unused):
    asked_for.append(self.vocabulary.decode(state.newest) + prompt)
    return iter(["a", "ab", "aa"])

  monkeypatch.setattr(type(asked.model), "stream", stream)
  request = types.SimpleNamespace(args=("ba", {"until": []}))
  assert asked.generate_until([request], disable_tqdm=True) == ["aa"]
  assert asked_for == ["aba"]


def write_llama(folder, tokenizer, **roles):
  decoders_by_hand.written(folder, "llama")
  tokenizer.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(json.dumps(roles))


@pytest.mark.parametrize("kind", spaced_subwords.KINDS)
@pytest.mark.parametrize("context", ["Hello world", "<s>Hello world"])
def test_a_context_has_the_tokens_of_its_tokenizer(kind, context, tmp_path):
  """Also where that puts a space before the first word of a text alone."""
  from transformer_xl.integrations import lm_eval_model

  tokenizer = spaced_subwords.make(kind)
  write_llama(tmp_path, tokenizer, bos_token="<s>")
  asked = lm_eval_model.HarnessModel(str(tmp_path))
  adds = not context.startswith("<s>")
  text = f"{context} the"
  rows = [
    tokenizer.encode(one, add_special_tokens=adds).ids
    for one in (context, text)
  ]
  (found, _) = loglikelihoods(asked, [(context, " the")])[0]
  trained = asked.model.trained
  (expected,) = score_lib.score_rows(
    trained, [np.array(rows[1])], batch_size=1, top_k=0
  )
  value = -expected.nll[len(rows[0]) - 1 :].sum()
  np.testing.assert_allclose(found, value, **ROUNDING)

  options = {"until": [], "max_gen_toks": 6}
  request = types.SimpleNamespace(args=(context, options))
  state = decoding.empty_state(trained).extended(np.array(rows[0]))
  continued = asked.model.generate(
    "", state=state, num_tokens=6, temperature=0.0
  )
  assert asked.generate_until([request]) == [continued.text]


@pytest.mark.parametrize(
  ("roles", "prefix"),
  [
    ({"bos_token": "<s>", "eos_token": "</s>"}, "<s>"),
    ({"eos_token": "</s>"}, "</s>"),
    ({}, "\n"),
  ],
)
def test_a_start_that_no_tokenizer_writes_begins_no_context(
  roles, prefix, tmp_path
):
  """It begins texts without a context, as for the harness's own models."""
  from transformer_xl.integrations import lm_eval_model

  write_llama(tmp_path, spaced_subwords.make("legacy", starts=False), **roles)
  asked = lm_eval_model.HarnessModel(str(tmp_path))
  model = asked.model
  text = "Hello world"
  (scored,) = model.score([text], prefix=prefix)
  request = types.SimpleNamespace(args=(text,))
  found = asked.loglikelihood_rolling([request], disable_tqdm=True)
  found += [one for one, _ in loglikelihoods(asked, [("", text)])]
  np.testing.assert_allclose(found, -scored.nll, **ROUNDING)
  (context, _) = asked._encode_pair("Hello", " world")
  assert context.tolist() == model.vocabulary.encode("Hello").tolist()


@pytest.mark.parametrize(
  ("pair", "prefix", "says"),
  [
    (("the cat", ""), "the", "'' of 'the cat' has no tokens .* nothing to"),
    (("the cat ", ""), "the", "'' of 'the cat ' has no tokens"),
    (("the cat", " \t"), "the", "has no tokens in this vocabulary"),
    (("", "cat"), "", "'cat' has no context, and the prefix '' has no tokens"),
    ((" ", "cat"), " ", "set prefix to text that has some"),
  ],
)
def test_an_option_without_a_score_is_refused_in_one_line(
  tmp_path, pair, prefix, says
):
  from transformer_xl.integrations import lm_eval_model

  folder = saved_runs.write(tmp_path, kind="word")
  asked = lm_eval_model.HarnessModel(folder, prefix=prefix, **LENGTHS)
  with pytest.raises(transformer_xl.UserError, match=says) as refused:
    loglikelihoods(asked, [("the", "cat"), pair])
  assert "\n" not in str(refused.value)


def test_commands_on_the_page_are_of_the_harness(monkeypatch):
  from lm_eval import _cli as harness_cli

  from transformer_xl.integrations import lm_eval_model

  page = pathlib.Path(__file__).parents[2] / "docs/text.md"
  text = page.read_text("utf-8").replace("\\\n", " ")
  start = "python -m transformer_xl.integrations.lm_eval "
  lines = [one.strip() for one in text.splitlines()]
  commands = [one for one in lines if one.startswith(start)]
  assert commands
  known = inspect.signature(lm_eval_model.HarnessModel).parameters
  for command in commands:
    words = shlex.split(command.removeprefix(start))
    monkeypatch.setattr(sys, "argv", ["lm_eval", *words])
    given = harness_cli.HarnessCLI().parse_args()
    assert given.model == "transformer_xl"
    assert {"pretrained", "mem_len"} == set(given.model_args) <= set(known)


@pytest.mark.parametrize(
  ("values", "says"),
  [
    ({"mem_length": 3}, "HarnessModel cannot be called.*mean mem_len"),
    ({"mem_len": -1}, "mem_len must be 0 or more: it is -1"),
    ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ({"batch_size": "many"}, "batch_size must be a whole number"),
  ],
)
def test_a_wrong_argument_of_the_model_is_one_line(folder, values, says):
  from transformer_xl.integrations import lm_eval_model

  with pytest.raises(transformer_xl.UserError, match=says):
    lm_eval_model.HarnessModel(folder, **values)


def test_a_chat_template_is_refused_in_one_line(folder):
  """By what the harness asks first as well, its name."""
  from transformer_xl.integrations import lm_eval_model

  asked = lm_eval_model.HarnessModel(folder, **LENGTHS)
  said = "^there are no chat templates here.*apply_chat_template.*$"
  with pytest.raises(transformer_xl.UserError, match=said):
    asked.apply_chat_template([{"role": "user", "content": "a"}])
  with pytest.raises(transformer_xl.UserError, match=said):
    getattr(asked, "tokenizer_name", "")


PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")


def write_long_texts(folder):
  """Files of the layout of BABILong, and of what RULER prepares."""
  filler = "The sun is up. " * 20
  stories = [
    {
      "input": f"{filler}Mary went to the {place}. {filler}",
      "question": "Where is Mary? ",
      "target": place,
    }
    for place in PLACES[:3]
  ]
  needles = [
    {
      "index": index,
      "input": f"{filler}The magic number is {number}. {filler}The number is",
      "outputs": [number],
      "length": 100,
    }
    for index, number in enumerate(("4071", "88"))
  ]
  lines = [json.dumps(one) for one in needles]
  (folder / "babilong_qa1.json").write_text(json.dumps(stories), "utf-8")
  (folder / "ruler_niah.jsonl").write_text("\n".join(lines), "utf-8")
  return stories, needles


def test_the_examples_read_files_of_babilong_and_ruler(tmp_path):
  stories, needles = write_long_texts(tmp_path)
  folder = saved_runs.write(tmp_path / "run", kind="subword")
  model = transformer_xl.load(folder, **LENGTHS)
  _, samples, printed = run_harness(
    folder,
    tmp_path / "results",
    tasks="babilong_qa1,ruler_niah",
    include=EXAMPLES,
    data=tmp_path,
  )
  assert "|babilong_qa1|" in printed
  for story, sample in zip(stories, samples["babilong_qa1"], strict=True):
    prompt = f"{story['input']}\n{story['question']}\nAnswer:"
    for place, found in zip(PLACES, sample["filtered_resps"], strict=True):
      value, _ = scored(model, prompt, f" {place}")
      np.testing.assert_allclose(float(found[0]), value, **ROUNDING)
  for needle, sample in zip(needles, samples["ruler_niah"], strict=True):
    value, is_likeliest = scored(
      model, needle["input"], f" {needle['outputs'][0]}"
    )
    found = sample["filtered_resps"][0]
    np.testing.assert_allclose(float(found[0]), value, **ROUNDING)
    assert str(found[1]) == str(is_likeliest)
