"""Stories of who is where with what, in the manner of bAbI 1 to 3.

    ada walks to the mill . it rains . ada takes the lamp . ada walks to the
    barn . far away a bell rings . where is the lamp ? barn

People walk to places, take things with them, and drop them; sentences that
mean nothing stand between. A document ends with one question. It asks, as the
first three tasks of Weston et al. 2015 do, where a person is (one fact), where
a thing is (it goes where its carrier goes: two facts) or where a thing was
before it came to a place (three facts). `--kinds=1` asks the first alone,
`--kinds=2` the first two. The distance is that from the answer to the start of
the sentence in which the person, or who carried the thing, walked to the place
that is asked for.
"""

import itertools
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np

from transformer_xl.config import registry
from transformer_xl.data_prep.synthetic import task

PEOPLE = ("ada", "bo", "ines", "karim")
PLACES = (
  *("attic", "barn", "cellar", "harbour"),
  *("library", "market", "mill", "tower"),
)
THINGS = ("coin", "key", "lamp", "map", "rope")
# Sentences that change nothing, by their number of words.
FILLERS = {
  3: ("it rains .", "snow falls .", "time passes .", "nobody speaks ."),
  4: (
    "the wind turns .",
    "a dog barks .",
    "the sun sets .",
    "leaves turn red .",
  ),
  5: (
    "clouds hide the moon .",
    "an owl calls twice .",
    "the days grow short .",
  ),
  6: ("far away a bell rings .", "the old clock strikes four ."),
}
_WALK = "{} walks to the {} ."
_LONGEST_EVENT = 6
_LONGEST_QUESTION = 9  # With its answer.
_SHORTEST = _LONGEST_EVENT + _LONGEST_QUESTION


class Visit(NamedTuple):
  """A place, and the number of the event that brought someone there."""

  place: str
  event: int


class World:
  """Who and what is where, and where things were.

  Attributes:
    events: sentences, in their order.
    people: where each person is who has walked anywhere.
    carried: who carries what.
    things: the places of each thing that anybody took, oldest first.
  """

  def __init__(self, generator: np.random.Generator):
    self.events: list[str] = []
    self.people: dict[str, Visit] = {}
    self.carried: dict[str, str] = {}
    self.things: dict[str, list[Visit]] = {}
    self._generator = generator

  def _one_of(self, names: list[str]) -> str:
    return names[self._generator.integers(len(names))]

  def walk(self) -> None:
    """Somebody walks to another place, with all that they carry."""
    person = self._one_of([*PEOPLE])
    before = self.people.get(person)
    place = self._one_of([p for p in PLACES if not before or p != before.place])
    visit = Visit(place, len(self.events))
    self.events.append(_WALK.format(person, place))
    self.people[person] = visit
    for thing, carrier in self.carried.items():
      if carrier == person:
        self.things[thing].append(visit)

  def take(self) -> None:
    """Somebody takes a thing that is where they are, if there is one."""
    person = self._one_of([*self.people])
    visit = self.people[person]
    here = [
      thing
      for thing in THINGS
      if thing not in self.carried
      and (
        thing not in self.things or self.things[thing][-1].place == visit.place
      )
    ]
    if here:
      thing = self._one_of(here)
      self.events.append(f"{person} takes the {thing} .")
      self.carried[thing] = person
      self.things.setdefault(thing, [visit])

  def drop(self) -> None:
    """Somebody drops a thing, if anybody has one."""
    if self.carried:
      thing = self._one_of([*self.carried])
      self.events.append(f"{self.carried.pop(thing)} drops the {thing} .")

  def questions(self, kind: int) -> dict[str, Visit]:
    """All questions of a kind that have an answer, and the answers.

    Args:
      kind: 1 for where a person is, 2 for where a thing is, 3 for where a thing
        was before it came to a place.
    """
    if kind == 1:
      return {f"where is {name} ?": at for name, at in self.people.items()}
    if kind == 2:
      return {
        f"where is the {thing} ?": visits[-1]
        for thing, visits in self.things.items()
      }
    # Where a thing came to a place more than once, the last time counts.
    return {
      f"where was the {thing} before the {new.place} ?": old
      for thing, visits in self.things.items()
      for old, new in itertools.pairwise(visits)
    }


def write(
  num_tokens: int,
  generator: np.random.Generator,
  *,
  num_facts: int,
  kinds: int,
  max_distance: int,
) -> list[task.Document]:
  """Stories of up to `max_distance` words before the answer.

  Their length has a uniform logarithm. Each has as many facts as fit, up to
  `num_facts`; other sentences fill the rest, most of them behind the facts.
  """

  def document() -> task.Document:
    length = task.log_uniform(generator, _SHORTEST, max_distance)
    room = (length - _LONGEST_QUESTION) // _LONGEST_EVENT
    most = min(num_facts, room)
    kind = int(generator.integers(1, min(kinds, most) + 1))
    questions: dict[str, Visit] = {}
    while not questions:  # Until a story has what is asked for.
      world = World(generator)
      world.walk()
      for _ in range(most - 1):
        act = (world.walk, world.walk, world.take, world.take, world.drop)
        act[generator.integers(len(act))]()
      questions = world.questions(kind)
    question = [*questions][generator.integers(len(questions))]
    visit = questions[question]

    rest = length - sum(len(text.split()) for text in [*world.events, question])
    sentences: list[list[str]] = [[] for _ in world.events]  # Behind each.
    while rest >= min(FILLERS):
      size = int(generator.integers(min(FILLERS), min(rest, max(FILLERS)) + 1))
      filler = FILLERS[size][generator.integers(len(FILLERS[size]))]
      is_behind = generator.random() < 0.75
      slot = -1 if is_behind else int(generator.integers(len(sentences)))
      sentences[slot].append(filler)
      rest -= size

    words: list[str] = []
    starts = []
    for event, fillers in zip(world.events, sentences, strict=True):
      starts.append(len(words))
      words += " ".join([event, *fillers]).split()
    words += question.split()
    distance = len(words) - starts[visit.event]
    answer = (len(words), distance)
    return task.Document([*words, visit.place], [answer])

  return task.fill(num_tokens, document)


@registry.tasks.register("stories")
class Stories(task.Task):
  """Asks where somebody or something is or was."""

  options: ClassVar[Mapping[str, task.Option]] = {
    "num_facts": task.Option(8, 1, 10**4, "most facts of a story"),
    "kinds": task.Option(
      3, 1, 3, "1: where people are, 2: also things, 3: also things before"
    ),
    "max_distance": task.Option(
      96, _SHORTEST, 10**8, "longest distance from a fact to the answer"
    ),
  }
  write = staticmethod(write)
  suite_updates = 1000
