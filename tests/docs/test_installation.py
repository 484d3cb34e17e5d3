"""One form of installation everywhere, and every extra that is named exists."""

import json
import pathlib
import re
import tomllib

from transformer_xl import errors

ROOT = pathlib.Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
  "optional-dependencies"
]
# The package is on no index: it is installed from a checkout, or by an address.
FORM = re.compile(
  r"pip install --constraint requirements\.lock -e "
  r"""(\.|(['\"])\.\[([\w,-]+)\]\2)(?=[\s`'"]|$)"""
)
BY_ADDRESS = re.compile(r'pip install --quiet "transformer-xl\[(\w+)\] @ git\+')


def pages():
  """The text of each page, and of the cells of the notebook."""
  for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
    yield path, path.read_text("utf-8")
  notebook = ROOT / "docs/tour.ipynb"
  cells = json.loads(notebook.read_text("utf-8"))["cells"]
  yield notebook, "\n".join("".join(cell["source"]) for cell in cells)


def test_pages_install_the_package_in_one_form():
  found = []
  for path, text in pages():
    for match in re.finditer(r"pip install[^\n]*", text):
      if "transformer-xl" in match[0] or " -e " in match[0] or ".[" in match[0]:
        form = FORM.match(match[0]) or BY_ADDRESS.match(match[0])
        assert form, (path, match[0])
        named = re.search(r"\[([\w,-]+)\]", form[0])
        found += named[1].split(",") if named else []
  assert {"cuda", "lm-eval", "stablehlo", "tpu", "wandb"} <= {*found}
  assert {*found} <= EXTRAS.keys()


def test_errors_install_extras_in_this_form():
  code = "".join(
    path.read_text("utf-8")
    for folder in ("transformer_xl", "data_prep")
    for path in (ROOT / folder).rglob("*.py")
  )
  assert len(re.findall(r"pip install", code)) == 1  # That of `install`.
  named = re.findall(r"errors\.install\('([\w-]+)'\)", code)
  assert {"cuda", "lm-eval", "stablehlo", "tpu", "wandb"} == {*named}
  for extra in [*named, "gcs"]:
    assert extra in EXTRAS
    assert FORM.fullmatch(errors.install(extra))
