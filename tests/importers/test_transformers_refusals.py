"""What an exported model cannot do is refused in transformers, in a line."""

import pytest

from tests.importers import in_pytorch

torch, transformers = in_pytorch.torch, in_pytorch.transformers


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"past_key_values": transformers.DynamicCache()}, "past_key_values.*mems"),
    ({"cache": transformers.DynamicCache()}, "cache.*mems"),
    ({"mems": [torch.zeros(2, 7, 16)]}, "mems is a list"),
    (
      {"position_ids": torch.zeros_like(in_pytorch.IDS)},
      "position_ids.*attention_mask",
    ),
    ({"cache_position": torch.arange(12)}, "cache_position"),
    (
      {"inputs_embeds": torch.zeros(2, 12, 16)},
      "inputs_embeds.*input_ids.*LoRA",
    ),
    ({"token_type_ids": torch.zeros_like(in_pytorch.IDS)}, "token_type_ids"),
    ({"is_causal": False}, "is_causal"),
    ({"cu_seq_lens_q": torch.tensor([0, 4, 12])}, "cu_seq_lens_q.*row"),
    ({"seq_idx": torch.zeros_like(in_pytorch.IDS)}, "seq_idx.*row"),
    (
      {"labels": in_pytorch.IDS, "shift_labels": in_pytorch.IDS},
      "shift_labels.*labels",
    ),
    ({"labels": in_pytorch.IDS[:, 1:]}, "labels have the shape"),
    (
      {"labels": in_pytorch.IDS, "logits_to_keep": torch.tensor([3])},
      "logits_to_keep",
    ),
    ({"atention_mask": torch.ones_like(in_pytorch.IDS)}, "atention_mask"),
    ({"use_cach": False}, "use_cach"),
    ({"attention_mask": torch.ones(2, 1, 12, 12)}, "attention_mask.*shape"),
    ({"attention_mask": torch.ones(2, 13)}, r"give \(2, 12\)"),
    ({"attention_mask": torch.ones(1, 12)}, r"give \(2, 12\)"),
    ({"attention_mask": torch.full((2, 12), -1e9)}, "0, for padding, and 1"),
    (
      {"attention_mask": torch.ones_like(in_pytorch.IDS).cumsum(0)},
      "row of its own",
    ),
    ({"input_ids": None}, "input_ids are missing"),
  ],
)
def test_what_would_be_ignored_is_refused(exported, arguments, message):
  model = in_pytorch.loaded(exported("defaults"))
  with pytest.raises(ValueError, match=message):
    model(**{"input_ids": in_pytorch.IDS} | arguments)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"cache": transformers.DynamicCache()}, "cache.*mems"),
    (
      {"position_ids": torch.zeros_like(in_pytorch.IDS)},
      "position_ids.*attention_mask",
    ),
    ({"token_type_ids": torch.zeros_like(in_pytorch.IDS)}, "token_type_ids"),
    ({"inputs_embeds": torch.zeros(2, 12, 16)}, "inputs_embeds"),
    ({"is_causal": False}, "is_causal"),
    ({"mems": "x"}, "mems is a str"),
    ({"atention_mask": torch.ones_like(in_pytorch.IDS)}, "atention_mask"),
  ],
)
def test_generate_refuses_them_also(exported, arguments, message):
  model = in_pytorch.loaded(exported("defaults"))
  with pytest.raises(ValueError, match=message):
    model.generate(in_pytorch.IDS, max_new_tokens=3, **arguments)


def test_generate_takes_back_nothing(exported):
  model = in_pytorch.loaded(exported("defaults"))
  for options in ({"prompt_lookup_num_tokens": 2}, {"assistant_model": model}):
    with pytest.raises(ValueError, match="stateful"):
      model.generate(in_pytorch.IDS[:1], max_new_tokens=3, **options)


@torch.no_grad()
def test_memories_are_for_as_many_texts(exported):
  model = in_pytorch.loaded(exported("defaults"))
  mems = model(in_pytorch.IDS).mems
  with pytest.raises(ValueError, match="mems have 2 texts, and input_ids 1"):
    model(in_pytorch.IDS[:1], mems=mems)
  with pytest.raises(ValueError, match="cache is another name of mems"):
    model(in_pytorch.IDS, mems=mems, cache=mems)
  expected = model(in_pytorch.IDS, mems=mems).logits
  for name in ("cache", "past_key_values"):
    assert model(in_pytorch.IDS, **{name: mems}).logits.equal(expected)


@pytest.mark.parametrize(
  "name", ["defaults", "narrower clusters, window of PyTorch"]
)
def test_ids_outside_the_vocabulary_are_refused(exported, name):
  """In a table of all words, and in the tables of clusters."""
  model = in_pytorch.loaded(exported(name))
  for outside in (-1, -100, model.config.vocab_size, 10**6):
    with pytest.raises(IndexError):
      model(torch.tensor([[0, outside]]))


def test_the_tables_keep_their_size(exported):
  model = in_pytorch.loaded(exported("defaults"))
  size = model.config.vocab_size
  embedding = model.get_input_embeddings()
  assert model.resize_token_embeddings() is embedding
  assert model.resize_token_embeddings(size) is embedding
  with pytest.raises(ValueError, match="train one with the vocabulary"):
    model.resize_token_embeddings(size + 1)
  with pytest.raises(ValueError, match="set_input_embeddings"):
    model.set_input_embeddings(torch.nn.Embedding(size, 16))


def test_an_adapter_of_a_shared_table_is_refused(exported):
  """It stands beside the table as one of PEFT does."""

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
    model = in_pytorch.loaded(exported(name))
    tables = model.transformer.word_emb.emb_layers
    tables[0] = Adapted(tables[0])
    if name == "nothing tied":
      model(in_pytorch.IDS)
      continue
    with pytest.raises(ValueError, match="leave emb_layers out"):
      model(in_pytorch.IDS)
    tables[0].merged = True
    model(in_pytorch.IDS)
