"""The page on other libraries says what their adapters printed."""

import pathlib

from benchmarks import conformance_page
from transformer_xl.conformance import kit

ROWS = (
  kit.Row("lanes do not see each other", "passed", difference=0.0),
  kit.Row(
    "a reset of a lane is a fresh start",
    "FAILED",
    "the outputs are not those of a fresh start",
    "lane 1 reset at position 3",
    0.3,
    1e-5,
  ),
  kit.Row("same length limits the window", "not applicable", "no window"),
)


def test_a_table_has_each_layer_and_each_check_that_applies():
  printed = ["one 1.0: nn.A", *map(kit.told, ROWS)]
  printed += ["two 2.0: B", *map(kit.told, (ROWS[0], ROWS[0], ROWS[2]))]
  printed[5] = printed[5].replace(ROWS[0].name, ROWS[1].name)
  found = conformance_page.layers("\n".join(printed))
  text = conformance_page.tables(found)
  assert "| 2 | two 2.0 | `B` | 2 | none |" in text
  assert (
    "| 1 | one 1.0 | `nn.A` | 1 | a reset of a lane is a fresh start: 3.0e-01 "
    "(1.0e-05) lane 1 reset at position 3; the outputs are not those of a "
    "fresh start |"
  ) in text
  assert "| a reset of a lane is a fresh start | ✗ | ✓ |" in text
  assert "same length" not in text


def test_the_page_has_a_row_for_each_adapter():
  page = conformance_page.PAGE.read_text("utf-8")
  rows = page.partition(conformance_page.START)[2]
  folder = pathlib.Path(__file__).parents[2] / "examples/conformance"
  adapters = [path.read_text("utf-8") for path in folder.glob("*.py")]
  names = [
    text.partition("conformance.show(")[2].split('"')[1] for text in adapters
  ]
  assert len(names) >= 9
  for name in names:
    assert f"| {name} " in rows
