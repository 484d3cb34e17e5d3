"""Prints the site's llms.txt: what there is, for programs that read it.

The form is that of https://llmstxt.org: a title, a summary, and a list of pages
under each heading of the navigation, with the first sentence of each.
"""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def text() -> str:
  """The file, from the navigation in index.md and the pages it names."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
  lines = [
    "# Transformer-XL in JAX/Flax",
    "",
    f"> {project['project']['description']}",
  ]
  index = (ROOT / "index.md").read_text("utf-8")
  for heading, names in re.findall(
    r"```\{toctree\}\n:caption: (.*?)\n:hidden:\n(.*?)```", index, re.DOTALL
  ):
    lines += ["", f"## {heading}", ""]
    lines += map(_entry, names.split())
  return "\n".join(lines) + "\n"


def _entry(name: str) -> str:
  """A line on one page: a link to it, its title and its first sentence."""
  path = ROOT / f"{name}.md"
  if not path.exists():
    return f"- [{name.rpartition('/')[2]}]({name}.html): a notebook"
  page = path.read_text("utf-8")
  title = re.search(r"^# (.+)$", page, re.MULTILINE)
  assert title, name
  rest = page[title.end() :]
  # The first paragraph of words, without the marks of Markdown.
  paragraphs = re.split(r"\n\s*\n", rest)
  first = next(
    one for one in paragraphs if re.match(r"\s*(?!```)[A-Z`\[*]", one)
  )
  plain = re.sub(r"\[(.*?)\]\(.*?\)|[*`]", r"\1", " ".join(first.split()))
  sentence = re.match(r".*?[.:](?= |$)", plain)
  summary = sentence[0].rstrip(".:") if sentence else plain
  return f"- [{title[1]}]({name}.html): {summary}"


if __name__ == "__main__":
  print(text(), end="")
