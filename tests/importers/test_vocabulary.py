import collections
import json
import pickle

import pytest

from tests.importers import stored_files
from transformer_xl import errors
from transformer_xl.data import vocabulary as data_vocabulary
from transformer_xl.formats import published_vocabulary
from transformer_xl.importers import vocabulary as importers_vocabulary

WORDS = ["<eos>", "the", "<unk>", "caf\u00e9", "\u65e5\u672c"]


def attributes(symbols, *, lower_case=False):
  """Attributes of the tokenizers of the published programs."""
  return {
    "counter": collections.Counter(symbols),
    "idx2sym": list(symbols),
    "sym2idx": collections.OrderedDict(
      (symbol, index) for index, symbol in enumerate(symbols)
    ),
    "lower_case": lower_case,
    "delimiter": None,
  }


def copy(path, folder):
  size = len(published_vocabulary.read(str(path)).symbols)
  made = importers_vocabulary.copy(str(path), str(folder), size=size)
  return made, data_vocabulary.load(str(folder / "vocabulary"))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_vocabulary_gives_its_ids(tmp_path, protocol):
  path = tmp_path / "vocab.pkl"
  path.write_bytes(pickle.dumps(attributes(WORDS), protocol))
  made, loaded = copy(path, tmp_path / "run")
  assert made["size"] == len(WORDS)
  assert loaded.encode("the caf\u00e9 unheard-of\n").tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize("use_zip", [True, False])
def test_a_vocabulary_saved_by_torch_gives_its_ids(tmp_path, use_zip):
  torch = pytest.importorskip("torch", reason="writes a file with PyTorch")
  path = tmp_path / "vocab.bin"
  torch.save(attributes(WORDS), path, _use_new_zipfile_serialization=use_zip)
  _, loaded = copy(path, tmp_path / "run")
  assert loaded.symbols == tuple(WORDS)


def test_a_list_of_words_may_have_counts(tmp_path):
  path = tmp_path / "1b_word_vocab.txt"
  path.write_text("the 20\n<S> 10\n<UNK> 3\n")
  _, loaded = copy(path, tmp_path / "run")
  assert loaded.encode("the x\n").tolist() == [0, 2, 1]


def test_a_mark_of_utf_8_is_no_part_of_the_first_symbol(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_bytes("\ufeff<eos>\n<unk>\nthe\n".encode())
  _, loaded = copy(path, tmp_path / "run")
  assert loaded.encode("the x\n").tolist() == [2, 1, 0]


def test_words_that_python_2_wrote_are_text():
  path = stored_files.tensorflow("wt103") / "cache.pkl"
  assert "caf\u00e9" in published_vocabulary.read(str(path)).symbols


def test_bytes_are_never_made_lower_case(tmp_path):
  path = tmp_path / "vocab.pkl"
  numbers = [str(ord(letter)) for letter in " aA"]
  path.write_bytes(pickle.dumps(attributes(numbers, lower_case=True)))
  made, _ = copy(path, tmp_path / "run")
  assert made["unit"] == "byte"
  meta = json.loads((tmp_path / "run/vocabulary/meta.json").read_text())
  assert meta["tokenizer"] == {"kind": "byte", "lower_case": False}


def test_lower_case_is_kept(tmp_path):
  path = tmp_path / "vocab.pkl"
  path.write_bytes(pickle.dumps(attributes(WORDS, lower_case=True)))
  _, loaded = copy(path, tmp_path / "run")
  assert loaded.encode("THE").tolist() == [1]


def test_a_prepared_folder_is_copied(tmp_path):
  path = stored_files.tensorflow("lm1b") / "cache.pkl"
  _, first = copy(path, tmp_path / "first")
  folder = tmp_path / "first" / "vocabulary"
  second = tmp_path / "second"
  second.mkdir()
  importers_vocabulary.copy(str(folder), str(second), size=first.size)
  assert data_vocabulary.load(str(second / "vocabulary")) == first
  meta = json.loads((second / "vocabulary" / "meta.json").read_text())
  assert meta["tokenizer"]["end_of_line"] == "<S>"


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"\x80\x04",
    b"\xff\xfe\n",
    b"word\n\nword\n",
    pickle.dumps([1, 2]),
    pickle.dumps({"idx2sym": [1, 2], "lower_case": False}),
    pickle.dumps({"idx2sym": [], "lower_case": False}),
    pickle.dumps({"sym2idx": {}}),
  ],
)
def test_another_kind_of_file_is_one_line(tmp_path, content):
  path = tmp_path / "vocab.pkl"
  path.write_bytes(content)
  with pytest.raises(errors.UserError, match=r"vocab\.pkl is") as caught:
    published_vocabulary.read(str(path))
  assert "\n" not in str(caught.value)


def test_a_symbol_has_one_id(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("a\nbb\na\n")
  with pytest.raises(errors.UserError, match="'a' 2 times"):
    importers_vocabulary.copy(str(path), str(tmp_path / "run"), size=3)


def test_another_size_is_refused(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("a\nbb\n")
  with pytest.raises(errors.UserError, match="has 2 symbols, but the model"):
    importers_vocabulary.copy(str(path), str(tmp_path / "run"), size=3)
