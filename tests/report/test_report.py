"""The page as a file: what is on it, what it lacks, and what it never runs."""

import html.parser
import json
import math
import os
import shlex
import subprocess
import sys

import jax
import pytest
from etils import epath

from tests import emulator
from tests import tiny
from tests.analysis import runs
from tests.report import conftest
from tests.report.conftest import HOSTILE
from tests.report.conftest import write_run
from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.config import load
from transformer_xl.report import report
from transformer_xl.workdir import params_writer

PARTS = ("training", "time", "cards", "text", "sample")
MOST_BYTES = 5_000_000


class Page(html.parser.HTMLParser):
  """Scripts, what is fetched, and the text of a page."""

  def __init__(self, path):
    super().__init__()
    self.scripts, self.fetched, self.text, self._tag = [], [], "", ""
    self.feed(path.read_text("utf-8"))

  def handle_starttag(self, tag, attrs):
    self._tag = tag
    if tag == "script":
      self.scripts.append("")
    for name, value in attrs:
      if name in ("src", "href") and not value.startswith(("#", "data:")):
        self.fetched.append(value)

  def handle_endtag(self, tag):
    self._tag = ""

  def handle_data(self, data):
    if self._tag == "script":
      self.scripts[-1] += data
    elif self._tag != "style":
      self.text += data


def files(folder):
  return {
    path: (path.read_bytes(), path.stat().st_mtime_ns)
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
  """The folder of a run, what its report returned, and the page."""
  folder = tmp_path_factory.mktemp("run") / "<b>&'run"
  config = write_run(data_dir, folder)
  before = files(folder / "checkpoints")
  result = report.run(config, str(folder))
  assert files(folder / "checkpoints") == before != {}
  return folder, result, Page(folder / "report.html")


def test_the_page_shows_what_the_workdir_has(run):
  folder, result, page = run
  saved = json.loads((folder / "results" / "report.json").read_text())
  assert saved == result
  assert result["shown"] == [*PARTS]
  assert [*result["missing"]] == ["recl", "attention"]
  saved = shlex.quote(f"--config=saved:{folder}")
  assert f"{command_line.words()} {saved} --mode=recl" in page.text
  assert "<b>&'run" in page.text
  assert result["text"]["num_tokens"] == 149


def test_the_page_needs_no_network_and_is_small(run):
  folder, result, page = run
  size = (folder / "report.html").stat().st_size
  assert page.fetched == []
  assert result["num_bytes"] == size < MOST_BYTES


def test_a_sample_is_shown_beside_its_reference(
  data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(report.reading, "read", _no_text)
  config = write_run(data_dir, tmp_path)
  sample = conftest.EXCERPT | {"reference": HOSTILE}
  (tmp_path / "results" / "generate.json").write_text(json.dumps(sample))
  assert "sample" in report.run(config, str(tmp_path))["shown"]
  page = Page(tmp_path / "report.html")
  assert len(page.scripts) == 3
  text = page.text[page.text.index("prompt split") :]
  parts = (
    "Seed text 1,512 tokens",
    "what was",
    "Sample 40 tokens",
    "drawn",
    "Reference 30 tokens",
    shown(HOSTILE),
  )
  places = [shown(text).index(part) for part in parts]
  assert places == sorted(places)


def no_json(constant):
  raise ValueError(constant)


def test_the_page_of_a_model_that_diverged_says_so(data_dir, tmp_path):
  config = write_run(data_dir, tmp_path)
  with open(tmp_path / "metrics.jsonl", "w") as file:
    file.write('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": NaN}\n')
  lost = jax.tree.map(lambda leaf: leaf * math.nan, tiny.params(config.model))
  params_writer.save(str(tmp_path), lost, step=4)
  report.run(config, str(tmp_path))
  page = Page(tmp_path / "report.html")
  assert "the model of checkpoint 4 has diverged" in page.text
  assert "was not a number at step 2." in " ".join(page.text.split())
  assert "Training lossnot a number" in " ".join(page.text.split())
  assert "resumed" not in page.text  # There is none to explain.
  json.loads(page.scripts[0], parse_constant=no_json)


def test_the_page_of_a_run_that_learned_frequencies_alone_says_so(
  data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(report.reading, "read", _no_text)
  config = write_run(data_dir, tmp_path)
  line = {
    "step": 1600,
    "unigram_entropy": 6.5321,
    "unigram_since": 1000,
    "advice": "In a new run, try <b>this</b>.",
  }
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write(json.dumps(line) + "\n")
  report.run(config, str(tmp_path))
  text = " ".join(Page(tmp_path / "report.html").text.split())
  assert "From step 1,000 to 1,600 the loss of" in text
  assert "within 2 % of 6.532 nats" in text
  assert "In a new run, try <b>this</b>." in text  # Shown, not a tag.


def shown(text):
  """As a page shows it, which can have neither NUL nor half a pair."""
  return text.replace("\x00", "").replace("\ud800", "?")


def test_hostile_text_is_shown_and_not_run(run):
  """Two scripts are ours, one is Bokeh's."""
  _, _, page = run
  assert len(page.scripts) == 3
  assert shown(HOSTILE) in shown(page.text)
  data = json.loads(page.scripts[0])
  assert [*data["figures"]] == ["training", "memory", "recl", "attention"]


def test_hostile_tokens_stay_in_their_json(run, monkeypatch):
  folder, *_ = run
  text = dict.fromkeys(report._ABOUT_TEXT, 0) | {"tokens": [HOSTILE]}
  monkeypatch.setattr(report.reading, "read", lambda *_: text)
  config = load.from_config_dict(load.saved(str(folder)))
  report.run(config, str(folder))
  page = Page(folder / "report.html")
  assert len(page.scripts) == 3
  assert json.loads(page.scripts[0])["text"]["tokens"] == [HOSTILE]


def test_a_bare_checkpoint_gets_the_commands_that_fill_its_page(
  data_dir, tmp_path
):
  config = runs.write(data_dir, tmp_path / "run")
  config = load.replaced(config, {"data.dir": str(tmp_path / "nowhere")})
  result = report.run(config, str(tmp_path / "run"))
  assert result["shown"] == []
  assert [*result["missing"]] == [
    *("training", "cards", "sample", "recl", "attention", "text"),
  ]
  page = Page(tmp_path / "run" / "report.html")
  for mode in ("eval", "generate", "recl", "attention"):
    assert f"--mode={mode}" in page.text
  assert "nowhere" in result["missing"]["text"]


def test_a_damaged_result_is_left_out(data_dir, tmp_path, monkeypatch):
  monkeypatch.setattr(report.reading, "read", _no_text)
  config = write_run(data_dir, tmp_path)
  for name in ("recl", "attention"):
    (tmp_path / "results" / f"{name}.json").write_text('{"models": 3}')
  others = [part for part in PARTS if part != "text"]
  assert report.run(config, str(tmp_path))["shown"] == others


def test_a_run_without_a_record_of_its_time_shows_none(
  data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(report.reading, "read", _no_text)
  for name in "ab":
    config = write_run(data_dir, tmp_path / name)
  (tmp_path / "a" / "goodput.jsonl").unlink()
  assert "time" not in report.run(config, str(tmp_path / "a"))["shown"]
  page = Page(tmp_path / "a" / "report.html")
  assert "Where the time went" not in page.text
  both = load.replaced(config, {"report.runs": (str(tmp_path / "b"),)})
  assert "time" in report.run(both, str(tmp_path / "a"))["shown"]


@pytest.mark.rest  # test_browser.py opens one.
def test_a_long_log_makes_no_large_page(data_dir, tmp_path, monkeypatch):
  monkeypatch.setattr(report.reading, "read", _no_text)
  for name in "ab":
    config = write_run(data_dir, tmp_path / name, num_lines=100_000)
  config = load.replaced(config, {"report.runs": (str(tmp_path / "a"),)})
  result = report.run(config, str(tmp_path / "b"))
  assert result["num_bytes"] < 2_000_000


def _no_text(*_):
  raise errors.UserError("this test shows none.")


def test_the_page_of_several_runs_names_what_differs(
  data_dir, tmp_path, monkeypatch
):
  monkeypatch.setattr(report.reading, "read", _no_text)
  for name, rate in (("a", 0.1), ("b", 0.2)):
    config = write_run(
      data_dir, tmp_path / name, **{"train.learning_rate": rate}
    )
  config = load.replaced(config, {"report.runs": (str(tmp_path / "a"),)})
  result = report.run(config, str(tmp_path / "b"))
  assert [run["name"] for run in result["runs"]] == ["b", "a"]
  page = Page(tmp_path / "b" / "report.html")
  assert "config.train.learning_rate" in page.text
  assert "What differs" in page.text
  missing = {"report.runs": (str(tmp_path / "c"),)}
  with pytest.raises(errors.UserError, match=r"c has no config\.json"):
    report.run(load.replaced(config, missing), str(tmp_path / "b"))


@pytest.mark.rest
@pytest.mark.slow
def test_the_report_of_a_run_in_a_bucket_is_that_of_a_folder(
  bucket, data_dir, tmp_path
):
  config, workdir = (
    write_run(data_dir, tmp_path / "run"),
    f"{bucket}/run",
  )
  runs.write(data_dir, workdir)
  emulator.upload(tmp_path / "run" / "results", f"{workdir}/results")
  for name in ("metrics.jsonl", "goodput.jsonl"):
    log = epath.Path(workdir) / name
    log.write_bytes((tmp_path / "run" / name).read_bytes())
  storage.forget(workdir)
  expected = report.run(config, str(tmp_path / "run"))
  result = report.run(config, workdir)
  for name in ("shown", "missing", "text"):
    assert result[name] == expected[name]
  assert result["runs"] == [{"name": "run", "workdir": workdir}]
  storage.publish(workdir)
  page = epath.Path(workdir) / "report.html"
  assert page.stat().length == result["num_bytes"]
  assert f"--config=saved:{workdir} --mode=recl" in Page(page).text
  saved = (epath.Path(workdir) / "results" / "report.json").read_text()
  assert json.loads(saved) == result


def test_the_page_is_drawn_where_the_home_folder_is_not_known(
  data_dir, tmp_path
):
  """Bokeh asks for it when it is imported; there is no text to read."""
  write_run(data_dir, tmp_path)
  program = """
import os
import pwd
import sys

os.environ.pop("HOME", None)

def unknown(uid):
  raise KeyError(uid)

pwd.getpwuid = unknown
from transformer_xl.config import load
from transformer_xl.report import report

config = load.from_config_dict(load.saved(sys.argv[1]))
config = load.replaced(config, {"data.dir": "nowhere"})
report.run(config, sys.argv[1])
print(os.environ.get("HOME"))
"""
  ended = subprocess.run(
    [sys.executable, "-c", program, str(tmp_path)],
    env={**os.environ, "MPLCONFIGDIR": str(tmp_path / "matplotlib")},
    capture_output=True,
    text=True,
    check=False,
  )
  assert "Traceback" not in ended.stderr
  assert ended.stdout == "None\n"
  assert (tmp_path / "report.html").stat().st_size > 10_000
