"""Checks that search of the site finds pages in the words of users.

`make site` runs it in the environment of Sphinx, whose stemmer the index uses.
"""

import json
import pathlib
import sys

from sphinx.search import en

# What people type, and a page that is to be among the results.
QUERIES = {
  "NaN": "docs/questions",
  "out of memory": "docs/questions",
  "OOM": "docs/questions",
  "several GPUs": "docs/questions",
  "multi-GPU": "docs/questions",
  "LoRA": "docs/questions",
  "serve": "docs/questions",
  "vLLM": "docs/questions",
  "sentence embeddings": "docs/questions",
  "resume other settings": "docs/questions",
  "loss lower paper": "docs/questions",
  "overfitting": "docs/questions",
  "gradient accumulation": "docs/questions",
  "early stopping": "docs/questions",
  "learning_rate": "docs/fields",
  "segment_len_std": "docs/fields",
  "position_scale": "docs/fields",
}


def found(index: dict[str, object], query: str) -> list[str]:
  """The pages that have all words of a query, in titles or in text."""
  language = en.SearchEnglish({})
  words = [language.stem(word.lower()) for word in language.split(query)]
  pages = set(index["docnames"])
  for word in words:
    if word in language.stopwords:
      continue
    having = set()
    for table in (index["terms"], index["titleterms"]):
      numbers = table.get(word, [])
      numbers = numbers if isinstance(numbers, list) else [numbers]
      having |= {index["docnames"][number] for number in numbers}
    pages &= having
  return sorted(pages)


def main() -> None:
  """Ends with a line for each query that misses its page."""
  text = pathlib.Path(sys.argv[1], "searchindex.js").read_text("utf-8")
  index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
  missing = [
    f"search for {query!r} does not find {page}"
    for query, page in QUERIES.items()
    if page not in found(index, query)
  ]
  if missing:
    sys.exit("\n".join(missing))


if __name__ == "__main__":
  main()
