"""What runs have left in their workdirs: curves, cards, times, configuration.

Damaged lines and values that are not numbers are left out, so a run that is
still training, or was killed, can be read.
"""

import itertools
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeGuard

import jaxtyping as jt
import numpy as np

from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.workdir import goodput
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_record

# What an evaluation measures; all else on its card are settings.
_MEASURED = (
  "nll",
  "perplexity",
  "bits_per_character",
  "bits_per_byte",
  "word_perplexity",
  "unknown_share",
  "seconds",
  "tokens_per_second",
)


# Fields of a line of `metrics.jsonl` that figures show.
_DRAWN = (
  "loss",
  "nll",
  "learning_rate",
  "gradient_norm",
  "tokens_per_second",
)
# A log of more bytes, some 50,000 lines, is read in so many stretches. They are
# more than the points of a curve.
_LONG_LOG = 1 << 23
_STRETCHES = 2000
# Settings of memory: a card without memory states none of them.
_OF_MEMORY = ("same_length", "mixer_fields")


class Curve(NamedTuple):
  """Values by step, or by memory length in tokens."""

  x: jt.Int[np.ndarray, "K"]
  y: jt.Float[np.ndarray, "K"]


class History(NamedTuple):
  """One run."""

  name: str  # The last part of its path, or all of it to tell runs apart.
  workdir: str
  record: metrics_log.Json  # The content of `config.json`.
  # The content of `metrics.jsonl`; of a long one, what shows in a figure.
  lines: list[metrics_log.Json]
  cards: list[metrics_log.Json]  # Every evaluation card, oldest first.
  time: goodput.Record | None  # At the newest checkpoint; an import has none.

  @property
  def settings(self) -> metrics_log.Json:
    """The configuration by names such as `config.model.num_layers`."""
    return run_record.flat(self.record["config"])

  def training(self, name: str) -> Curve:
    """A field of the training lines, such as "loss"."""
    return _curve(self.lines, name, lambda line: "split" not in line)

  def validation(self) -> Curve:
    """The loss of the validation lines, in nats."""
    return _curve(self.lines, "nll", lambda line: line.get("split") == "valid")

  def lost_steps(self) -> list[int]:
    """Steps, in order, at which the training loss was not a number."""
    found = {
      line["step"]
      for line in self.lines
      if "loss" in line and "split" not in line and not _is_number(line["loss"])
    }
    return sorted(found)

  def rewinds(self) -> list[int]:
    """Steps to which the run went back after it had diverged."""
    found = (line.get("rewound_to") for line in self.lines)
    return [step for step in found if _is_count(step)]

  def unigram_loss(self) -> metrics_log.Json | None:
    """The first line that says that the loss stays at the unigram entropy.

    None if there is none, or it is damaged.
    """
    for line in self.lines:
      entropy = line.get("unigram_entropy")
      since = line.get("unigram_since")
      if _is_number(entropy) and _is_count(since):
        return line | {"advice": str(line.get("advice", ""))}
    return None

  def resumes(self) -> list[int]:
    """Steps after which training was resumed, in order and once each."""
    sessions = self.record.get("sessions")
    sessions = sessions if isinstance(sessions, list) else []
    steps = (one.get("step") for one in sessions if isinstance(one, dict))
    return sorted({step for step in steps if _is_count(step) and step})

  def loss_by_memory(self) -> dict[str, Curve]:
    """The loss in nats at each memory length, by what else the cards state.

    The newest card counts. A label names the split, the step, and the settings
    in which cards of one split and step differ.
    """
    groups: dict[str, dict[int, float]] = {}
    for card, label in zip(self.cards, _labels(self.cards), strict=True):
      if _is_count(card.get("mem_len")) and _is_number(card.get("nll")):
        groups.setdefault(label, {})[card["mem_len"]] = card["nll"]
    return {label: _sorted(points) for label, points in groups.items()}


def read(workdir: str) -> History:
  """Reads a run that is finished, still training, or an import.

  Raises:
    UserError: its `config.json` is missing or damaged.
  """
  load.require_readable(workdir)
  folder = pathlib.Path(storage.local(workdir))
  record = json.loads((folder / "config.json").read_text("utf-8"))
  lines = _read_lines(folder / "metrics.jsonl")
  name = names([workdir])[workdir]
  times = goodput.read(workdir)
  newest = times[-1] if times else None
  return History(name, workdir, record, lines, _cards(folder), newest)


def _read_lines(path: pathlib.Path) -> list[metrics_log.Json]:
  """The lines with a step; of a long file, those that show in a figure.

  The file is read in stretches, and of each stay its first and last line and
  those with the lowest and the highest value of a field that is drawn, for
  training and for validation. Other lines are few, and all stay.
  """
  found = (
    (place, line)
    for place, line in metrics_log.read_places(path)
    if _is_count(line.get("step"))
  )
  size = path.stat().st_size if path.exists() else 0
  if size <= _LONG_LOG:
    return [line for _, line in found]
  return [
    line
    for _, stretch in itertools.groupby(
      found, lambda one: one[0] * _STRETCHES // size
    )
    for line in _shown([line for _, line in stretch])
  ]


def _shown(lines: list[metrics_log.Json]) -> list[metrics_log.Json]:
  """The lines of a stretch that show in a figure, in their order."""
  kept: set[int] = set()
  groups: dict[bool, list[int]] = {True: [], False: []}
  for index, line in enumerate(lines):
    is_curve = "split" in line or _is_number(line.get("loss"))
    if is_curve:
      groups["split" in line].append(index)
    else:  # Of divergence, or without a loss.
      kept.add(index)
  for indices in groups.values():
    kept |= {*indices[:1], *indices[-1:]}
    for name in _DRAWN:
      values = [
        (lines[index][name], index)
        for index in indices
        if _is_number(lines[index].get(name))
      ]
      if values:
        kept |= {min(values)[1], max(values)[1]}
  return [lines[index] for index in sorted(kept)]


def read_all(workdirs: Sequence[str]) -> list[History]:
  """Reads runs and gives them different names.

  Raises:
    UserError: a `config.json` is missing or damaged.
  """
  return [
    read(workdir)._replace(name=name)
    for workdir, name in names(workdirs).items()
  ]


def names(workdirs: Sequence[str]) -> dict[str, str]:
  """Different names of runs, by workdir.

  They are those of the folders, or the workdirs if two folders have one name.
  """
  result = {
    workdir: pathlib.PurePath(storage.absolute(workdir)).name
    for workdir in workdirs
  }
  if len({*result.values()}) < len(result):
    result = {workdir: workdir for workdir in result}
  return result


def differences(runs: Sequence[History]) -> dict[str, list[object]]:
  """The fields in which configurations differ, with the value of each run.

  A field that a run does not have is None there.
  """
  settings = [run.settings for run in runs]
  names = dict.fromkeys(name for one in settings for name in one)
  rows = {name: [one.get(name) for one in settings] for name in names}
  return {
    name: values
    for name, values in rows.items()
    if any(value != values[0] for value in values)
  }


def result(workdir: str, name: str) -> metrics_log.Json | None:
  """The content of `results/<name>.json`; None without it, or if damaged."""
  path = pathlib.Path(storage.local(workdir), "results", f"{name}.json")
  try:
    content = json.loads(path.read_text("utf-8"))
  except (OSError, ValueError, RecursionError):
    return None
  return content if isinstance(content, dict) else None


def _cards(folder: pathlib.Path) -> list[metrics_log.Json]:
  """Cards of `cards.jsonl`, then those that only `eval_<split>.json` has."""
  cards = [*metrics_log.read_lines(folder / "results" / "cards.jsonl")]
  for path in sorted((folder / "results").glob("eval_*.json")):
    found = (result(str(folder), path.stem) or {}).get("cards")
    for card in found if isinstance(found, list) else []:
      if isinstance(card, dict) and card not in cards:
        cards.append(card)
  return cards


def _curve(
  lines: Sequence[metrics_log.Json],
  name: str,
  belongs: Callable[[metrics_log.Json], bool],
) -> Curve:
  chosen = (line for line in lines if belongs(line))
  return _sorted(
    {line["step"]: line[name] for line in chosen if _is_number(line.get(name))}
  )


def _sorted(points: dict[int, float]) -> Curve:
  steps = sorted(points)
  values = [float(points[step]) for step in steps]
  return Curve(np.array(steps, np.int64), np.array(values, np.float64))


def _is_count(value: object) -> TypeGuard[int]:
  return type(value) is int and 0 <= value < 2**53


def _is_number(value: object) -> TypeGuard[float]:
  if type(value) is int or type(value) is float:
    return abs(value) <= sys.float_info.max
  return False


def _labels(cards: list[metrics_log.Json]) -> list[str]:
  """Names of the curves that cards belong to."""
  first = ("split", "checkpoint_step")
  places: dict[tuple[str, ...], list[metrics_log.Json]] = {}
  for card in cards:
    place = tuple(json.dumps(card.get(name)) for name in first)
    places.setdefault(place, []).append(card)
  varying = {place: _varying(group) for place, group in places.items()}
  labels = []
  for card in cards:
    place = tuple(json.dumps(card.get(name)) for name in first)
    others = [
      _setting(name, card[name])
      for name in varying[place]
      if card.get(name) is not None
    ]
    start = f"{card.get('split')}, step {card.get('checkpoint_step')}"
    labels.append(", ".join([start, *others]))
  return labels


def _setting(name: str, value: object) -> str:
  """A setting in a label; of a group, such as that of a cache, its values."""
  values = value.values() if isinstance(value, dict) else [value]
  return " ".join(str(one) for one in (name, *values))


def _varying(cards: list[metrics_log.Json]) -> list[str]:
  """The settings apart from the memory in which cards differ."""
  names = dict.fromkeys(name for card in cards for name in card)
  varying = []
  for name in names:
    compared = cards
    if name in _OF_MEMORY:  # So that a curve begins at memory 0.
      compared = [card for card in cards if card.get("mem_len")]
    different = {json.dumps(card.get(name)) for card in compared}
    if len(different) > 1 and name not in (*_MEASURED, "mem_len"):
      varying.append(name)
  return varying
