"""Tables of a report: evaluation cards, differences, configuration."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformer_xl.config import fields
from transformer_xl.config import schema
from transformer_xl.evaluation import cards as cards_lib
from transformer_xl.workdir import goodput
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_history

MOST_CARDS = 200  # The newest of a run.
# The first columns of the cards; the others follow as the cards have them.
_FIRST = (
  "run",
  "split",
  "mem_len",
  "nll",
  "perplexity",
  "bits_per_character",
  "checkpoint_step",
  "segment_len",
  "num_tokens",
)

_HASH = "dataset_sha256"  # Its first digits tell texts apart.
# What people call the fields of results; the others are called as they are.
_LABELS = {
  "batch_size": "lanes",
  "checkpoint_step": "step",
  "clamp_len": "clamp (tokens)",
  "context_len": "context read again (tokens)",
  "dataset_sha256": "SHA-256 of the data",
  "dtype": "number format",
  "mem_len": "memory (tokens)",
  "nll": "loss (nats per token)",
  "no_repeat_ngram": "length of n-grams not repeated",
  "num_parameters": "number of parameters",
  "num_tokens": "tokens scored",
  "parameters": "kind of parameters",
  "segment_len": "segment (tokens)",
  "warmup_len": "warm-up (tokens)",
}
# Numbers that stand for something else.
_MEANINGS = {
  ("warmup_len", -1): "as the memory",
  ("clamp_len", 0): "none",
  ("context_len", 0): "none",
  ("no_repeat_ngram", 0): "none",
  ("top_k", 0): "all",
}
NOT_A_NUMBER = "not a number"


class Table(NamedTuple):
  """A table whose cells are text."""

  columns: list[str]
  rows: list[list[str]]
  shared: dict[str, str]  # Fields that have one value in all rows.


class Setting(NamedTuple):
  """A field of the configuration."""

  name: str  # Without `config.` and the group.
  value: str
  default: str  # Empty if it has its default.
  remark: str


def cards(runs: Sequence[run_history.History]) -> Table:
  """The evaluation cards, newest first; what they share is set apart."""
  found = [
    ({"run": run.name} if len(runs) > 1 else {}) | card
    for run in runs
    for card in reversed(run.cards[-MOST_CARDS:])
  ]
  names = dict.fromkeys(name for card in found for name in (*_FIRST, *card))
  columns = []
  shared = {}
  for name in names:
    values = [_cell(card, name) for card in found]
    if not any(values):
      continue
    if len(set(values)) == 1 and (len(found) > 1 or name not in _FIRST):
      shared[label(name)] = values[0][:12] if name == _HASH else values[0]
    else:
      columns.append(name)
  rows = [[_cell(card, name) for name in columns] for card in found]
  return Table([label(name) for name in columns], rows, shared)


def _cell(card: metrics_log.Json, name: str) -> str:
  """A field of a card; JSON has no number for the loss of a lost model."""
  if name in ("nll", "perplexity") and name in card and card[name] is None:
    return NOT_A_NUMBER
  return meaning(name, card.get(name))


def label(name: str) -> str:
  """What people call a field of a result."""
  return _LABELS.get(name, name.replace("_", " "))


def meaning(name: str, value: object) -> str:
  """A field's value in words, where a number stands for something else."""
  if isinstance(value, int) and (name, value) in _MEANINGS:
    return _MEANINGS[name, value]
  return text(value)


class Share(NamedTuple):
  """A part of a run's time; the texts are empty below 0.05 %."""

  activity: str
  share: float
  percent: str
  duration: str


class Time(NamedTuple):
  """Where the time of a run went until its newest checkpoint."""

  run: str
  step: int
  total: str
  shares: list[Share]  # The same activities for all runs.


def times(runs: Sequence[run_history.History]) -> list[Time]:
  """The time of each run that has recorded it.

  An activity is left out if it has less than 0.05 % in every run.
  """
  known = {run.name: run.time for run in runs if run.time is not None}
  columns = {name: _shares(one) for name, one in known.items()}
  rows = zip(*columns.values(), strict=True)
  shown = [any(part.percent for part in row) for row in rows]
  return [
    Time(
      name,
      one.step,
      goodput.duration(sum(one.seconds.values())),
      [*itertools.compress(columns[name], shown)],
    )
    for name, one in known.items()
  ]


def _shares(record: goodput.Record) -> list[Share]:
  total = max(sum(record.seconds.values()), 1e-9)
  return [
    Share(
      name, seconds / total, f"{seconds / total:.1%}", goodput.duration(seconds)
    )
    if seconds / total >= 0.0005
    else Share(name, 0.0, "", "")
    for name, seconds in record.seconds.items()
  ]


def differences(runs: Sequence[run_history.History]) -> Table:
  """The fields in which the configurations of runs differ."""
  rows = run_history.differences(runs)
  return Table(
    ["field", *(run.name for run in runs)],
    [[name, *map(literal, values)] for name, values in rows.items()],
    {},
  )


def measured_on(result: metrics_log.Json) -> dict[str, str]:
  """What an analysis of a run has read: its text, and after which update."""
  step = result.get("checkpoint_step")
  if step is None:
    step = [model["checkpoint_step"] for model in result["models"]]
  is_given = not result["dataset"]  # By `analysis.text`.
  about = {
    "text": "given" if is_given else f"{result['dataset']}, {result['split']}",
    "tokens": result["num_tokens"],
    "after step": step,
  }
  return {name: text(value) for name, value in about.items()}


def effective_lengths(result: metrics_log.Json) -> Table:
  """The lengths that `recl.json` states, by share of the hardest tokens."""
  rows = []
  for index, model in enumerate(result["models"]):
    cells = [
      ("" if entry["is_reached"][index] else "≥ ") + text(entry["recl"][index])
      for entry in result["recl"]
    ]
    rows.append([model["name"], *cells])
  shares = [f"hardest {entry['fraction']:.0%}" for entry in result["recl"]]
  return Table(["model", *shares], rows, {})


def facts(run: run_history.History) -> list[tuple[str, str]]:
  """Names and values of what matters most about a run, as far as known."""
  settings = run.settings
  loss = run.training("loss")
  valid = run.validation()
  found = [("Data", text(settings.get("config.data.name")))]
  lost = run.lost_steps()
  last = max([*loss.x[-1:], *lost[-1:]], default=None)
  if last is not None:
    total = text(settings.get("config.train.num_steps"))
    found.append(("Steps", f"{last:,} of {total}"))
    tokens = run.training("tokens")
    if len(tokens.x):
      found.append(("Tokens read", text(int(tokens.y[-1]))))
    is_lost = last in lost
    newest = NOT_A_NUMBER if is_lost else f"{loss.y[-1]:.4f} nats"
    found.append(("Training loss", newest))
  if len(valid.x):
    found.append(("Best validation loss", f"{valid.y.min():.4f} nats"))
  if run.time is not None:
    seconds = sum(run.time.seconds.values())
    share = run.time.seconds[goodput.UPDATES] / max(seconds, 1e-9)
    spent = goodput.duration(seconds)
    found.append(("Time in updates", f"{share:.0%} of {spent}"))
  cards = [
    card
    for card in run.cards
    if isinstance(card.get("nll"), float) and cards_lib.is_static(card)
  ]
  if cards:
    found.append(_lowest_loss(cards, settings))
    found.append(("Parameters", text(cards[-1].get("num_parameters"))))
  return found


def _lowest_loss(
  cards: Sequence[metrics_log.Json], settings: Mapping[str, object]
) -> tuple[str, str]:
  """The lowest loss of the run's text, and what it is.

  Losses of another text, or of other targets, are not comparable. If there are
  no others, those of the newest card count, and their text is named: an
  imported run does not know what it was trained on.
  """
  own = {
    "dataset": settings.get("config.data.name"),
    "targets": settings.get("config.data.targets"),
  }

  def comparable(about: Mapping[str, object]) -> list[metrics_log.Json]:
    return [
      card
      for card in cards
      if all(card.get(name, value) == value for name, value in about.items())
    ]

  about = own
  if not comparable(own):
    about = {name: cards[-1].get(name, value) for name, value in own.items()}
  best = min(comparable(about), key=lambda card: card["nll"])
  what = f"{best.get('split')} loss, memory {best.get('mem_len')}"
  if best.get("temperature", 1) != 1:
    what += f", temperature {best['temperature']}"
  what = what.capitalize()
  if about["dataset"] != own["dataset"]:
    what += f", of {about['dataset']}"
  return what, f"{best['nll']:.4f} nats"


def configuration(run: run_history.History) -> dict[str, list[Setting]]:
  """The saved configuration by group, with what differs from the defaults."""
  groups: dict[str, list[Setting]] = {}
  for path, value in run.settings.items():
    group, _, name = path.removeprefix("config.").rpartition(".")
    declared = schema.all_fields().get(path.removeprefix("config."))
    default = ""
    remark = ""
    if declared is not None:
      remark = declared.remark
      standard = declared.default
      if isinstance(standard, fields.SameAs):
        standard = run.settings.get(f"config.{group}.{standard.leader}")
      if literal(standard) != literal(value):
        default = literal(standard) or "''"
    setting = Setting(name, literal(value) or "''", default, remark)
    groups.setdefault(group or "run", []).append(setting)
  return groups


def provenance(run: run_history.History) -> dict[str, str]:
  """All that `config.json` has beside the configuration, flat."""
  rows: dict[str, str] = {"workdir": run.workdir}
  for name, value in run.record.items():
    if isinstance(value, dict) and name != "config":
      rows |= {f"{name} {key}": text(part) for key, part in value.items()}
    elif isinstance(value, list):
      rows |= {
        f"{name.removesuffix('s')} {number}": text(part)
        for number, part in enumerate(value, start=1)
      }
    elif name != "config":
      rows[name] = text(value)
  return {label(name): value for name, value in rows.items() if value}


def text(value: object) -> str:
  """A number or word for people; empty for none."""
  if isinstance(value, bool):
    return "yes" if value else "no"
  if isinstance(value, float):
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.5g}"
  if isinstance(value, int):
    return f"{value:,}"
  if isinstance(value, dict):
    return ", ".join(f"{key} {text(part)}" for key, part in value.items())
  if isinstance(value, list):
    return ", ".join(map(text, value))
  return literal(value)


def literal(value: object) -> str:
  """A value as a flag takes it; empty for none."""
  if value is None:
    return ""
  return value if isinstance(value, str) else json.dumps(value)
