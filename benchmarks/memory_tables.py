r"""Writes the tables of docs/measurements/memories.md from stored rows.

    python -m benchmarks.memory_tables [--add=STUDY.json] [--plan]

The rows of a task are in docs/measurements/memories/TASK.json. `--add` puts
those of a finished study among them, and draws the task's picture again. A row
of the same name gains the seeds that are new, or is replaced. `--time` measures
the times of all rows again, on the data of the studies (`--data_dir`). `--plan`
compiles what has no planned time for a TPU chip yet, and needs no TPU, only the
`tpu` extra. `--only` leaves other tasks alone.
"""

import json
import pathlib
import re
import statistics
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags
from matplotlib import figure as figure_lib

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl.analysis import answers
from transformer_xl.analysis import costs
from transformer_xl.analysis import documents
from transformer_xl.analysis import plotting
from transformer_xl.analysis import recall
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.config import load
from transformer_xl.planning import topology as topology_lib

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs/measurements/memories.md"
ROWS = ROOT / "docs/measurements/memories"
TOPOLOGY = "v5e:2x2"  # One of its chips is planned for.
# What says of which answers or positions the numbers in `bins_by_seed` are.
SCALES = (
  "split",
  "distances",
  "positions",
  "num_answers",
  "num_tokens",
  "chance",
)
# What a row says of its time.
TIMES = ("seconds_per_token", "relative_seconds", "planned_seconds_per_token")


def define_flags() -> None:
  """Defines the command's flags, which importing the module does not."""
  flags.DEFINE_string("add", "", "A study.json whose rows are added.")
  flags.DEFINE_bool("time", False, "Measure the times of all rows again.")
  flags.DEFINE_bool("plan", False, "Plan the rows without a planned time.")
  flags.DEFINE_string("data_dir", "data", "Prepared datasets, for --time.")
  flags.DEFINE_list("only", [], "Time and plan these tasks only.")


def row_of(values: dict[str, Any]) -> rows_lib.Row:
  """A row as it was before it was written.

  Raises:
    UserError: the configuration has a field that does not exist any more.
  """
  known = {name: values[name] for name in rows_lib.Row._fields}
  known["config"] = load.from_config_dict(
    load.updated(load.default(), values["config"], str(ROWS))
  )
  known["learning_rates"] = [
    rows_lib.TriedRate(**one) for one in values["learning_rates"]
  ]
  for name in ("nll_by_length", "nll_by_seed"):
    known[name] = {int(length): nll for length, nll in values[name].items()}
  for name in ("seconds_per_token", "planned_seconds_per_token"):
    if values[name] is not None:
      known[name] = costs.Seconds(**values[name])
  return rows_lib.Row(**known)


def rows_of(result: dict[str, Any]) -> list[rows_lib.Row]:
  """The rows of a task."""
  return [row_of(values) for values in result["rows"]]


def answers_scale(result: dict[str, Any]) -> recall.Scale:
  """The distances of a task, without the indices of its answers."""
  return recall.Scale(
    bins=[],
    distances=result["distances"],
    num_answers=result["num_answers"],
    chance=result["chance"],
  )


def documents_scale(result: dict[str, Any]) -> documents.Scale:
  """The positions of a text, without the indices of its tokens."""
  return documents.Scale(
    bins=[],
    positions=result["positions"],
    num_tokens=result["num_tokens"],
  )


def table(result: dict[str, Any]) -> str:
  """The rows of a task in Markdown."""
  rows = rows_of(result)
  if "distances" in result:
    cells = answers.table(rows, answers_scale(result))
  else:
    cells = documents.table(rows, documents_scale(result))
  return plotting.markdown(cells)


def draw(result: dict[str, Any]) -> figure_lib.Figure:
  """The picture of a task."""
  rows = rows_of(result)
  if "distances" in result:
    return answers.draw(rows, answers_scale(result))
  return documents.draw(rows, documents_scale(result))


def with_table(page: str, picture: str, text: str) -> str:
  """The page with this table above a picture, which is a path in it.

  Raises:
    UserError: the page has no table there.
  """
  pattern = rf"(?:^\|.*\n)+(?=\n!\[.*\]\({re.escape(picture)}\))"
  places = [*re.finditer(pattern, page, re.MULTILINE)]
  if len(places) != 1:
    raise errors.UserError(
      f"{PAGE.name} has {len(places)} tables above {picture}; write "
      "one there, of any rows at first."
    )
  start, end = places[0].span()
  return page[:start] + text + page[end:]


def merged(stored: dict[str, Any], study: dict[str, Any]) -> dict[str, Any]:
  """The rows of a task with those of a study among them.

  A row of the same name joins the stored one if its seeds are new, and replaces
  it otherwise. A new row stands behind those that take as long, because they
  differ in the number of updates at most, and has their times. Another one has
  the times of its study, which should therefore begin with the variant that the
  stored rows begin with. If it replaces all stored rows, what is said of all is
  the study's.

  Raises:
    UserError: the study was not measured on the same text.
  """
  for name in SCALES:
    if stored.get(name) != study.get(name):
      raise errors.UserError(
        f"the study has other {name} than {stored['dataset']}.json, so it was "
        "measured on another text; prepare the text as "
        "docs/measurements/memories.md says."
      )
  rows = list(stored["rows"])
  kept = {row["name"] for row in rows}
  data_dir = rows[0]["config"]["data"]["dir"]
  for measured in study["rows"]:
    new = {"seeds": study["seeds"], **measured}
    new["config"]["data"]["dir"] = data_dir  # As in all rows.
    names = [row["name"] for row in rows]
    if new["name"] in names:
      place = names.index(new["name"])
      old = {"seeds": stored["seeds"], **rows[place]}
      are_new = {*old["seeds"]}.isdisjoint(new["seeds"])
      rows[place] = _of_all_seeds(old, new) if are_new else new
      if not are_new:
        kept.remove(new["name"])
      continue
    place = len(rows)
    new_row = row_of(new)
    for index, row in enumerate(rows):
      if _takes_as_long(row_of(row), new_row):
        place = index + 1
        new |= {name: row[name] for name in TIMES}
    rows.insert(place, new)

  result = stored | {"rows": rows}
  if not kept:
    result = _about_all(study) | {"rows": rows}
    result["config"]["data"]["dir"] = data_dir
  compare(result)
  return result


def _about_all(study: dict[str, Any]) -> dict[str, Any]:
  """What a study says of all its rows, which it times after the last."""
  last = study["rows"][-1]
  timed_with = {name: last[name] for name in ("commit", "device", "date")}
  # The code that wrote it matters to other workers of the study alone.
  about = {
    name: value
    for name, value in study.items()
    if name not in ("rows", "written_by")
  }
  return about | {"timed_with": timed_with}


def compare(result: dict[str, Any]) -> None:
  """Writes into all rows how they differ from the first."""
  compared = rows_lib.with_differences(rows_of(result))
  for values, row in zip(result["rows"], compared, strict=True):
    for name in ("at_equal_tokens", "at_equal_time", "is_told_apart"):
      values[name] = getattr(row, name)


def _of_all_seeds(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
  """The row with the losses of the other one's seeds behind its own.

  Raises:
    UserError: the two differ in more than their seeds.
  """
  if not _are_of_one_model(row_of(old), row_of(new)):
    raise errors.UserError(
      f"{new['name']!r} is a row with another configuration already; give the "
      "variant another name."
    )
  by_seed = {
    length: [*losses, *new["nll_by_seed"][length]]
    for length, losses in old["nll_by_seed"].items()
  }
  medians = {
    length: statistics.median(each) for length, each in by_seed.items()
  }
  length = str(old["length"])
  both = (old["seconds"], new["seconds"])
  return old | {
    "seconds": None if None in both else sum(both),
    "seeds": [*old["seeds"], *new["seeds"]],
    "nll": medians[length],
    "low": min(by_seed[length]),
    "high": max(by_seed[length]),
    "nll_by_length": medians,
    "nll_by_memory": medians,
    "nll_by_seed": by_seed,
    "bins_by_seed": [*old["bins_by_seed"], *new["bins_by_seed"]],
  }


def _are_of_one_model(row: rows_lib.Row, other: rows_lib.Row) -> bool:
  """Whether two rows differ in seeds, and in what changes no loss."""
  return row.length == other.length and all(
    getattr(row.config, group) == getattr(other.config, group)
    for group in ("model", "data", "train", "eval")
  )


def _takes_as_long(row: rows_lib.Row, other: rows_lib.Row) -> bool:
  """Whether a token takes equally long in both."""
  timed = costs.what_is_timed(row.config, row.config, row.length)
  return timed == costs.what_is_timed(other.config, row.config, other.length)


def time(result: dict[str, Any], data_dir: str) -> None:
  """Measures the times of all rows, which take turns, and how they differ."""
  rows = rows_of(result)
  timed = []
  for row in rows:
    config = load.replaced(row.config, {"data.dir": data_dir})
    timed.append(costs.what_is_timed(config, rows[0].config, row.length))
  seconds = costs.seconds_per_token(dict.fromkeys(timed))
  first = seconds[timed[0]].training
  for values, each in zip(result["rows"], timed, strict=True):
    values["seconds_per_token"] = seconds[each]._asdict()
    values["relative_seconds"] = seconds[each].training / first
  result["timed_with"] = trials.provenance()
  compare(result)


def plan(result: dict[str, Any], chip: jax.Device) -> None:
  """Adds the planned times of all rows that have none."""
  result["planned_for"] = chip.device_kind
  for values, row in zip(result["rows"], rows_of(result), strict=True):
    if row.planned_seconds_per_token is None:
      seconds = costs.planned_seconds(row.name, row.config, row.length, chip)
      if seconds is not None:
        values["planned_seconds_per_token"] = seconds._asdict()


def read(path: pathlib.Path) -> dict[str, Any]:
  """The content of a file of rows."""
  return json.loads(path.read_text("utf-8"))


def write(path: pathlib.Path, study: dict[str, Any]) -> None:
  """Writes a file of rows: a line for each row, and for each other entry."""
  lines = []
  for name, value in study.items():
    text = json.dumps(value)
    if name == "rows":
      rows = ",\n".join(f"    {json.dumps(row)}" for row in value)
      text = f"[\n{rows}\n  ]"
    lines.append(f"  {json.dumps(name)}: {text}")
  path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def main(argv: Sequence[str]) -> None:
  del argv
  if flags.FLAGS.add:
    study = read(pathlib.Path(flags.FLAGS.add))
    path = ROWS / f"{study['dataset']}.json"
    result = study
    if path.exists():
      result = merged(read(path), study)
    write(path, result)
    picture = draw(result)
    description = {"Description": result["made_by"]}
    picture.savefig(path.with_suffix(".png"), dpi=150, metadata=description)

  paths = sorted(ROWS.glob("*.json"))
  chosen = flags.FLAGS.only or [path.stem for path in paths]
  chip = None
  if flags.FLAGS.plan:
    chip = topology_lib.slice_devices(TOPOLOGY)[0]
  for path in paths:
    if path.stem not in chosen or not (flags.FLAGS.time or chip):
      continue
    result = read(path)
    if flags.FLAGS.time:
      time(result, flags.FLAGS.data_dir)
    if chip is not None:
      plan(result, chip)
    write(path, result)

  page = PAGE.read_text("utf-8")
  for path in paths:
    text = table(read(path))
    page = with_table(page, f"memories/{path.stem}.png", text)
  PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
