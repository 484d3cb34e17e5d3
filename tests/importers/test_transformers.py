"""What is exported for transformers computes what this package computes."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import transformer_xl
from tests import corpus
from tests import kinds
from tests import saved_runs
from transformer_xl.importers import export_run
from transformer_xl.training import loop

REASON = "needs PyTorch and transformers 5: make transformers-check"
torch = pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
transformers = pytest.importorskip(
  "transformers", minversion="5", reason=REASON, exc_type=ImportError
)

TEXT = "the cat sat on\na mat "
LENGTHS = {
  "score.segment_len": 5,
  "score.mem_len": 7,
  "generate.segment_len": 5,
  "generate.mem_len": 7,
  "model.dropout_rate": 0.1,
}
# Random models, with every option in one of them.
ROTATING, SLOPING = kinds.encoding(rotates=True), kinds.sloping()
MODELS = {
  "defaults": {"kind": "byte"},
  "pre-norm, clamp, zeros": {
    "kind": "word",
    "model.pre_norm": True,
    "model.untie_biases": True,
    "model.memory_start": "zeros",
    "eval.clamp_len": 3,
    "eval.same_length": True,
  },
  "narrower clusters, window of PyTorch": {
    "kind": "subword",
    "model.cutoffs": (50, 120),
    "model.div_val": 2,
    "model.embed_dim": 8,
    "eval.same_length": True,
    "model.same_length_window": "mem_len",
  },
  "nothing tied": {
    "kind": "character",
    "model.cutoffs": (3, 7),
    "model.tie_weights": False,
    "model.tie_projections": "none",
    "model.embed_dim": 6,
    "model.memory_start": "zeros",
  },
  "equal widths as TensorFlow has them": {
    "kind": "subword",
    "model.cutoffs": (50, 120),
    "model.div_val": 2,
    "model.project_equal_width": False,
    "model.tie_projections": "all",
  },
  ROTATING: {
    "kind": "byte",
    "model.encoding": ROTATING,
    f"model.{ROTATING}.position_scale": 0.5,
    "model.pre_norm": True,
  },
  SLOPING: {"kind": "byte", "model.encoding": SLOPING, "model.num_heads": 3},
  "block of today": {
    "kind": "subword",
    "model.encoding": ROTATING,
    "model.pre_norm": True,
    "model.norm": "rms",
    "model.final_norm": True,
    "model.feed_forward": "swiglu",
    "model.qk_norm": True,
    "model.num_heads": 4,
    "model.num_kv_heads": 2,
  },
  "block of today around relative attention": {
    "kind": "byte",
    "model.untie_biases": True,
    "model.memory_start": "zeros",
    "model.norm": "rms",
    "model.feed_forward": "geglu",
    "model.qk_norm": True,
    "model.num_heads": 6,
    "model.num_kv_heads": 3,
    "eval.clamp_len": 3,
  },
  "pre-norm with a final layer norm": {
    "kind": "word",
    "model.encoding": SLOPING,
    "model.pre_norm": True,
    "model.memory_start": "zeros",
    "model.final_norm": True,
    "model.feed_forward": "geglu",
    "model.num_kv_heads": 1,
  },
  "no memory": {
    "kind": "byte",
    "model.encoding": "none",
    "score.mem_len": 0,
    "generate.mem_len": 0,
  },
}
# The largest difference of these models is 6e-6; sums have another order.
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  """Exports a random model once: the folder of its name in MODELS."""
  folders = {}

  def make(name):
    if name not in folders:
      place = tmp_path_factory.mktemp("model")
      run = saved_runs.write(place / "run", **LENGTHS | MODELS[name])
      export_run.export(run, str(place / "exported"))
      folders[name] = place / "exported"
    return folders[name]

  return make


def loaded(folder, **fields):
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, trust_remote_code=True, **fields
  ).eval()


def tokenizer_of(folder):
  return transformers.AutoTokenizer.from_pretrained(folder)


def text_for(model, copies):
  """A text of symbols that the vocabulary has."""
  text = TEXT * copies
  if model.vocabulary.unit in ("byte", "character"):
    text = "".join(c for c in text if c in model.vocabulary.symbols)
  return text


@torch.no_grad()
def log_probs(model, ids):
  """Log-probability of each token but the first, in one call, [tokens - 1]."""
  logits = model(ids).logits
  return logits[0, :-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()


def difference(model, ours, text):
  """The largest between log-probabilities here and there."""
  ids = torch.tensor(ours.vocabulary.encode(text).tolist())[None]
  (score,) = ours.score([text], prefix="")
  expected = np.array(score.log_probs[1:])
  assert len(expected) == ids.shape[1] - 1
  return np.abs(log_probs(model, ids) - expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_equal(exported, name):
  ours = transformer_xl.load(exported(name))
  model = loaded(exported(name))
  for copies in (1, 12):  # The second is many segments long.
    found = difference(model, ours, text_for(ours, copies))
    print(f"{name}, {copies} copies: {found:.1e}")
    assert found < TOLERANCE


def test_a_trained_model_is_equal(tmp_path):
  values = {"train.num_steps": 60, "train.learning_rate": 0.01} | LENGTHS
  data_dir = corpus.write(tmp_path / "data")
  config = corpus.config(str(data_dir), **values)
  loop.train(config, str(tmp_path / "run"))
  export_run.export(str(tmp_path / "run"), str(tmp_path / "exported"))
  ours = transformer_xl.load(tmp_path / "exported")
  model = loaded(tmp_path / "exported")
  for copies in (1, 12):
    found = difference(model, ours, text_for(ours, copies))
    print(f"trained, {copies} copies: {found:.1e}")
    assert found < TOLERANCE


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
  found = difference(loaded(folder, **change), ours, text_for(ours, 12))
  assert found > 100 * TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_generate_continues_as_ours_does(exported, name):
  ours = transformer_xl.load(exported(name))
  model = loaded(exported(name))
  text = text_for(ours, 3)
  ids = torch.tensor(ours.vocabulary.encode(text).tolist())[None]
  found = model.generate(ids, max_new_tokens=12, do_sample=False)
  expected = ours.generate(text, num_tokens=12, temperature=0.0).tokens
  assert found[0, ids.shape[1] :].tolist() == expected.tolist()


@torch.no_grad()
def test_memory_continues_a_text(exported):
  """Cut anywhere, if the window makes segments indifferent."""
  model = loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(40)[None] % 11
  whole = model(ids).logits
  first = model(ids[:, :13])
  assert first.mems.num_read == 13
  assert first.mems.layers[0][0].shape[1] == 7
  second = model(ids[:, 13:], mems=first.mems).logits
  torch.testing.assert_close(
    torch.cat([first.logits, second], 1), whole, atol=TOLERANCE, rtol=0
  )


def test_beams_have_their_own_memories(exported):
  model = loaded(exported("narrower clusters, window of PyTorch"))
  ids = torch.arange(20)[None] % 11
  options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
  found = model.generate(ids, **options)
  # The window makes both equal: without memory the text is read again.
  assert (
    found.tolist() == model.generate(ids, use_cache=False, **options).tolist()
  )


# Memories that reach the start of a text are indifferent to segments, and so
# reading a text again is right for them.
LONG = {"mem_len": 64}


@pytest.mark.parametrize(
  "name",
  ["defaults", "narrower clusters, window of PyTorch", ROTATING, SLOPING],
)
@pytest.mark.parametrize("negative", [[[5, 3, 2, 4, 1]], None])
@torch.no_grad()
def test_guidance_has_a_memory_of_the_other_text(exported, name, negative):
  fields = {} if "window" in name else LONG
  model = loaded(exported(name), **fields)
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
    torch.testing.assert_close(step, expected, atol=TOLERANCE, rtol=0)
    token = expected.argmax(-1, keepdim=True)
    text = torch.cat([text, token], 1)
    other = torch.cat([other, token], 1)
  assert found.sequences.tolist() == text.tolist()


def test_guidance_without_memory_reads_all_again(exported):
  model = loaded(exported("no memory"))
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
  model = loaded(exported("defaults"), **LONG)
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
  torch.testing.assert_close(results[1], results[0], atol=TOLERANCE, rtol=0)
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
    assert not torch.allclose(alone.scores[0], rows, atol=100 * TOLERANCE)


@torch.no_grad()
def test_what_generate_remembers_can_be_continued(exported):
  model = loaded(exported("defaults"), **LONG)
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
  model = loaded(exported("narrower clusters, window of PyTorch"))
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
  torch.testing.assert_close(found.logits, expected, atol=TOLERANCE, rtol=0)
  # A mask of the whole text counts in place of what is remembered.
  unknown = model(ids[:, :8], attention_mask=mask[:, :8]).mems
  every = torch.ones_like(mask)
  whole = model(ids[:, 8:], mems=unknown, attention_mask=every)
  assert not torch.allclose(whole.logits[0], expected[0], atol=100 * TOLERANCE)
  options = {"max_new_tokens": 7, "do_sample": False}
  generated = model.generate(ids, attention_mask=mask, **options)[:, 14:]
  given = {} if columns is None else {"attention_mask": mask[:, columns]}
  found = model.generate(ids[:, 8:], mems=first.mems, **given, **options)
  assert found[:, 6:].tolist() == generated.tolist()


IDS = torch.arange(24).view(2, 12) % 7


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"past_key_values": transformers.DynamicCache()}, "past_key_values.*mems"),
    ({"cache": transformers.DynamicCache()}, "cache.*mems"),
    ({"mems": [torch.zeros(2, 7, 16)]}, "mems is a list"),
    ({"position_ids": torch.zeros_like(IDS)}, "position_ids.*attention_mask"),
    ({"cache_position": torch.arange(12)}, "cache_position"),
    ({"inputs_embeds": torch.zeros(2, 12, 16)}, "inputs_embeds.*input_ids"),
    ({"token_type_ids": torch.zeros_like(IDS)}, "token_type_ids"),
    ({"is_causal": False}, "is_causal"),
    ({"cu_seq_lens_q": torch.tensor([0, 4, 12])}, "cu_seq_lens_q.*row"),
    ({"seq_idx": torch.zeros_like(IDS)}, "seq_idx.*row"),
    ({"labels": IDS, "shift_labels": IDS}, "shift_labels.*labels"),
    ({"labels": IDS[:, 1:]}, "labels have the shape"),
    ({"labels": IDS, "logits_to_keep": torch.tensor([3])}, "logits_to_keep"),
    ({"atention_mask": torch.ones_like(IDS)}, "atention_mask"),
    ({"use_cach": False}, "use_cach"),
    ({"attention_mask": torch.ones(2, 1, 12, 12)}, "attention_mask.*shape"),
    ({"attention_mask": torch.ones(2, 13)}, r"give \(2, 12\)"),
    ({"attention_mask": torch.ones(1, 12)}, r"give \(2, 12\)"),
    ({"attention_mask": torch.full((2, 12), -1e9)}, "0, for padding, and 1"),
    ({"attention_mask": torch.ones_like(IDS).cumsum(0)}, "row of its own"),
    ({"input_ids": None}, "input_ids are missing"),
  ],
)
def test_what_would_be_ignored_is_refused(exported, arguments, message):
  model = loaded(exported("defaults"))
  with pytest.raises(ValueError, match=message):
    model(**{"input_ids": IDS} | arguments)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"cache": transformers.DynamicCache()}, "cache.*mems"),
    ({"position_ids": torch.zeros_like(IDS)}, "position_ids.*attention_mask"),
    ({"token_type_ids": torch.zeros_like(IDS)}, "token_type_ids"),
    ({"is_causal": False}, "is_causal"),
    ({"mems": "x"}, "mems is a str"),
    ({"atention_mask": torch.ones_like(IDS)}, "atention_mask"),
  ],
)
def test_generate_refuses_them_also(exported, arguments, message):
  model = loaded(exported("defaults"))
  with pytest.raises(ValueError, match=message):
    model.generate(IDS, max_new_tokens=3, **arguments)


def test_generate_takes_back_nothing(exported):
  model = loaded(exported("defaults"))
  for options in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": model}):
    with pytest.raises(ValueError, match="stateful"):
      model.generate(IDS[:1], max_new_tokens=3, **options)


@torch.no_grad()
def test_memories_are_for_as_many_texts(exported):
  model = loaded(exported("defaults"))
  mems = model(IDS).mems
  with pytest.raises(ValueError, match="mems have 2 texts, and input_ids 1"):
    model(IDS[:1], mems=mems)
  with pytest.raises(ValueError, match="cache is another name of mems"):
    model(IDS, mems=mems, cache=mems)
  expected = model(IDS, mems=mems).logits
  for name in ("cache", "past_key_values"):
    assert model(IDS, **{name: mems}).logits.equal(expected)


@torch.no_grad()
def test_results_have_the_form_that_was_asked_for(exported):
  model = loaded(exported("defaults"))
  expected = model(IDS, labels=IDS)
  nothing = {"position_ids": None, "is_causal": True, "cache": None}
  assert model(IDS, **nothing).logits.equal(expected.logits)
  loss, logits, mems = model(IDS, labels=IDS, return_dict=False)
  assert loss.equal(expected.loss)
  assert logits.equal(expected.logits)
  assert mems.num_read == 12
  # Of the 24 labels, 22 have a token before them.
  halved = model(IDS, labels=IDS, num_items_in_batch=44).loss
  torch.testing.assert_close(halved, expected.loss / 2)
  some = model(IDS, logits_to_keep=torch.tensor([3, 0])).logits
  torch.testing.assert_close(some, expected.logits[:, [3, 0]])
  model.config.use_cache = False
  assert model(IDS).mems is None
  assert model(IDS, use_cache=True).mems is not None
  model.config.return_dict = False
  assert isinstance(model(IDS), tuple)
  stateless = loaded(exported("defaults"), use_cache=False)
  assert stateless(IDS).mems is None


@pytest.mark.parametrize(
  "name", ["defaults", "pre-norm, clamp, zeros", ROTATING]
)
@torch.no_grad()
def test_states_and_weights_are_those_that_the_model_reads(exported, name):
  model = loaded(exported(name))
  ids = IDS[:, :11]
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
  "name", ["defaults", "narrower clusters, window of PyTorch"]
)
def test_ids_outside_the_vocabulary_are_refused(exported, name):
  """In a table of all words, and in the tables of clusters."""
  model = loaded(exported(name))
  for outside in (-1, -100, model.config.vocab_size, 10**6):
    with pytest.raises(IndexError):
      model(torch.tensor([[0, outside]]))


def test_the_tables_keep_their_size(exported):
  model = loaded(exported("defaults"))
  size = model.config.vocab_size
  embedding = model.get_input_embeddings()
  assert model.resize_token_embeddings() is embedding
  assert model.resize_token_embeddings(size) is embedding
  with pytest.raises(ValueError, match="train one with the vocabulary"):
    model.resize_token_embeddings(size + 1)
  with pytest.raises(ValueError, match="set_input_embeddings"):
    model.set_input_embeddings(torch.nn.Embedding(size, 16))


def test_an_adapter_of_a_shared_table_is_refused(exported):
  """It stands beside the table as in PEFT, whose environment this is not."""

  class Adapted(torch.nn.Module):
    merged = False

    def __init__(self, table):
      super().__init__()
      self.base_layer = table

    @property
    def weight(self):
      return self.base_layer.weight

    def forward(self, ids):
      return self.base_layer(ids) + 1.0

  for name in ("defaults", "nothing tied"):
    model = loaded(exported(name))
    tables = model.transformer.word_emb.emb_layers
    tables[0] = Adapted(tables[0])
    if name == "nothing tied":
      model(IDS)
      continue
    with pytest.raises(ValueError, match="leave emb_layers out"):
      model(IDS)
    tables[0].merged = True
    model(IDS)


@pytest.mark.parametrize("name", [ROTATING, "pre-norm, clamp, zeros"])
@torch.no_grad()
def test_it_is_one_graph(exported, name):
  """Also with padding, whose checks read values."""
  model = loaded(exported(name))
  compiled = torch.compile(model, fullgraph=True, backend="eager")
  mask = torch.ones_like(IDS)
  mask[0, 9:] = 0
  expected = model(IDS, attention_mask=mask).logits
  assert compiled(IDS, attention_mask=mask).logits.equal(expected)


@torch.no_grad()
def test_padding_changes_nothing(exported):
  model = loaded(exported("narrower clusters, window of PyTorch"))
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
    logits[:, 3:], model(ids).logits, atol=TOLERANCE, rtol=0
  )
  assert not torch.allclose(model(padded).logits[:, 3:], logits[:, 3:])
  zeros = loaded(exported("nothing tied"))
  with pytest.raises(ValueError, match="cannot be padded on the left"):
    zeros(padded, attention_mask=mask)


@pytest.mark.parametrize("name", MODELS)
def test_training_reads_the_same_memory(exported, name):
  """There it holds what layers take in, so that W_k and W_v learn from it."""
  model = loaded(exported(name))
  ids = torch.arange(40)[None] % 8
  with torch.no_grad():
    expected = model(ids, labels=ids)
  for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  model.train()
  found = model(ids, labels=ids)
  torch.testing.assert_close(
    found.logits, expected.logits, atol=TOLERANCE, rtol=0
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
    model = loaded(exported("nothing tied"))
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
  model = loaded(exported("nothing tied"))
  ids = torch.zeros((2, 1), dtype=torch.long)
  assert model(ids, labels=ids).loss.isnan()  # A mean over no token.


@pytest.mark.parametrize("name", MODELS)
def test_the_tokenizer_is_ours(exported, name, monkeypatch):
  monkeypatch.setattr(sys, "stdin", None)  # Nothing is asked.
  folder = exported(name)
  ours = transformer_xl.load(folder).vocabulary
  tokenizer = tokenizer_of(folder)
  text = text_for(transformer_xl.load(folder), 2)
  ids = tokenizer(text)["input_ids"]
  assert ids == ours.encode(text).tolist()
  assert tokenizer.decode(ids) == ours.decode(ids)
  assert len(tokenizer) == ours.size


def test_what_is_tuned_in_pytorch_comes_back(exported, tmp_path):
  model = loaded(exported(ROTATING))
  with torch.no_grad():
    for values in model.parameters():
      values.mul_(0.9)
  folder = tmp_path / "tuned"
  model.save_pretrained(folder)
  shutil.copytree(exported(ROTATING) / "vocabulary", folder / "vocabulary")
  assert {"modeling_transformer_xl.py"} < {one.name for one in folder.iterdir()}
  ours = transformer_xl.load(folder)
  text = text_for(ours, 12)
  assert difference(loaded(folder), ours, text) < TOLERANCE
  old = transformer_xl.load(exported(ROTATING))
  assert difference(model, old, text) > 100 * TOLERANCE


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
  ids = tokenizer_of(folder)("abc", return_tensors="pt")
  expected = loaded(folder).generate(**ids, max_new_tokens=5, do_sample=False)
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
