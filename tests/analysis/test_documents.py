"""Studies of documents: losses by the position of a token."""

import json
import shutil

import numpy as np
import pytest

from tests import corpus
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import answers
from transformer_xl.analysis import costs
from transformer_xl.analysis import documents
from transformer_xl.analysis import rows as rows_lib
from transformer_xl.analysis import study
from transformer_xl.config import load
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate
from transformer_xl.experiments import memory_text

RUN = {
  "model.num_layers": 1,
  "data.reset_at_documents": True,
  "train.num_steps": 4,
  "checkpoint.every_steps": 4,
}


def a_file(num_tokens, starts):
  return token_file.TokenFile(
    tokens=np.zeros(num_tokens), documents=np.array(starts), sha256="", meta={}
  )


def test_positions_count_from_the_start_of_the_document():
  starts = [0, 1, 20, 90]
  scale = documents.scale(a_file(400, starts))
  assert scale.positions == [[1, 15], [16, 63], [64, 255], [256, 309]]
  found = np.full(399, -1)
  for number, inside in enumerate(scale.bins):
    assert np.all(found[inside] == -1)
    found[inside] = number
  for token in range(1, 400):
    position = token - max(start for start in starts if start <= token)
    ends = scale.positions[found[token - 1]]
    if position:
      assert ends[0] <= position <= ends[1]
    else:
      assert found[token - 1] == -1
  assert scale.num_tokens == np.bincount(found[found >= 0]).tolist()


def test_text_before_the_first_start_is_a_document():
  scale = documents.scale(a_file(40, [30]))
  assert scale.positions == [[1, 15], [16, 29]]
  assert scale.num_tokens == [15 + 9, 14]


def test_documents_of_one_token_are_refused():
  with pytest.raises(errors.UserError, match="second token"):
    documents.scale(a_file(3, [0, 1, 2]))


def test_the_loss_of_all_positions_is_that_of_an_evaluation(data_dir, tmp_path):
  """Two programs agree, with memory that is emptied where documents start."""
  config = runs.write(data_dir, tmp_path, **RUN)
  model = evaluate.load(config, str(tmp_path))
  (card,) = evaluate.evaluate(model)
  file = token_file.open_split(config.data.dataset_dir, config.eval.split)
  assert len(file.documents) > 2
  measured = documents.measure(model, config.eval.mem_len)
  (mem_len,) = config.eval.mem_len
  # Sums of float32 in another order.
  assert measured.losses[mem_len] == pytest.approx(card["nll"], rel=1e-5)
  scale = documents.scale(file)
  num_starts = np.count_nonzero(file.documents)
  assert sum(scale.num_tokens) == len(file.tokens) - 1 - num_starts
  in_bins = np.average(measured.bins[mem_len], weights=scale.num_tokens)
  assert in_bins == pytest.approx(card["nll"], rel=0.1)


def test_variants_read_the_text_whose_positions_are_told(data_dir, tmp_path):
  other = shutil.copytree(data_dir, tmp_path / "other")
  values = RUN | {
    "analysis.variants": ("base: ", f"other: data.dir='{other}'"),
  }
  with pytest.raises(errors.UserError, match="not those of one text"):
    study.run(corpus.config(data_dir, **values), str(tmp_path / "study"))
  assert not (tmp_path / "study").exists()


@pytest.mark.rest
def test_a_study_of_documents_has_positions_and_costs(data_dir, tmp_path):
  values = RUN | {
    "analysis.seeds": (0, 1),
    "analysis.variants": ("base: ", "none: train.mem_len=0; eval.mem_len=(0,)"),
  }
  result = study.run(corpus.config(data_dir, **values), str(tmp_path))
  saved = json.loads((tmp_path / "results" / "study.json").read_text())
  assert saved == json.loads(json.dumps(result))
  for row in result["rows"]:
    for seed in row["bins_by_seed"]:
      assert len(seed) == len(result["positions"]) > 1
      assert min(seed) > 0
  head, _, *lines = (tmp_path / "results" / "study.md").read_text().splitlines()
  assert "| state, bytes |" in head
  assert "| 1-15 |" in head
  assert len(lines) == 2
  assert "| PPL | over seeds | rank |" in head
  assert all(" to " in line for line in lines)


def test_a_table_has_perplexities_of_all_tokens_and_by_position(monkeypatch):
  """Medians over seeds, with the interval of all tokens."""
  monkeypatch.setattr(answers, "cost_cells", lambda row, is_planned: {})
  scale = documents.Scale(bins=[], positions=[[1, 15], [16, 63]], num_tokens=[])
  empty = rows_lib.Row(**dict.fromkeys(rows_lib.Row._fields))
  perplexities = ([6.0, 3.0, 4.0], [[8, 2], [9, 4], [5, 3]]), ([7.0], [[7, 6]])
  rows = [
    empty._replace(
      **{"learning_rate": 0.01, "learning_rates": [], "length": 8},
      nll=np.log(np.median(of_all)),
      nll_by_seed={8: np.log(of_all).tolist()},
      bins_by_seed=np.log(by_bin).tolist(),
    )
    for of_all, by_bin in perplexities
  ]
  first, second = documents.table(rows, scale)
  assert (first["PPL"], first["over seeds"]) == ("4", "3 to 6")
  assert (first["1-15"], first["16-63"]) == ("8", "3")
  assert (second["PPL"], second["over seeds"]) == ("7", "one seed")
  assert (second["1-15"], second["16-63"]) == ("7", "6")
  assert first["learning rate"] == "0.01 (no other tried)"


def test_mechanisms_on_text_hand_on_equal_bytes():
  sizes = {}
  for name, changes in memory_text.mechanisms().items():
    config = load.from_config_dict(memory_text.get_config())
    config = load.changed(config, dict(changes))
    config = load.replaced(config, {"model.vocab_size": 9})
    (mem_len,) = config.eval.mem_len
    sizes[name] = costs.state_bytes(config.model, config.eval, mem_len)
  assert sizes.pop("none") < 10
  for name, size in sizes.items():
    assert size == pytest.approx(sizes["transformer_xl"], rel=0.01), name
