"""Right answers on longer texts, and their table."""

import types

import numpy as np
import pytest

from benchmarks import longer_texts
from benchmarks import memory_tables
from tests import kinds
from tests import tiny
from transformer_xl.config import load
from transformer_xl.data import vocabulary
from transformer_xl.data_prep import preparation
from transformer_xl.data_prep.synthetic import parity
from transformer_xl.model import network
from transformer_xl.workdir import params_writer
from transformer_xl.workdir import run_record

TASK = "parity"
LONGEST = 8  # In training; texts are four times as long.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run with random parameters, which remembers without a limit."""
  folder = tmp_path_factory.mktemp("longer")
  preparation.prepare(
    dataset=TASK,
    data_dir=str(folder / "data"),
    num_tokens=4000,
    max_distance=LONGEST,
  )
  updates = {
    "model.vocab_size": 6,
    "model.layers": (kinds.recurrent(),),
    "model.dtype": "float32",
    "data.name": TASK,
    "data.dir": str(folder / "data"),
    "data.reset_at_documents": True,
    "data.targets": "answers",
    "eval.segment_len": 4,
    "eval.mem_len": (1,),
  }
  symbols = vocabulary.load(str(folder / "data" / TASK)).symbols
  config = load.from_config_dict(tiny.config_dict(**updates))
  workdir = str(folder / "run")
  # Not the words of the text, which it would rather expect.
  bias = 9 * np.array(
    [symbol in parity.ANSWERS for symbol in symbols], np.float32
  )
  drawn = tiny.params(config.model)
  params = drawn | {"softmax": drawn["softmax"] | {"bias": bias}}
  params_writer.save(workdir, params, step=1)
  run_record.record(config, workdir)
  run_record.keep_vocabulary(config.data.dataset_dir, workdir)
  return folder, workdir, config, params


def test_the_far_answers_of_a_longer_text_are_counted(run):
  """The model reads each document by itself, as a whole."""
  folder, workdir, config, params = run
  text = longer_texts.open_text(
    TASK, 4, data_dir=str(folder / "data"), num_tokens=4000
  )
  assert text.longest == 4 * LONGEST
  row = types.SimpleNamespace(length=1)
  found = longer_texts.share(row, workdir, text)

  tokens = np.asarray(text.file.tokens)
  starts = np.asarray(text.file.documents)
  documents = []
  answers = []
  for place, distance in zip(
    text.answers.positions, text.answers.distances, strict=True
  ):
    if distance <= LONGEST:
      continue
    documents.append(tokens[starts[starts <= place].max() : place])
    answers.append(tokens[place])
  lengths = np.array([len(document) for document in documents])
  # One program for all: what fills up a lane comes after its answer.
  lanes = np.zeros((len(documents), lengths.max()), np.int32)
  for lane, document in zip(lanes, documents, strict=True):
    lane[: len(document)] = document
  state = network.empty_state(
    config.model, batch_size=len(lanes), mem_len=1, step_len=4
  )
  log_probs, _ = tiny.apply(
    config.model, params, lanes, state, method="log_probs"
  )
  last = np.asarray(log_probs)[np.arange(len(lanes)), lengths - 1]
  right = last.argmax(-1) == answers
  assert len(right) == len(text.far) > 10
  assert 0 < np.mean(right) < 1
  assert found == pytest.approx(np.mean(right))


def test_the_page_has_the_table_of_the_rows():
  page = memory_tables.PAGE.read_text("utf-8")
  result = memory_tables.read(longer_texts.PATH)
  table = longer_texts.table(result)
  with_table = memory_tables.with_table(page, longer_texts.PICTURE, table)
  assert with_table == page
  keys = [(row["task"], row["name"]) for row in result["rows"]]
  assert len(keys) == len({*keys}) > 40
  assert {task for task, _ in keys} == result["tasks"].keys()
  for row in result["rows"]:
    about = result["tasks"][row["task"]]
    assert len(row["right"]) == len(about["longest"])
    assert {len(by_seed) for by_seed in row["right"]} == {5}
