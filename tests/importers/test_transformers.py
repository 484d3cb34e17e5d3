"""What is exported for transformers computes what this package computes."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import transformer_xl
from tests import corpus
from tests.importers import in_pytorch
from transformer_xl.importers import export_run
from transformer_xl.training import loop

torch, transformers = in_pytorch.torch, in_pytorch.transformers


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_log_probabilities_are_equal(exported, name):
  ours = transformer_xl.load(exported(name))
  model = in_pytorch.loaded(exported(name))
  for copies in (1, 12):  # The second is many segments long.
    found = in_pytorch.difference(
      model, ours, in_pytorch.text_for(ours, copies)
    )
    print(f"{name}, {copies} copies: {found:.1e}")
    assert found < in_pytorch.TOLERANCE


def test_a_trained_model_is_equal(tmp_path):
  values = {
    "train.num_steps": 60,
    "train.learning_rate": 0.01,
  } | in_pytorch.LENGTHS
  data_dir = corpus.write(tmp_path / "data")
  config = corpus.config(str(data_dir), **values)
  loop.train(config, str(tmp_path / "run"))
  export_run.export(str(tmp_path / "run"), str(tmp_path / "exported"))
  ours = transformer_xl.load(tmp_path / "exported")
  model = in_pytorch.loaded(tmp_path / "exported")
  for copies in (1, 12):
    found = in_pytorch.difference(
      model, ours, in_pytorch.text_for(ours, copies)
    )
    print(f"trained, {copies} copies: {found:.1e}")
    assert found < in_pytorch.TOLERANCE


@pytest.mark.parametrize(
  ("name", "change"),
  [
    ("defaults", {"mem_len": 6}),
    ("defaults", {"segment_len": 4}),
    ("pre-norm, clamp, zeros", {"clamp_len": 2}),
    ("narrower clusters, window of PyTorch", {"same_length": False}),
  ],
)
def test_a_wrong_rule_would_be_seen(exported, name, change):
  folder = exported(name)
  ours = transformer_xl.load(folder)
  found = in_pytorch.difference(
    in_pytorch.loaded(folder, **change), ours, in_pytorch.text_for(ours, 12)
  )
  assert found > 100 * in_pytorch.TOLERANCE


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_generate_continues_as_ours_does(exported, name):
  ours = transformer_xl.load(exported(name))
  model = in_pytorch.loaded(exported(name))
  text = in_pytorch.text_for(ours, 3)
  ids = torch.tensor(ours.vocabulary.encode(text).tolist())[None]
  found = model.generate(ids, max_new_tokens=12, do_sample=False)
  expected = ours.generate(text, num_tokens=12, temperature=0.0).tokens
  assert found[0, ids.shape[1] :].tolist() == expected.tolist()


@torch.no_grad()
def test_memory_continues_a_text(exported):
  """Cut anywhere, if the window makes segments indifferent."""
  model = in_pytorch.loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(40)[None] % 11
  whole = model(ids).logits
  first = model(ids[:, :13])
  assert first.mems.num_read == 13
  assert first.mems.layers[0][0].shape[1] == 7
  second = model(ids[:, 13:], mems=first.mems).logits
  torch.testing.assert_close(
    torch.cat([first.logits, second], 1),
    whole,
    atol=in_pytorch.TOLERANCE,
    rtol=0,
  )


def test_beams_have_their_own_memories(exported):
  model = in_pytorch.loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(20)[None] % 11
  options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
  found = model.generate(ids, **options)
  # The window makes both equal: without memory the text is read again.
  assert (
    found.tolist() == model.generate(ids, use_cache=False, **options).tolist()
  )


@pytest.mark.parametrize(
  "name",
  [
    "defaults",
    "narrower clusters, window of PyTorch",
    in_pytorch.ROTATING,
    in_pytorch.SLOPING,
  ],
)
@pytest.mark.parametrize("negative", [[[5, 3, 2, 4, 1]], None])
@torch.no_grad()
def test_guidance_has_a_memory_of_the_other_text(exported, name, negative):
  fields = {} if "window" in name else in_pytorch.LONG
  model = in_pytorch.loaded(exported(name), **fields)
  text = torch.arange(17)[None] % 7
  other = text[:, -1:] if negative is None else torch.tensor(negative)
  found = model.generate(
    text,
    guidance_scale=2.0,
    negative_prompt_ids=None if negative is None else other,
    max_new_tokens=8,
    do_sample=False,
    output_scores=True,
    return_dict_in_generate=True,
  )
  for step in found.scores:
    wanted = model(text, use_cache=False).logits[:, -1]
    unwanted = model(other, use_cache=False).logits[:, -1]
    expected = unwanted + 2.0 * (wanted - unwanted)
    torch.testing.assert_close(
      step, expected, atol=in_pytorch.TOLERANCE, rtol=0
    )
    token = expected.argmax(-1, keepdim=True)
    text = torch.cat([text, token], 1)
    other = torch.cat([other, token], 1)
  assert found.sequences.tolist() == text.tolist()


def test_guidance_without_memory_reads_all_again(exported):
  model = in_pytorch.loaded(exported("no memory"))
  options = {"guidance_scale": 2.0, "max_new_tokens": 4, "do_sample": False}
  ids = torch.arange(9)[None] % 7
  with pytest.raises(ValueError, match="use_cache=False"):
    model.generate(ids, **options)
  assert model.generate(ids, use_cache=False, **options).shape == (1, 13)


# The second call's tokens are fewer, as many and more than the first one's.
@pytest.mark.parametrize("cut", [25, 20, 6])
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"use_cache": False},
    {"num_beams": 3},
    {"num_beams": 3, "use_cache": False},
    {"num_return_sequences": 3, "do_sample": True},
  ],
  ids=str,
)
@torch.no_grad()
def test_generate_continues_from_a_memory(exported, cut, options):
  model = in_pytorch.loaded(exported("defaults"), **in_pytorch.LONG)
  ids = torch.stack([torch.arange(40) % 7, torch.arange(40) % 6])
  first = model(ids[:, :cut])
  results = []
  for given in ({"inputs": ids}, {"inputs": ids[:, cut:], "mems": first.mems}):
    torch.manual_seed(0)
    result = model.generate(
      **given,
      **{"do_sample": False} | options,
      max_new_tokens=8,
      output_scores=True,
      return_dict_in_generate=True,
    )
    length = given["inputs"].shape[1]
    results.append((result.sequences[:, length:], torch.stack(result.scores)))
  torch.testing.assert_close(
    results[1], results[0], atol=in_pytorch.TOLERANCE, rtol=0
  )
  assert first.mems.num_read == cut
  # Without the memory these tokens have another continuation.
  alone = model.generate(
    ids[:, cut:],
    max_new_tokens=1,
    output_scores=True,
    return_dict_in_generate=True,
  )
  rows = results[0][1][0, :: len(results[0][0]) // 2]
  if "num_beams" not in options:
    assert not torch.allclose(
      alone.scores[0], rows, atol=100 * in_pytorch.TOLERANCE
    )


@torch.no_grad()
def test_what_generate_remembers_can_be_continued(exported):
  model = in_pytorch.loaded(exported("defaults"), **in_pytorch.LONG)
  ids = torch.arange(20)[None] % 7
  options = {"do_sample": False, "return_dict_in_generate": True}
  whole = model.generate(ids, max_new_tokens=9, **options)
  part = model.generate(ids, max_new_tokens=4, **options)
  assert part.cache.num_read == 23  # Its last token was not read.
  rest = model.generate(
    part.sequences[:, 23:], mems=part.cache, max_new_tokens=5, **options
  )
  assert rest.sequences[0].tolist() == whole.sequences[0, 23:].tolist()


@pytest.mark.parametrize("columns", [slice(0, 14), slice(8, 14), None])
@torch.no_grad()
def test_memory_knows_its_padding(exported, columns):
  model = in_pytorch.loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(28).view(2, 14) % 11
  mask = torch.ones((2, 14), dtype=torch.long)
  mask[0, :6] = 0
  expected = model(ids, attention_mask=mask).logits[:, 8:]
  first = model(ids[:, :8], attention_mask=mask[:, :8])
  found = model(
    ids[:, 8:],
    mems=first.mems,
    attention_mask=None if columns is None else mask[:, columns],
  )
  torch.testing.assert_close(
    found.logits, expected, atol=in_pytorch.TOLERANCE, rtol=0
  )
  # A mask of the whole text counts in place of what is remembered.
  unknown = model(ids[:, :8], attention_mask=mask[:, :8]).mems
  every = torch.ones_like(mask)
  whole = model(ids[:, 8:], mems=unknown, attention_mask=every)
  assert not torch.allclose(
    whole.logits[0], expected[0], atol=100 * in_pytorch.TOLERANCE
  )
  options = {"max_new_tokens": 7, "do_sample": False}
  generated = model.generate(ids, attention_mask=mask, **options)[:, 14:]
  given = {} if columns is None else {"attention_mask": mask[:, columns]}
  found = model.generate(ids[:, 8:], mems=first.mems, **given, **options)
  assert found[:, 6:].tolist() == generated.tolist()


@torch.no_grad()
def test_results_have_the_form_that_was_asked_for(exported):
  model = in_pytorch.loaded(exported("defaults"))
  expected = model(in_pytorch.IDS, labels=in_pytorch.IDS)
  nothing = {"position_ids": None, "is_causal": True, "cache": None}
  assert model(in_pytorch.IDS, **nothing).logits.equal(expected.logits)
  loss, logits, mems = model(
    in_pytorch.IDS, labels=in_pytorch.IDS, return_dict=False
  )
  assert loss.equal(expected.loss)
  assert logits.equal(expected.logits)
  assert mems.num_read == 12
  # Of the 24 labels, 22 have a token before them.
  halved = model(
    in_pytorch.IDS, labels=in_pytorch.IDS, num_items_in_batch=44
  ).loss
  torch.testing.assert_close(halved, expected.loss / 2)
  some = model(in_pytorch.IDS, logits_to_keep=torch.tensor([3, 0])).logits
  torch.testing.assert_close(some, expected.logits[:, [3, 0]])
  model.config.use_cache = False
  assert model(in_pytorch.IDS).mems is None
  assert model(in_pytorch.IDS, use_cache=True).mems is not None
  model.config.return_dict = False
  assert isinstance(model(in_pytorch.IDS), tuple)
  stateless = in_pytorch.loaded(exported("defaults"), use_cache=False)
  assert stateless(in_pytorch.IDS).mems is None


@pytest.mark.parametrize(
  "name", ["defaults", "pre-norm, clamp, zeros", in_pytorch.ROTATING]
)
@torch.no_grad()
def test_states_and_weights_are_those_that_the_model_reads(exported, name):
  model = in_pytorch.loaded(exported(name))
  ids = in_pytorch.IDS[:, :11]
  found = model(ids, output_hidden_states=True, output_attentions=True)
  config = model.config
  before = config.mem_len if "zeros" in name else 0
  assert len(found.hidden_states) == config.n_layer + 1
  embedding = model.transformer.word_emb(ids)
  torch.testing.assert_close(found.hidden_states[0], embedding)
  read = model.crit(found.hidden_states[-1], model.transformer.word_emb)
  torch.testing.assert_close(read, found.logits)
  assert len(found.attentions) == config.n_layer
  for weights in found.attentions:
    assert weights.shape == (2, config.n_head, 11, before + 11)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:3]))
    assert (weights.triu(before + 1) == 0).all()
    # The last token begins the third segment of 5 and remembers 7.
    row = weights[:, :, -1]
    assert (row[..., : before + 3] == 0).all()
    assert (row[..., before + 4 :] > 0).all()
  # A token that attends to itself alone has its own values.
  if before == 0:
    assert (found.attentions[0][:, :, 0, 0] == 1).all()
  parts = model(ids[:, :5], output_hidden_states=True)
  rest = model(ids[:, 5:], mems=parts.mems, output_hidden_states=True)
  for whole, *cut in zip(
    found.hidden_states, parts.hidden_states, rest.hidden_states, strict=True
  ):
    torch.testing.assert_close(torch.cat(cut, 1), whole)
  generated = model.generate(
    ids,
    max_new_tokens=3,
    output_hidden_states=True,
    output_attentions=True,
    return_dict_in_generate=True,
  )
  assert generated.hidden_states[0][1].equal(found.hidden_states[1])
  assert generated.attentions[0][1].equal(found.attentions[1])
  model.config.output_hidden_states = True
  assert model(ids).hidden_states is not None


@pytest.mark.parametrize(
  "name", [in_pytorch.ROTATING, "pre-norm, clamp, zeros"]
)
@torch.no_grad()
def test_it_is_one_graph(exported, name):
  """Also with padding, whose checks read values."""
  model = in_pytorch.loaded(exported(name))
  compiled = torch.compile(model, fullgraph=True, backend="eager")
  mask = torch.ones_like(in_pytorch.IDS)
  mask[0, 9:] = 0
  expected = model(in_pytorch.IDS, attention_mask=mask).logits
  assert compiled(in_pytorch.IDS, attention_mask=mask).logits.equal(expected)


@torch.no_grad()
def test_padding_changes_nothing(exported):
  model = in_pytorch.loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(12)[None]
  padded = torch.cat([torch.full((1, 3), 7), ids], 1)
  mask = torch.tensor([[0] * 3 + [1] * 12])
  alone = model.generate(ids, max_new_tokens=9, do_sample=False)
  found = model.generate(
    padded, attention_mask=mask, max_new_tokens=9, do_sample=False
  )
  assert found[0, 3:].tolist() == alone[0].tolist()
  logits = model(padded, attention_mask=mask).logits
  torch.testing.assert_close(
    logits[:, 3:], model(ids).logits, atol=in_pytorch.TOLERANCE, rtol=0
  )
  assert not torch.allclose(model(padded).logits[:, 3:], logits[:, 3:])


@torch.no_grad()
def test_a_model_that_starts_with_zeros_reads_padding_on_the_right(exported):
  """Texts of different lengths are scored together, and generated alone."""
  model = in_pytorch.loaded(exported("nothing tied"))
  tokenizer = in_pytorch.tokenizer_of(exported("nothing tied"))
  texts = ["abc", "ab cab a"]
  batch = tokenizer(texts, padding=True, return_tensors="pt")
  assert batch["attention_mask"].tolist() == [[1] * 3 + [0] * 5, [1] * 8]
  logits = model(**batch).logits
  for text, row in zip(texts, logits, strict=True):
    alone = model(**tokenizer(text, return_tensors="pt")).logits[0]
    torch.testing.assert_close(
      row[: len(text)], alone, atol=in_pytorch.TOLERANCE, rtol=0
    )
  message = "cannot generate from texts of different lengths together"
  with pytest.raises(ValueError, match=message):
    model.generate(**batch, max_new_tokens=2)
  left = tokenizer(
    texts, padding=True, padding_side="left", return_tensors="pt"
  )
  with pytest.raises(ValueError, match=message):
    model(**left)


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_training_reads_the_same_memory(exported, name):
  """There it holds what layers take in, so that W_k and W_v learn from it."""
  model = in_pytorch.loaded(exported(name))
  ids = torch.arange(40)[None] % 8
  with torch.no_grad():
    expected = model(ids, labels=ids)
  for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  model.train()
  found = model(ids, labels=ids)
  torch.testing.assert_close(
    found.logits, expected.logits, atol=in_pytorch.TOLERANCE, rtol=0
  )
  picked = expected.logits[0, :-1].gather(-1, ids[0, 1:, None])
  torch.testing.assert_close(found.loss, -picked.mean(), atol=1e-5, rtol=0)
  found.loss.backward()
  assert all(p.grad is not None for p in model.parameters())
  if expected.mems is not None:
    with pytest.raises(ValueError, match="read again after"):
      model(ids, mems=expected.mems)


def test_the_trainer_counts_every_token_once(exported, tmp_path):
  """An update over two batches has the loss of one batch of all texts."""
  texts = [{"input_ids": torch.arange(9) * n % 8} for n in (1, 3, 5, 7)]
  for text in texts:
    text["labels"] = text["input_ids"]
  logs = []
  for batch, parts in ((4, 1), (2, 2)):
    model = in_pytorch.loaded(exported("nothing tied"))
    for module in model.modules():
      if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
    options = transformers.TrainingArguments(
      output_dir=str(tmp_path / str(batch)),
      per_device_train_batch_size=batch,
      gradient_accumulation_steps=parts,
      max_steps=1,
      logging_steps=1,
      report_to=[],
      use_cpu=True,
    )
    trainer = transformers.Trainer(
      model, options, train_dataset=texts, eval_dataset=texts
    )
    trainer.train()
    evaluated = trainer.evaluate()
    assert 0 < evaluated["eval_loss"] < 10
    logs.append(trainer.state.log_history[0])
  for name in ("loss", "grad_norm"):
    assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-4)


def test_one_token_has_no_loss(exported):
  model = in_pytorch.loaded(exported("nothing tied"))
  ids = torch.zeros((2, 1), dtype=torch.long)
  assert model(ids, labels=ids).loss.isnan()  # A mean over no token.


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_the_tokenizer_is_ours(exported, name, monkeypatch):
  monkeypatch.setattr(sys, "stdin", None)  # Nothing is asked.
  folder = exported(name)
  ours = transformer_xl.load(folder).vocabulary
  tokenizer = in_pytorch.tokenizer_of(folder)
  text = in_pytorch.text_for(transformer_xl.load(folder), 2)
  ids = tokenizer(text)["input_ids"]
  assert ids == ours.encode(text).tolist()
  assert tokenizer.decode(ids) == ours.decode(ids)
  assert len(tokenizer) == ours.size


# Of each kind of vocabulary one; the symbols of characters and of these bytes
# are by decreasing count.
@pytest.mark.parametrize(
  ("name", "end", "padding"),
  [
    ("defaults", "u", "u"),
    ("nothing tied", "u", "u"),
    ("pre-norm, clamp, zeros", "<eos>", "<unk>"),
    ("block of today", "\u0100", "\u0100"),  # How this kind writes NUL.
  ],
)
def test_ends_and_padding_are_symbols_like_others(
  exported, tmp_path, name, end, padding
):
  ours = transformer_xl.load(exported(name)).vocabulary
  saved = in_pytorch.tokenizer_of(exported(name))
  saved.save_pretrained(tmp_path)
  text = f"a{end} {end} {padding}{end} {end}"
  for tokenizer in (saved, in_pytorch.tokenizer_of(tmp_path)):
    found = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token
    assert found == (end, end, padding)
    assert len(tokenizer) == ours.size
    ids = tokenizer(text)["input_ids"]
    assert ids == ours.encode(text).tolist()
    assert tokenizer.decode(ids) == ours.decode(ids)


@pytest.mark.parametrize(
  "name", ["defaults", "block of today", "pre-norm with a final layer norm"]
)
def test_a_pipeline_takes_a_batch(exported, name):
  model = in_pytorch.loaded(exported(name), **in_pytorch.LONG)
  model.config.transformer_xl["model"]["memory_start"] = "masked"
  tokenizer = in_pytorch.tokenizer_of(exported(name))
  generate = transformers.pipeline(
    "text-generation", model=model, tokenizer=tokenizer
  )
  texts = ["a mat", "on a mat on a mat a mat"]
  options = {"max_new_tokens": 6, "do_sample": False}
  together = generate(texts, batch_size=2, **options)
  assert together == [generate(text, **options) for text in texts]


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_that_pytorch_spreads_over_files_come_back(
  exported, tmp_path, kind
):
  folder = tmp_path / "spread"
  shutil.copytree(exported(in_pytorch.ROTATING), folder)
  (folder / "model.safetensors").unlink()
  model = in_pytorch.loaded(exported(in_pytorch.ROTATING))
  if kind == "safetensors":
    model.save_pretrained(folder, max_shard_size="2KB")
  else:  # As transformers did up to version 4.
    places = {}
    for number, (name, values) in enumerate(model.state_dict().items()):
      file = f"pytorch_model-{number % 2}.bin"
      places.setdefault(file, {})[name] = values
    for file, tensors in places.items():
      torch.save(tensors, folder / file)
    index = {name: file for file, part in places.items() for name in part}
    path = folder / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": index}))
  assert len(list(folder.glob(f"*-*.{kind}"))) > 1
  ours = transformer_xl.load(folder)
  text = in_pytorch.text_for(ours, 12)
  expected = transformer_xl.load(exported(in_pytorch.ROTATING)).score([text])
  assert ours.score([text])[0].nll == expected[0].nll


def test_what_is_tuned_in_pytorch_comes_back(exported, tmp_path):
  model = in_pytorch.loaded(exported(in_pytorch.ROTATING))
  with torch.no_grad():
    for values in model.parameters():
      values.mul_(0.9)
  folder = tmp_path / "tuned"
  model.save_pretrained(folder)
  shutil.copytree(
    exported(in_pytorch.ROTATING) / "vocabulary", folder / "vocabulary"
  )
  assert {"modeling_transformer_xl.py"} < {one.name for one in folder.iterdir()}
  ours = transformer_xl.load(folder)
  text = in_pytorch.text_for(ours, 12)
  assert (
    in_pytorch.difference(in_pytorch.loaded(folder), ours, text)
    < in_pytorch.TOLERANCE
  )
  old = transformer_xl.load(exported(in_pytorch.ROTATING))
  assert in_pytorch.difference(model, old, text) > 100 * in_pytorch.TOLERANCE


def test_a_model_of_the_hub_is_loaded_by_its_name(exported, tmp_path):
  folder = exported("defaults")
  shutil.copytree(folder, tmp_path / "hub/me/tiny/main")
  done = subprocess.run(
    [
      *(sys.executable, "-m", "tests.importers.hub"),
      *(str(tmp_path / "hub"), str(tmp_path / "cache")),
    ],
    input=json.dumps(["transformers me/tiny"]),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  (result,) = json.loads(done.stdout)
  ids = in_pytorch.tokenizer_of(folder)("abc", return_tensors="pt")
  expected = in_pytorch.loaded(folder).generate(
    **ids, max_new_tokens=5, do_sample=False
  )
  assert result["tokens"] == expected[0].tolist()


def test_the_folder_needs_nothing_of_this_package(exported):
  code = pathlib.Path(exported("defaults"), "modeling_transformer_xl.py")
  names = {
    line.split()[1].partition(".")[0]
    for line in code.read_text("utf-8").splitlines()
    if line.startswith(("import ", "from "))
  }
  assert names == {
    *("dataclasses", "itertools", "math", "typing", "torch", "transformers")
  }
