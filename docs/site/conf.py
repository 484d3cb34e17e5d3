"""How Sphinx makes the documentation site; `make site` runs it."""

import json
import pathlib

from sphinx import application

project = "Transformer-XL in JAX/Flax"
author = "The transformer_xl authors"  # As in pyproject.toml.
html_title = project
html_theme = "sphinx_book_theme"
html_theme_options = {
  "navbar_persistent": [],  # The search field is above the navigation.
  "use_download_button": False,
  "use_fullscreen_button": False,
}
html_context = {"default_mode": "auto"}
html_css_files = ["narrow.css"]
html_js_files = ["excerpts.js"]
html_static_path = ["static"]
html_copy_source = False
html_use_index = False

# The sources are those of the repository, so that a link to a file outside of
# docs/ is the same on the site and in a checkout. README.md is a part of
# index.md.
include_patterns = [
  "index.md",
  "CONTRIBUTING.md",
  "SECURITY.md",
  "CHANGELOG.md",
  "deploy/README.md",
  "docs/**",
]

extensions = ["myst_nb", "sphinx.ext.napoleon", "autoapi.extension"]
# A link may go to any heading that a page has.
myst_heading_anchors = 4
# The notebook is kept with its outputs.
nb_execution_mode = "off"
# Examples without a language are shell commands and what they print.
highlight_language = "text"

# Docstrings are read from the sources, so Sphinx needs no JAX. They
# write code in single backticks.
default_role = "code"
napoleon_use_ivar = True
# One parameter a line where a signature is long.
python_maximum_signature_line_length = 60
autoapi_dirs = ["transformer_xl"]
# It does not follow the links to experiments/ and data_prep/.
suppress_warnings = ["autoapi.python_import_resolution"]
autodoc_member_order = "bysource"
# What every class of the API pages shows; setup is part of Flax.
autodoc_default_options = {"members": True, "exclude-members": "setup"}
toc_object_entries_show_parents = "hide"
autoapi_generate_api_docs = False
autoapi_add_toctree_entry = False
autoapi_keep_files = False


def setup(app: application.Sphinx) -> None:
  """Fills the page of all fields, and keeps pages for search on a disk."""
  tables = pathlib.Path(app.srcdir, "build/fields.md")
  pages: dict[str, str] = {}

  def fill(app: application.Sphinx, page: str, source: list[str]) -> None:
    if page == "docs/fields":
      source[0] = source[0].replace(
        "<!-- fields -->", tables.read_text("utf-8")
      )

  def keep(
    app: application.Sphinx,
    page: str,
    template: str,
    context: dict[str, str],
    doctree: object,
  ) -> None:
    if doctree is not None:
      pages[page] = f'<div role="main">{context["body"]}</div>'

  def write(app: application.Sphinx, error: Exception | None) -> None:
    if error is None:
      script = pathlib.Path(app.outdir, "_static/pages.js")
      script.write_text(f"const PAGES = {json.dumps(pages)};\n", "utf-8")

  app.connect("source-read", fill)
  app.connect("html-page-context", keep)
  app.connect("build-finished", write)
