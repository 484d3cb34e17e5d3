"""Words of real text for synthetic tasks.

The text is the language reference that comes with Python (`pydoc_data`), or
that of `--source`. So it depends on the version of Python, or on the source.
"""

import collections
import re
from pydoc_data import topics

from transformer_xl import errors
from transformer_xl.data_prep.synthetic import task

FEWEST = 1000
_WORD = re.compile(r"[a-z]+")


def words(text: str | None, *, num_words: int) -> list[str]:
  """The words of a text, or of the language reference if there is none.

  Letters are in lower case, with a filler in the place of all but the
  `num_words` most frequent words.

  Raises:
    UserError: the text has too few words.
  """
  if text is None:
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
  found = _WORD.findall(text.lower())
  if len(found) < FEWEST:
    raise errors.UserError(
      f"--source has {len(found)} words of letters a to z; a task with prose "
      f"needs at least {FEWEST}."
    )
  counts = collections.Counter(found)
  kept = {word for word, _ in counts.most_common(num_words)}
  return [word if word in kept else task.FILLER for word in found]
