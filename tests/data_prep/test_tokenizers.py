"""Models of the tokenizers library that users give: none loses characters."""

import json
import random
import time

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import normalizers
from tokenizers import pre_tokenizers
from tokenizers import trainers

from tests.data_prep import layouts
from transformer_xl import errors
from transformer_xl.data import vocabulary as vocabulary_lib
from transformer_xl.data_prep import piece
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


def learned(text, size=300):
  return json.loads(vocabulary_file.train_subwords(iter([text]), size))


def test_subwords_of_usual_words_are_those_of_the_library():
  text = "low lower lowest \u00fc 12 ++ na\u00efve\n" * 99 + "x" * 255
  model = tokenizers.Tokenizer(models.BPE())
  model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=300,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  model.train_from_iterator([text], trainer)
  model.decoder = decoders.ByteLevel()
  assert learned(text) == json.loads(model.to_str())


@pytest.mark.parametrize("symbols", ["abcdefgh", "01", "+-*/", "_", "\u732b"])
def test_subwords_are_learned_from_one_long_word_in_parts(symbols):
  """The time of a whole one grows with the square of its length."""
  word = symbols * (4096 // len(symbols))
  parts = [word[i : i + 256] for i in range(0, len(word), 256)]
  expected = vocabulary_file.train_subwords(iter(parts), 300)
  assert learned(word) == json.loads(expected)
  longest = max(map(len, learned(word)["model"]["vocab"]))
  assert longest == 256 * len(symbols[0].encode())


def test_an_error_of_the_text_ends_the_learning_of_subwords():
  def texts():
    yield "text"
    raise errors.UserError("a text is damaged")

  with pytest.raises(errors.UserError, match="a text is damaged"):
    vocabulary_file.train_subwords(texts(), 300)


def prepared(tmp_path, model, text, **options):
  """A dataset whose tokens are those of a tokenizer's file."""
  model.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "a.txt").write_text(text, "utf-8")
  return layouts.prepare(
    "text",
    tmp_path,
    tmp_path / "a.txt",
    tokenizer="subword",
    vocabulary_file=str(tmp_path / "tokenizer.json"),
    **options,
    **layouts.WHOLE,
  )


def test_dropout_of_a_file_is_off_and_a_line_says_so(tmp_path, capsys):
  text = "low lower lowest slow slower " * 20
  model = of_bytes(text, pre_tokenizers.ByteLevel.alphabet())
  folder = prepared(tmp_path, model, text, name="plain")
  expected = np.load(folder / "train.npy").tolist()
  assert "dropout" not in capsys.readouterr().err
  model.model.dropout = 0.5
  assert model.encode(text).ids != expected
  for name in ("one", "two"):
    folder = prepared(tmp_path, model, text, name=name)
    assert np.load(folder / "train.npy").tolist() == expected
    assert "tokenizer's dropout of 0.5 is off" in capsys.readouterr().err
    # Wherever it is used later.
    later = vocabulary_lib.load(str(folder))
    assert later.encode(text).tolist() == expected


def test_a_tokenizer_that_deletes_all_text_is_refused(tmp_path):
  model = of_bytes("a b", pre_tokenizers.ByteLevel.alphabet())
  model.normalizer = normalizers.Replace(tokenizers.Regex(r"[\s\S]+"), "")
  with pytest.raises(errors.UserError, match="it deletes all text") as caught:
    read(tmp_path, model)
  assert "\n" not in str(caught.value)


def test_text_that_does_not_come_back_is_counted(tmp_path, capsys):
  model = of_bytes("a b", pre_tokenizers.ByteLevel.alphabet())
  prepared(tmp_path, model, "Caf\u00e9 Z\nplain\n", name="exact")
  assert "comes back" not in capsys.readouterr().err
  model.normalizer = normalizers.Sequence(
    [normalizers.NFD(), normalizers.StripAccents()]
  )
  prepared(tmp_path, model, "plain\nCaf\u00e9 Z\n\nplain\n", name="changed")
  assert (
    "1 of the first 3 lines of train are not what their tokens stand for, as"
    " 'Caf\u00e9 Z', which comes back as 'Cafe Z'"
  ) in capsys.readouterr().err


def test_special_tokens_that_stand_in_a_text_are_counted(tmp_path, capsys):
  model = of_bytes("a b", pre_tokenizers.ByteLevel.alphabet())
  model.add_special_tokens(["<|endoftext|>", "<pad>"])
  folder = prepared(tmp_path, model, "a <|endoftext|>b<|endoftext|>\n" * 3)
  assert "train: the text has <|endoftext|> 6 times" in capsys.readouterr().err
  entry = layouts.meta(folder)["splits"]["train"]
  assert entry["special_tokens"] == {"<|endoftext|>": 6}
  folder = prepared(tmp_path, model, "a <|endoftext>\n" * 3, name="none")
  assert "endoftext" not in capsys.readouterr().err
  assert "special_tokens" not in layouts.meta(folder)["splits"]["train"]


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


def test_learning_says_how_long_it_takes(monkeypatch, capsys):
  monkeypatch.setattr(piece, "_SECONDS_BEFORE_PROGRESS", 0.0)
  learned("some text of words\n" * 99)
  assert "learning 300 subwords: 00:0" in capsys.readouterr().err


def test_text_without_spaces_is_learned_in_a_time_that_grows_with_it():
  """As one word, ten times as much would take a hundred times as long."""
  letters = random.Random(0).choices(range(0x4E00, 0x4E00 + 400), k=200_000)
  text = "".join(map(chr, letters))
  seconds = {}
  for length in (20_000, 200_000):
    start = time.process_time()
    learned(text[:length], size=600)
    seconds[length] = time.process_time() - start
  assert seconds[200_000] < 40 * max(seconds[20_000], 0.05)
