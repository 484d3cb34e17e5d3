"""The paper's items: what was published, what is trained, and the order."""

import functools
import json
import math
import pathlib

import numpy as np
import pytest

from tests import corpus
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import variants
from transformer_xl.analysis.paper import methods
from transformer_xl.analysis.paper import published
from transformer_xl.analysis.paper import repeat
from transformer_xl.config import load
from transformer_xl.experiments import paper
from transformer_xl.model import network

PAGE = pathlib.Path(__file__).parents[2] / "docs/paper.md"
SCALES = ("", ":small")
# The paper's model, whose recipe is known, and no recipe of its rivals.
UNKNOWN = {("table5", ""): {"long_lstm"}}


ENWIK8_24 = {
  "model.vocab_size": 204,
  "model.num_layers": 24,
  "model.model_dim": 1024,
  "model.num_heads": 8,
  "model.head_dim": 128,
}


def tiny_config():
  return load.from_config_dict(load.default())


@functools.cache
def config_of(name, scale):
  return load.from_config_dict(paper.get_config(name + scale))


def trained_names(config):
  parsed = [variants.parse(text) for text in config.analysis.variants]
  return {*config.analysis.rows, *(each.name for each in parsed)}


def changes_of(config, name):
  parsed = [variants.parse(text) for text in config.analysis.variants]
  (found,) = [each.changes for each in parsed if each.name == name]
  return found


def num_parameters(config, name=""):
  if name:
    config = load.changed(config, dict(changes_of(config, name)))
  return network.num_parameters(network.abstract_params(config.model))


def published_on_the_page(name):
  """The published numbers of an item in docs/paper.md, row by row."""
  _, _, rest = PAGE.read_text("utf-8").partition(f"<!-- {name}: start -->")
  block, _, _ = rest.partition(f"<!-- {name}: end -->")
  head, _, *rows = [
    [*map(str.strip, line.split("|")[1:-1])]
    for line in block.splitlines()
    if line.startswith("|")
  ]
  columns = [
    index for index, cell in enumerate(head) if cell.endswith(", published")
  ]
  return [
    [float(row[index].replace(",", "")) for index in columns] for row in rows
  ]


@pytest.mark.parametrize("name", [f"table{number}" for number in range(1, 11)])
def test_published_numbers_are_those_of_the_page(name):
  """Row by row, in the same order."""
  stated = published_on_the_page(name)
  here = [[*map(float, row.values)] for row in published.ITEMS[name].rows]
  assert stated == here


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", published.ITEMS)
def test_every_row_that_can_be_measured_is_trained(name, scale):
  """By a variant of the row's name, at both scales, and nothing else is."""
  config = config_of(name, scale)
  item = published.ITEMS[name]
  assert config.analysis.paper == name
  if item.method == "speed":
    lengths = {str(each) for each in config.analysis.speed_lens}
    assert {row.variant for row in item.rows} == lengths
    return
  found = trained_names(config)
  if item.method in ("attention", "sample"):
    assert len(found) == 1
    return
  wanted = {row.variant for row in item.rows if row.variant}
  assert found == wanted - UNKNOWN.get((name, scale), set())


@pytest.mark.rest
@pytest.mark.parametrize(
  ("name", "variant", "count"),
  [
    ("table1", "standard", 151_119_838),
    ("table1", "large", 285_205_322),
    ("table2", "layers_12", 41_055_436),
    ("table2", "layers_24", 277_231_820),
    ("table3", "layers_24", 277_050_395),
    ("table4", "transformer_xl", 466_962_273),
    ("table4", "large", 838_078_041),
    ("table5", "long_transformer_xl", 24_040_400),
    ("table6", "larger", 151_119_838),
  ],
)
def test_variants_at_the_scale_of_the_paper_have_its_sizes(
  name, variant, count
):
  """Those of docs/specification.md, section 22."""
  assert num_parameters(config_of(name, ""), variant) == count


@pytest.mark.rest
@pytest.mark.parametrize(
  ("name", "variant", "count"),
  [
    ("table2", "layers_18", 88e6),
    ("table6", "", 128e6),
    ("table7", "transformer_xl", 0.3e9),
    ("table10", "", 128e6),
  ],
)
def test_sizes_of_our_choice_are_about_those_published(name, variant, count):
  found = num_parameters(config_of(name, ""), variant)
  assert abs(found / count - 1) < 0.03


@pytest.mark.rest
@pytest.mark.parametrize(
  ("updates", "count"),
  [
    # Some summaries of the paper give sizes that cannot have its counts.
    ({**ENWIK8_24, "model.ff_dim": 4096}, 327e6),
    ({**ENWIK8_24, "model.ff_dim": 3072}, 277e6),
    (
      {
        "model.vocab_size": 10_000,
        "model.num_layers": 12,
        "model.model_dim": 500,
        "model.num_heads": 10,
        "model.head_dim": 50,
        "model.ff_dim": 1000,
      },
      32e6,
    ),
  ],
)
def test_sizes_that_summaries_state_have_other_counts(updates, count):
  model = load.changed(tiny_config(), updates).model
  found = network.num_parameters(network.abstract_params(model))
  assert abs(found / count - 1) < 0.01


def test_figure_3_is_drawn_from_the_models_of_table_8():
  assert published.find("figure3") == published.find("table8")
  assert paper.get_config("figure3:small").analysis.paper == "table8"


@pytest.mark.parametrize(
  ("item", "text"),
  [
    ("", "name an item of the paper, as in --config=paper:table6:small"),
    ("table11", "must be one of table1, .*; did you mean table1"),
    ("table6:tiny", "only 'small' may follow the name: --config=paper:table6:"),
  ],
)
def test_an_item_that_is_not_in_the_paper_is_refused(item, text):
  with pytest.raises(errors.UserError, match=text):
    paper.get_config(item)


def an_item(*values, group=("", "", "")):
  """An item of three rows, published in the order of their names."""
  rows = tuple(
    published.Row(name, (float(place), place), name, group[place])
    for place, name in enumerate("abc")
  )
  item = published.Item("", "study", ("first", "second"), rows)
  measured = {
    name: methods.Measured((value, 7), low=low, high=high)
    for name, (value, low, high) in zip("abc", values, strict=False)
  }
  return item, measured


def test_pairs_of_rows_are_in_the_order_of_the_paper_or_not():
  item, measured = an_item((1.0, 1, 1), (3.0, 3, 3), (2.0, 2, 2))
  found = repeat.order(item, 0, measured)
  assert found == repeat.Order(2, [("b", "c")], 0)
  first, second = repeat.sentences(item, measured)
  assert first == (
    "first: 2 of 3 pairs of rows in the same order; 'b' and 'c' are not."
  )
  # All were measured as 7, so no pair is told apart.
  assert second.endswith(
    "0 of 3 pairs of rows in the same order, 3 not told apart."
  )


def test_rows_whose_seeds_overlap_are_not_told_apart():
  item, measured = an_item((1.0, 0.5, 1.6), (2.0, 1.5, 2.5), (4.0, 3.9, 4.1))
  assert repeat.order(item, 0, measured) == repeat.Order(2, [], 1)
  # One seed has no range: a difference counts.
  item, measured = an_item((1.0, 1.0, 1.0), (2.0, 0.5, 2.5), (4.0, 3.9, 4.1))
  assert repeat.order(item, 0, measured) == repeat.Order(3, [], 0)


def test_rows_of_other_groups_or_without_a_model_are_not_compared():
  item, measured = an_item(
    (1.0, 1, 1), (3.0, 3, 3), (2.0, 2, 2), group=("x", "y", "x")
  )
  assert repeat.order(item, 0, measured) == repeat.Order(1, [], 0)
  item, measured = an_item((1.0, 1, 1))
  assert repeat.order(item, 0, measured) == repeat.Order(0, [], 0)
  assert repeat.sentences(item, measured) == []
  assert repeat.table(item, measured)[1] == {
    "row": "b",
    "first, published": "1.00",
    "first, measured": "-",
    "second, published": "1",
    "second, measured": "-",
    "parameters, measured": "-",
  }


def test_an_ablation_stands_beside_the_published_rows(
  data_dir, tmp_path, trained
):
  """In the paper's order, with the range of the seeds; nothing trains twice."""
  trained.save_pictures()
  trained.loss = lambda config: (
    3.0 + config.seed / 10 - 0.5 * (config.train.mem_len > 0)
  )
  rows = config_of("table10", ":small").analysis.rows
  updates = {
    "analysis.paper": "table10",
    "analysis.rows": rows[::-1],  # Those of the paper are in its order.
    "analysis.seeds": (0, 1),
    "analysis.split": "test",
    "analysis.attention_lens": (4,),
  }
  config = corpus.config(data_dir, **runs.COMPARED | updates)
  result = repeat.run(config, str(tmp_path))
  names = [row["variant"] for row in result["rows"]]
  assert names == [row.variant for row in published.ITEMS["table10"].rows]
  first = result["rows"][0]
  assert first["published"]["PPL init"] == 27.02
  assert first["measured"]["PPL init"] == pytest.approx(np.exp(2.55))
  assert first["low"] == pytest.approx(np.exp(2.5))
  assert first["high"] == pytest.approx(np.exp(2.6))
  # Recurrence is better by far here, and the losses are not told apart. The
  # paper has one row without recurrence before one with it.
  order = result["order"]["PPL init"]
  assert (order["same"], order["equal"]) == (3, 2)
  assert order["against"] == [("recurrent, half loss", "no recurrence")]

  folder = tmp_path / "results"
  saved = json.loads((folder / "table10.json").read_text())
  assert saved == json.loads(json.dumps(result))
  text = (folder / "table10.md").read_text()
  assert "| recurrent | 27.02 | 12.81 (12.18 to 13.46) | 26.77 |" in text
  assert (folder / "table10.png").stat().st_size > 1000
  assert {path.split("models")[1][:5] for path in trained} == {"/tiny"}
  count = len(trained)
  repeat.run(config, str(tmp_path))
  assert len(trained) == count


def test_bits_and_perplexities_are_those_of_the_loss(
  data_dir, tmp_path, trained
):
  trained.loss = lambda config: 2 * math.log(2)
  for name, unit, value in (
    ("table3", published.BITS, 2.0),
    ("table7", published.PERPLEXITY, 4.0),
  ):
    (row, *_) = [row for row in published.ITEMS[name].rows if row.variant]
    updates = {
      "analysis.paper": name,
      "analysis.variants": (f"{row.variant}: ",),
    }
    config = corpus.config(data_dir, **runs.COMPARED | updates)
    result = repeat.run(config, str(tmp_path / name))
    (found,) = [each for each in result["rows"] if each["measured"]]
    assert found["measured"] == {unit: pytest.approx(value)}


@pytest.mark.rest
def test_contexts_are_compared_within_the_groups_of_the_paper(
  data_dir, tmp_path
):
  """Real training of three models, of which two are in a group."""
  updates = {
    "analysis.paper": "table8",
    "analysis.rows": ("recurrent-relative-all", "segment-relative-all"),
    "analysis.variants": ("larger: model.ff_dim=24",),
    "analysis.contexts": (2, 8, 2),
    "analysis.num_tokens": 20,
    "analysis.seeds": (0, 1),
    "analysis.split": "test",
    "eval.split": "test",
  }
  config = corpus.config(data_dir, **runs.COMPARED | updates)
  repeat.check(config, str(tmp_path))
  result = repeat.run(config, str(tmp_path))
  assert result["seeds"] == [0]
  assert [*result["details"]] == ["151M", "128M"]
  by_variant = {row["variant"]: row for row in result["rows"]}
  models = result["details"]["128M"]["models"]
  assert len(models) == 2
  for index, name in enumerate(updates["analysis.rows"]):
    lengths = [
      each["recl"][index] for each in result["details"]["128M"]["recl"]
    ]
    assert [*by_variant[name]["measured"].values()] == lengths
    assert by_variant[name]["num_parameters"]
  assert by_variant["lstm"]["measured"] == {}
  for picture in ("table8", "table8_128M", "table8_151M"):
    assert (tmp_path / "results" / f"{picture}.png").is_file()


def test_an_item_without_models_is_refused(data_dir, tmp_path):
  updates = {"analysis.paper": "table8", "analysis.rows": ()}
  config = corpus.config(data_dir, **runs.COMPARED | updates)
  with pytest.raises(errors.UserError, match="needs models to train; name an"):
    repeat.check(config, str(tmp_path))


@pytest.mark.parametrize("name", ["table8", "figure5", "appendix_e"])
@pytest.mark.parametrize(
  "rates",
  [
    {"analysis.learning_rates": (1e-3, 4e-3)},
    {"analysis.max_learning_rates": 5},
  ],
)
def test_several_rates_are_refused_where_each_model_is_trained_once(
  data_dir, tmp_path, name, rates
):
  updates = {
    "analysis.paper": name,
    "analysis.rows": ("recurrent-relative-all",),
  }
  config = corpus.config(data_dir, **runs.COMPARED | updates | rates)
  with pytest.raises(errors.UserError, match=f"{name} trains each model once"):
    repeat.check(config, str(tmp_path))


@pytest.mark.rest
def test_a_sample_stands_beside_seed_and_reference(data_dir, tmp_path):
  """Of the model that is trained, with tokens of the test split."""
  updates = {
    "analysis.paper": "appendix_e",
    "analysis.rows": ("recurrent-relative-all",),
    "generate.prompt_split": "test",
    "generate.prompt_len": 12,
    "generate.num_tokens": 9,
    "generate.mem_len": 8,
  }
  config = corpus.config(data_dir, **runs.COMPARED | updates)
  repeat.check(config, str(tmp_path))
  result = repeat.run(config, str(tmp_path))
  found = result["details"]
  assert found["num_prompt_tokens"] == 12
  assert found["num_reference_tokens"] == found["num_tokens"] == 9
  text = (tmp_path / "results" / "appendix_e.md").read_text()
  assert text.startswith("| seed | sample | reference |\n")


def test_texts_of_several_lines_are_cells_of_a_table():
  assert repeat._in_a_cell("a|b\n <c>\n") == r"a\|b<br> &lt;c&gt;"
