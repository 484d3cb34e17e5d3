"""Solves the synthetic tasks from their words alone, by brute force.

A solver reads a document from left to right and yields the index, the word and
the distance of every answer. It shares nothing with what writes the tasks.
"""

import collections
import functools
from pydoc_data import topics


def recall(words):
  """The value of a key is that of the last pair of it."""
  for index, word in enumerate(words):
    if word.startswith("?"):
      key = word[1:]
      place = index
      while not words[place].startswith(f"{key}="):
        place -= 1
      yield index + 1, words[place][2:], index - place


def mqar(words):
  """A key that comes again is followed by what followed it before."""
  for index, word in enumerate(words):
    before = words[:index]
    if word.startswith("k") and word in before:
      place = before.index(word)
      yield index + 1, words[place + 1], index - place


def copied(words):
  """The string before the filler comes again."""
  marker = words.index(">")
  string = [word for word in words[:marker] if word != "."]
  for place, symbol in enumerate(string):
    index = marker + 1 + place
    yield index, symbol, index - place


def parity(words):
  """Adds the bits up."""
  question = words.index("?")
  ones = sum(word == "1" for word in words[:question])
  yield question + 1, ["even", "odd"][ones % 2], question


def permutation(words):
  """Swaps five items in a row."""
  question = words.index("?")
  row = "12345"
  for word in words[:question]:
    left, right = (row[int(place) - 1] for place in word.split("-"))
    row = row.translate(str.maketrans(left + right, right + left))
  for place in range(4):
    yield question + 1 + place, row[place], question


def passkey(words):
  """The only digits of a document come twice."""
  places = [index for index, word in enumerate(words) if word.isdigit()]
  half = len(places) // 2
  for place, index in zip(places[:half], places[half:], strict=True):
    yield index, words[place], index - place


def listops(words):
  """Replaces the innermost operation by its value until a digit is left."""
  equals = words.index("=")
  left = words[:equals]
  while len(left) > 1:
    end = left.index("]")
    start = max(i for i in range(end) if left[i].startswith("["))
    values = sorted(int(word) for word in left[start + 1 : end])
    middle = len(values) // 2
    value = {
      "[MAX": values[-1],
      "[MIN": values[0],
      "[MED": (values[middle] + values[-middle - 1]) // 2,
      "[SM": sum(values) % 10,
    }[left[start]]
    left = [*left[:start], str(value), *left[end + 1 :]]
  yield equals + 1, left[0], equals + 1


@functools.cache
def parts_of_the_reference():
  """The language reference in eight parts, each as one string of words."""
  names = sorted(topics.topics)
  text = " ".join(topics.topics[name].lower() for name in names)
  letters = "".join(c if "a" <= c <= "z" else " " for c in text).split()
  counts = collections.Counter(letters)
  frequent = {word for word, _ in counts.most_common(1000)}
  kept = [word if word in frequent else "." for word in letters]
  length = len(kept) // 8
  return [" ".join(kept[i * length : (i + 1) * length]) for i in range(8)]


def excerpt(words):
  """The only part of the text that has the excerpt."""
  question = words.index("?")
  passage = " ".join(words[:question])
  (part,) = [
    number
    for number, text in enumerate(parts_of_the_reference(), 1)
    if f" {passage} " in f" {text} "
  ]
  yield question + 1, f"part{part}", question + 1


SOLVERS = {
  "copy": copied,
  "excerpt": excerpt,
  "listops": listops,
  "mqar": mqar,
  "overwrite": recall,
  "parity": parity,
  "passkey": passkey,
  "permutation": permutation,
  "recall": recall,
}
