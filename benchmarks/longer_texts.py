r"""Right answers on texts that are longer than those of training.

    python -m benchmarks.longer_texts --study=runs/parity [--data_dir=data]

takes the models of a finished study of a synthetic task, such as
`--config=memory_suite:parity`: each variant at the learning rate that the study
chose, with all seeds. They read test texts with distances 4, 16 and 64 times as
long as those that they were trained on, with a memory so many times as long,
and as many more slots where it is compressed.
Only far answers count, of more than a quarter of the longest distance. Beside
them stand those of the study itself.

The rows are in docs/measurements/longer_texts.json, and their table and picture
in docs/measurements/memories.md.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import flags
from matplotlib import figure as figure_lib

from benchmarks import memory_tables
from transformer_xl import command_line
from transformer_xl import storage
from transformer_xl.analysis import answers as answers_lib
from transformer_xl.analysis import over_seeds
from transformer_xl.analysis import plotting
from transformer_xl.analysis import recall
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.data import token_file
from transformer_xl.data_prep import preparation
from transformer_xl.evaluation import evaluate
from transformer_xl.workdir import compile_cache

PATH = memory_tables.ROOT / "docs/measurements/longer_texts.json"
PICTURE = "longer_texts.png"
TIMES = (4, 16, 64)  # As far as in training.
SPLIT = "test"
NUM_LANES = 32
FAR = 4  # A distance is far if it is more than this part of the longest.


class Text(NamedTuple):
  """A text whose longest distances are `times` as long as in training.

  Attributes:
    folder: of the prepared dataset.
    name: of the dataset.
    longest: the longest distance.
    file: its test split.
    answers: those of the split.
    far: indices of the answers that count.
  """

  times: int
  folder: str
  name: str
  longest: int
  file: token_file.TokenFile
  answers: token_file.Answers
  far: np.ndarray


def define_flags() -> None:
  """Defines the command's flags, which importing the module does not."""
  flags.DEFINE_string("study", "", "The folder of a finished study.")
  flags.DEFINE_string("data_dir", "data", "Prepared datasets.")
  flags.DEFINE_list("only", [], "Measure these variants only.")
  flags.DEFINE_integer("num_tokens", 1_000_000, "A tenth of it is tested on.")


def open_text(task: str, times: int, *, data_dir: str, num_tokens: int) -> Text:
  """Opens a longer text of a prepared task, and writes it if it is missing."""
  name = f"{task}_{times}_times"
  meta = token_file.read_meta(f"{data_dir}/{task}")
  options = meta["source"]
  longest = times * options["max_distance"]
  kind = registry.tasks[meta["dataset"]]
  own = {each: options[each] for each in kind.options}
  given = options["path"] != "generated"
  preparation.prepare(
    dataset=meta["dataset"],
    source=options["path"] if given else None,
    data_dir=data_dir,
    name=name,
    # Tokens mean the same as in training.
    vocabulary_file=f"{data_dir}/{task}",
    seed=options["seed"],
    num_tokens=num_tokens,
    test_max_distance=longest,
    **own,
  )
  file, found = recall.open_answers(f"{data_dir}/{name}", SPLIT)
  far = np.flatnonzero(found.distances > longest / FAR)
  return Text(times, data_dir, name, longest, file, found, far)


def share(row: rows_lib.Row, run: str, text: Text) -> float:
  """The share of the far answers that a run has right."""
  config = load.from_config_dict(load.saved(run))
  mem_len = text.times * row.length
  values = {
    "data.dir": text.folder,
    "data.name": text.name,
    "eval.split": SPLIT,
    "eval.batch_size": NUM_LANES,
    "eval.mem_len": (mem_len,),
  }
  if "compressive" in config.model.layers:
    slots = config.value_of("model.compressive.slots")
    values["model.compressive.slots"] = text.times * slots
  model = evaluate.load(load.replaced(config, values), run)
  guesses = recall.guess(model, mem_len, warmup_len=text.longest)
  found = recall.right_answers(guesses, text.file, text.answers, [text.far])
  (accuracy,) = found["accuracy"]
  return accuracy


def first_far(scale: recall.Scale) -> int:
  """The first bin of a study's own text with far answers, as all later have."""
  longest = scale.distances[-1][1]
  return [first > longest / FAR for first, _ in scale.distances].index(True)


def measure(
  study: str, *, data_dir: str, num_tokens: int, only: Sequence[str]
) -> None:
  """Measures the rows of a study, and stores each when it is measured."""
  result = memory_tables.read(pathlib.Path(study) / "results/study.json")
  task = result["dataset"]
  scale = memory_tables.answers_scale(result)
  texts = [
    open_text(task, times, data_dir=data_dir, num_tokens=num_tokens)
    for times in TIMES
  ]
  far = first_far(scale)
  longest = [scale.distances[-1][1]]
  num_answers = [sum(scale.num_answers[far:])]
  for text in texts:
    longest.append(text.longest)
    num_answers.append(len(text.far))
  about = {
    "longest": longest,
    "num_answers": num_answers,
    **trials.provenance(),
  }
  for row in memory_tables.rows_of(result):
    if only and row.name not in only:
      continue
    right = [answers_lib.shares(row, scale, first=far).by_seed]
    for text in texts:
      by_seed = []
      for seed in variants.seeds(row.config.analysis, own=row.config.seed):
        trial = variants.trial(
          row.config, row.name, study, rate=row.learning_rate, seed=seed
        )
        by_seed.append(share(row, trial.folder, text))
      right.append(tuple(by_seed))
      print(row.name, f"{text.times} times:", by_seed, flush=True)
    line = {
      "task": task,
      "name": row.name,
      "learning_rate": row.learning_rate,
      "mem_len": row.length,
      "right": right,
    }
    _store(task, about, line)


def _store(task: str, about: dict[str, Any], line: dict[str, Any]) -> None:
  """Puts a row into the file, in the place of the one that it had."""
  result: dict[str, Any] = {"tasks": {}, "rows": []}
  if PATH.exists():
    result = memory_tables.read(PATH)
  result["tasks"][task] = about
  keys = [(row["task"], row["name"]) for row in result["rows"]]
  key = (task, line["name"])
  if key in keys:
    result["rows"][keys.index(key)] = line
  else:
    result["rows"].append(line)
  memory_tables.write(PATH, result)


def by_task(
  result: dict[str, Any],
) -> dict[str, dict[str, list[over_seeds.OverSeeds]]]:
  """The rows of each task by name: a share for each of its `longest`."""
  found: dict[str, dict[str, list[over_seeds.OverSeeds]]] = {}
  for row in result["rows"]:
    shares = [over_seeds.of(by_seed) for by_seed in row["right"]]
    found.setdefault(row["task"], {})[row["name"]] = shares
  return found


def table(result: dict[str, Any]) -> str:
  """A row for each variant and a column for each task, in Markdown."""
  tasks = by_task(result)
  names = dict.fromkeys(row["name"] for row in result["rows"])
  lines = []
  for name in names:
    cells = {"variant": name}
    for task, rows in tasks.items():
      longest = result["tasks"][task]["longest"]
      head = f"{task}, up to {' / '.join(map(str, longest))}"
      medians = [each.median for each in rows.get(name, [])]
      cells[head] = " / ".join(f"{100 * median:.0f}" for median in medians)
    lines.append(cells)
  return plotting.markdown(lines)


@plotting.in_style
def draw(result: dict[str, Any]) -> figure_lib.Figure:
  """Plots right answers by distance, a panel for each task."""
  tasks = by_task(result)
  names = [*dict.fromkeys(row["name"] for row in result["rows"])]
  figure, grid = plotting.subplots(
    1, len(tasks), figsize=(1.5 + 3 * len(tasks), 3.8), sharey=True
  )
  for axes, (task, rows) in zip(
    np.atleast_1d(grid), tasks.items(), strict=True
  ):
    longest = result["tasks"][task]["longest"]
    for name, shares in rows.items():
      by_seed = 100 * np.array([each.by_seed for each in shares]).T
      plotting.draw_row(
        axes,
        longest,
        np.median(by_seed, axis=0),
        by_seed,
        style=plotting.style_of(names.index(name)),
        label=name,
      )
    axes.set_title(task)
    axes.set_xscale("log", base=2)
    axes.set_xticks(longest, [str(each) for each in longest])
    axes.set_xlabel("distance, up to")
    axes.set_ylim(0, 103)
  first = np.atleast_1d(grid)[0]
  first.set_ylabel("right answers (%)")
  handles, labels = first.get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside right upper", fontsize=8)
  return figure


def main(argv: Sequence[str]) -> None:
  del argv
  compile_cache.use()
  if flags.FLAGS.study:
    measure(
      storage.expanded(flags.FLAGS.study),
      data_dir=flags.FLAGS.data_dir,
      num_tokens=flags.FLAGS.num_tokens,
      only=flags.FLAGS.only,
    )
  result = memory_tables.read(PATH)
  picture = draw(result)
  picture.savefig(PATH.with_name(PICTURE), dpi=150)
  page = memory_tables.PAGE.read_text("utf-8")
  page = memory_tables.with_table(page, PICTURE, table(result))
  memory_tables.PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
