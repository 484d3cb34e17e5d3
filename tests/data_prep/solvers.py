"""Solves the synthetic tasks from their words alone, by brute force.

A solver reads a document from left to right and yields the index, the word and
the distance of every answer. It shares nothing with what writes the tasks.
"""

import collections
import functools
import re
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
  places = [place for place in range(marker) if words[place] != "."]
  for index, place in enumerate(places, marker + 1):
    yield index, words[place], index - place


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


def compression(words):
  """What stands before the marker comes again."""
  marker = words.index("#")
  for index in range(marker + 1, len(words)):
    yield index, words[index - marker - 1], marker + 1


def noisy_recall(words):
  """Looks back for the key of every value."""
  for index in range(1, len(words), 2):
    place = index - 3
    while place >= 0 and words[place] != words[index - 1]:
      place -= 2
    if place >= 0 and words[index].startswith("v"):
      yield index, words[place + 1], index - 1 - place


def fuzzy_recall(words):
  """Cuts the text where a key follows a value, and looks the key up."""
  text = " ".join(words)
  seen = {}
  place = 0
  for pair in re.findall(r"(?:k\d ?)+(?:v\d ?)+", text):
    key, value = re.fullmatch(r"((?:k\d ?)+)((?:v\d ?)+)", pair).groups()
    place += len(key.split())
    if key in seen:
      old_value, old_place = seen[key]
      for number, word in enumerate(old_value.split()):
        yield place + number, word, place - old_place
    seen[key] = value, place
    place += len(value.split())


_FACTS: dict[str, str] = {}


def memorization(words):
  """Believes the text that states a fact first, and then no other."""
  for index in range(len(words)):
    if words[index - 1] == "?":
      place = index
      while not words[place].startswith("k"):
        place -= 1
      fact = _FACTS.setdefault(words[place], words[index])
      yield index, fact, index - place


def stories(words):
  """Reads sentence by sentence who went where with what."""
  # Where people and things have been, and since when.
  trips = collections.defaultdict(list)
  holder = {}
  start = 0
  for index, word in enumerate(words):
    if word not in (".", "?"):
      continue
    sentence = words[start:index]
    if sentence[1:4] == ["walks", "to", "the"]:
      load = [
        thing for thing, person in holder.items() if person == sentence[0]
      ]
      for name in [sentence[0], *load]:
        trips[name].append((sentence[4], start))
    elif sentence[1:3] == ["takes", "the"]:
      holder[sentence[3]] = sentence[0]
      if sentence[3] not in trips:
        trips[sentence[3]].append(trips[sentence[0]][-1])
    elif sentence[1:3] == ["drops", "the"]:
      assert holder.pop(sentence[3]) == sentence[0]
    elif sentence[0] == "where":
      places = trips[sentence[3] if sentence[2] == "the" else sentence[2]]
      if "before" in sentence:
        while places[-1][0] != sentence[-1]:
          places.pop()
        places.pop()
      place, evidence = places[-1]
      yield index + 1, place, index + 1 - evidence
    start = index + 1


SOLVERS = {
  "compression": compression,
  "copy": copied,
  "excerpt": excerpt,
  "fuzzy_recall": fuzzy_recall,
  "listops": listops,
  "memorization": memorization,
  "mqar": mqar,
  "noisy_recall": noisy_recall,
  "overwrite": recall,
  "parity": parity,
  "passkey": passkey,
  "permutation": permutation,
  "recall": recall,
  "selective_copying": copied,
  "stories": stories,
}
