"""One page about a run that needs no network; `--mode=report`.

Writes `<workdir>/report.html`, and what it shows as `results/report.json`, from
what the workdir has. A section that lacks its input says which command makes
it.
"""

import importlib.resources
import math
import os
import secrets
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jinja2
from absl import logging
from bokeh import resources

from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.analysis import plotting
from transformer_xl.config import schema
from transformer_xl.report import figures
from transformer_xl.report import reading
from transformer_xl.report import tables
from transformer_xl.workdir import goodput
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_history

T = TypeVar("T")
FILE = "report.html"
# Without its widgets, tables and mathematics.
_BOKEH = resources.Resources(mode="inline", components=["bokeh"])
MOST_CHARACTERS = 20_000  # Per sample.
MOST_SAMPLES = 10
MOST_COLUMNS = 6  # Tiles in a row.
# The last activity, which is time lost, is red.
_COLOURS = dict(
  zip(
    goodput.ACTIVITIES,
    (*figures.COLOURS[:5], *figures.COLOURS[:4:-1]),
    strict=True,
  )
)
# What the summary says of the text.
_ABOUT_TEXT = (
  "dataset",
  "split",
  "checkpoint_step",
  "mem_len",
  "segment_len",
  "settings",
  "num_tokens",
  "mean_nll",
)
# Where a section is empty: a sentence, and flags that make its input.
_MISSING = {
  "training": ("This workdir has no training log.", ""),
  "cards": (
    "Nothing has been evaluated yet. This evaluates several memory lengths:",
    "--mode=eval --config.eval.mem_len='(0,128,512)'",
  ),
  "sample": (
    "No sample has been drawn yet. This draws one:",
    "--mode=generate",
  ),
  "recl": (
    "The effective context length has not been measured. This measures it:",
    "--mode=recl",
  ),
  "attention": (
    "Attention by distance has not been measured. This measures it:",
    "--mode=attention",
  ),
}


class Missing(NamedTuple):
  """Why a part of the page is empty, and the command that fills it, if any."""

  text: str
  command: str


class Column(NamedTuple):
  """A text beside others."""

  title: str
  text: str
  num_tokens: str


def check(config: schema.ExperimentConfig, workdir: str) -> None:
  """Raises a UserError if one of `config.report.runs` cannot be shown.

  Runs in a folder of the workdir may still have to be trained.
  """
  run_history.read_all(
    [run for run in config.report.runs if not storage.is_below(run, workdir)]
  )


def run(config: schema.ExperimentConfig, workdir: str) -> metrics_log.Json:
  """Writes the page; returns the content of `results/report.json`.

  Only the first process writes. No checkpoint is changed.

  Raises:
    UserError: the workdir, or one of `config.report.runs`, has no configuration
      or a damaged one.
  """
  runs = run_history.read_all([workdir, *config.report.runs])
  missing = {name: _missing(name, workdir) for name in _MISSING}
  text = None
  try:  # All processes load the checkpoint together.
    text = reading.read(config, workdir)
  except errors.UserError as error:
    missing["text"] = Missing(f"No text can be shown: {error}", "")
    logging.warning("The report shows no text: %s", error)
  page, shown = _page(runs, text, missing)
  # Half a surrogate pair has no code.
  content = page.encode("utf-8", "replace")
  path = os.path.join(storage.local(workdir), FILE)
  if jax.process_index() == 0:
    storage.write_bytes(path, content)
    logging.info(
      "Wrote %s, %.1f MB: open it in a browser.",
      os.path.join(workdir, FILE),
      len(content) / 1e6,
    )
  result = {
    "made_by": plotting.made_by(),
    "file": FILE,
    "num_bytes": len(content),
    "runs": [{"name": run.name, "workdir": run.workdir} for run in runs],
    "differences": run_history.differences(runs),
    "shown": shown,
    "missing": {
      name: why.text for name, why in missing.items() if name not in shown
    },
    "text": text and {name: text[name] for name in _ABOUT_TEXT},
  }
  metrics_log.write_json(workdir, "results/report.json", result)
  return result


def _missing(name: str, workdir: str) -> Missing:
  text, flags = _MISSING[name]
  extensions = command_line.given("extensions")
  saved = shlex.join([*extensions, f"--config=saved:{workdir}"])
  command = f"{command_line.words()} {saved} {flags}"
  return Missing(text, command if flags else "")


def _page(
  runs: Sequence[run_history.History],
  text: metrics_log.Json | None,
  missing: dict[str, Missing],
) -> tuple[str, list[str]]:
  """The page, and the parts that are on it."""
  main = runs[0]
  drawn = {
    "training": figures.training(runs),
    "memory": figures.loss_by_memory(runs),
    "recl": _of_result("recl", main, figures.effective_context) or [],
    "attention": _of_result("attention", main, figures.attention) or [],
  }
  cards = tables.cards(runs)
  sample = _of_result("generate", main, _sample)
  times = tables.times(runs)
  parts = {
    "training": drawn["training"],
    "time": times,
    "cards": cards.rows,
    "text": text,
    "recl": drawn["recl"],
    "attention": drawn["attention"],
    "sample": sample,
  }
  items = {group: figures.items(made) for group, made in drawn.items()}
  facts = tables.facts(main)
  page = _template().render(
    name=main.name,
    facts=facts,
    # As few rows of tiles as there can be, and all of them full.
    num_columns=math.ceil(len(facts) / math.ceil(len(facts) / MOST_COLUMNS)),
    lost_steps={run.name: run.lost_steps() for run in runs if run.lost_steps()},
    unigram_losses={
      run.name: line for run in runs if (line := run.unigram_loss())
    },
    has_dashes=any(len(run.validation().x) for run in runs),
    has_resumes=any(run.resumes() for run in runs),
    has_rewinds=any(run.rewinds() for run in runs),
    titles={
      group: [figure.title.text for figure in made]
      for group, made in drawn.items()
    },
    differences=tables.differences(runs) if len(runs) > 1 else None,
    times=times,
    colours=_COLOURS,
    cards=cards,
    recl=_of_result("recl", main, tables.effective_lengths),
    measured_on={
      name: _of_result(name, main, tables.measured_on)
      for name in ("recl", "attention")
    },
    text=text,
    sample=sample,
    configuration=tables.configuration(main),
    provenance=tables.provenance(main),
    missing=missing,
    made_by=plotting.made_by(),
    nonce=secrets.token_urlsafe(16),
    bokeh="".join(_BOKEH.js_raw),
    data={"figures": items, "text": text},
  )
  return page, [name for name, content in parts.items() if content]


def _of_result(
  name: str, run: run_history.History, make: Callable[[metrics_log.Json], T]
) -> T | None:
  """Calls `make` with `results/<name>.json`; None without it, or if damaged."""
  result = run_history.result(run.workdir, name)
  try:
    return make(result) if result else None
  except (LookupError, TypeError, ValueError):
    logging.warning("results/%s.json is damaged and not shown.", name)
    return None


def _sample(result: metrics_log.Json) -> metrics_log.Json:
  """The prompt, the texts that continue it, and how they were drawn.

  Where a reference is known, the texts are columns instead.
  """
  prompt = str(result["prompt"])[-MOST_CHARACTERS:]
  samples = result["samples"][:MOST_SAMPLES]
  texts = [str(drawn["text"])[:MOST_CHARACTERS] for drawn in samples]
  columns: list[Column] = []
  if "reference" in result:
    columns = [
      Column("Seed text", prompt, tables.text(result["num_prompt_tokens"])),
      *(
        Column(
          "Sample" if len(samples) == 1 else f"Sample {number}",
          text,
          tables.text(drawn["num_tokens"]),
        )
        for number, (drawn, text) in enumerate(
          zip(samples, texts, strict=True), start=1
        )
      ),
      Column(
        "Reference",
        str(result["reference"])[:MOST_CHARACTERS],
        tables.text(result["num_reference_tokens"]),
      ),
    ]
  longer = {
    *("prompt", "num_prompt_tokens", "text", "num_tokens", "samples"),
    *("reference", "num_reference_tokens"),
  }
  settings = {
    tables.label(name): tables.meaning(name, value)
    for name, value in result.items()
    if name not in longer
  }
  return {
    "prompt": prompt,
    "texts": texts,
    "columns": columns,
    "settings": {name: value for name, value in settings.items() if value},
  }


def _template() -> jinja2.Template:
  """The page; what is put into it is escaped."""
  folder = importlib.resources.files(__package__) / "page"
  environment = jinja2.Environment(autoescape=True, trim_blocks=True)
  # Bokeh reads its objects in their order.
  environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
  page = (folder / "page.html").read_text("utf-8")
  template = environment.from_string(page)

  def source(name: str) -> str:
    return (folder / name).read_text("utf-8")

  template.globals["source"] = source
  return template
