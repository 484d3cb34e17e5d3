import collections
import io
import os
import pickle

import numpy as np
import pytest

from transformer_xl import errors
from transformer_xl.formats import inert_pickle


class Hostile:
  """Makes a folder when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_code_of_a_pickle_is_run(tmp_path, protocol):
  target = tmp_path / "made"
  content = pickle.dumps([Hostile(str(target))], protocol)
  (inert,) = inert_pickle.load(content, "file")
  assert not target.exists()
  assert inert.origin.endswith(".mkdir")
  pickle.loads(content)  # So the pickle works.
  assert target.exists()


def test_modules_are_not_imported():
  content = b"cno.such.module\nthing\n(S'argument'\ntR."
  inert = inert_pickle.load(content, "file")
  assert inert.origin == "no.such.module.thing"
  assert inert.arguments == (b"argument",)


def test_instances_keep_their_attributes():
  class_text = b"\x80\x02cdata_utils\nCorpus\n)\x81}U\x05vocabK\x03sb."
  corpus = inert_pickle.load(class_text, "file")
  assert inert_pickle.mapping(corpus) == {"vocab": 3}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
  "value",
  [
    {"a": 1, "b": 2},
    collections.OrderedDict(a=1, b=2),
    collections.Counter(a=1, b=2),
  ],
)
def test_dictionaries_of_all_kinds_are_mappings(value, protocol):
  content = pickle.dumps(value, protocol)
  loaded = inert_pickle.load(content, "file")
  assert inert_pickle.mapping(loaded) == {"a": 1, "b": 2}


def test_reading_stops_after_one_pickle():
  stream = io.BytesIO(pickle.dumps(1) + pickle.dumps(2))
  assert inert_pickle.load(stream, "file") == 1
  assert inert_pickle.load(stream, "file") == 2


@pytest.mark.parametrize(
  "content",
  [b"", b"\x80", b"text\n", pickle.dumps([1, "x" * 50])[:-9], b"\x80\x04R."],
)
def test_damage_is_one_line(content):
  with pytest.raises(errors.UserError, match="FILE is truncated or") as caught:
    inert_pickle.load(content, "FILE")
  assert "\n" not in str(caught.value)


def test_references_to_other_files_are_refused():
  with pytest.raises(errors.UserError):
    inert_pickle.load(b"P12\n.", "file")


def test_an_array_is_not_built():
  content = pickle.dumps(np.arange(3))
  assert isinstance(inert_pickle.load(content, "file"), inert_pickle.Inert)


def shared_tuples(count):
  """A tuple of two times a tuple of two times ..., in a few bytes."""
  return b"\x80\x02)" + b"2\x86" * count


def nested_tuples(count):
  return b"\x80\x02)" + b"\x85" * count


KEYS = {
  "of a dictionary": lambda key: b"\x80\x02}" + key[2:] + b"Ns.",
  "of many": lambda key: b"\x80\x02}(" + key[2:] + b"Nu.",
  "of an old dictionary": lambda key: b"\x80\x02(" + key[2:] + b"Nd.",
  "of a set": lambda key: b"\x80\x04\x8f(" + key[2:] + b"\x90.",
  "of a frozen set": lambda key: b"\x80\x04(" + key[2:] + b"\x91.",
}


@pytest.mark.parametrize("place", KEYS)
@pytest.mark.parametrize(
  "key", [shared_tuples(30), shared_tuples(10**5), nested_tuples(10**6)]
)
def test_keys_that_take_for_ever_are_refused(place, key):
  """The hash visits a tuple each time it is in another."""
  content = KEYS[place](key)
  with pytest.raises(errors.UserError, match="FILE is truncated or"):
    inert_pickle.load(content, "FILE")


def test_a_key_of_shared_tuples_is_no_attribute():
  """Pairs are given to a class, so the reader itself makes no keys of them."""
  pair = shared_tuples(90)[2:] + b"N\x86"
  content = b"\x80\x02ccollections\nOrderedDict\n](" + pair + b"e\x85R."
  inert = inert_pickle.load(content, "FILE")
  assert inert_pickle.mapping(inert) == {}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_ordinary_keys_are_read(protocol):
  pairs = {(str(i), (i,)): i for i in range(100)}
  value = [pairs, dict(pairs), {frozenset(pairs)}, frozenset({(1, 2)})]
  loaded = inert_pickle.load(pickle.dumps(value, protocol), "FILE")
  assert len(loaded[0]) == len(loaded[1]) == 100
