"""What is exported for transformers computes what this package computes."""

import pytest

import transformer_xl
from tests import corpus
from tests.importers import in_pytorch
from transformer_xl.importers import export_run
from transformer_xl.training import loop

torch = in_pytorch.torch


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
