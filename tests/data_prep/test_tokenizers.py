"""Models of the tokenizers library that users give: none loses characters."""

import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from transformer_xl import errors
from transformer_xl.data_prep import tokenizer as tokenizer_lib
from transformer_xl.data_prep import vocabulary_file

SYMBOLS = {"a": 0, "b": 1, "?": 2}


def read(tmp_path, model):
  path = tmp_path / "tokenizer.json"
  model.save(str(path))
  kind = tokenizer_lib.Tokenizer(kind="subword")
  return vocabulary_file.read(str(path), kind).load()


def of_bytes(text, alphabet=()):
  model = tokenizers.Tokenizer(models.BPE())
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  model.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=[*alphabet], show_progress=False
  )
  model.train_from_iterator([text], trainer)
  return model


@pytest.mark.parametrize(
  ("model", "message"),
  [
    (models.BPE(SYMBOLS, []), "drops characters that it lacks"),
    (models.WordLevel(SYMBOLS), "cannot encode every character"),
    (models.WordPiece(SYMBOLS), "cannot encode every character"),
    (models.Unigram([("a", -1.0)]), "cannot encode every character"),
  ],
  ids=lambda value: type(value).__name__,
)
def test_without_a_token_for_the_unknown_it_is_refused(
  tmp_path, model, message
):
  with pytest.raises(errors.UserError, match=message) as refusal:
    read(tmp_path, tokenizers.Tokenizer(model))
  assert "\n" not in str(refusal.value)


def test_bytes_that_the_training_text_lacked_are_lost(tmp_path):
  """Some of those of a rare character were there: \xa5 has one of them."""
  text = "naïve cafés cost ¥100"
  with pytest.raises(errors.UserError, match="with all 256 bytes"):
    read(tmp_path, of_bytes(text))
  everything = pre_tokenizers.ByteLevel.alphabet()
  vocabulary = read(tmp_path, of_bytes(text, everything))
  assert vocabulary.decode(vocabulary.encode("ZEBRA 7")) == "ZEBRA 7"


@pytest.mark.parametrize(
  "model",
  [
    models.BPE(SYMBOLS, [], unk_token="?"),
    models.WordLevel(SYMBOLS, unk_token="?"),
    models.WordPiece(SYMBOLS, unk_token="?"),
  ],
  ids=lambda value: type(value).__name__,
)
def test_with_one_it_is_read_whatever_is_removed_on_purpose(tmp_path, model):
  tokenizer = tokenizers.Tokenizer(model)
  tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
  vocabulary = read(tmp_path, tokenizer)
  assert vocabulary.encode("azb").tolist() == [0, 2, 1]
  tokenizer.normalizer = normalizers.Replace(tokenizers.Regex("[^a-y?]+"), "")
  assert read(tmp_path, tokenizer).encode("azb").tolist() == [0, 1]
