"""The example files of docs/extend.md, for tests that use them as they are."""

import functools
import pathlib
import re
import tempfile

PAGE = pathlib.Path(__file__).parents[1] / "docs/extend.md"
FOLDER = pathlib.Path(__file__).parents[1] / "docs/extensions"
_FILES = re.compile(r"`(my_\w+\.py)`[^`]*:\n\n```python\n(.*?)```", re.DOTALL)


def files() -> dict[str, str]:
  """The text of each file that the page shows or links to, by its name."""
  shown = dict(_FILES.findall(PAGE.read_text("utf-8")))
  linked = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.py")}
  return shown | linked


def fields() -> set[str]:
  """Paths of the fields that they declare, such as `model.ema.decay`."""
  result = set()
  for text in files().values():
    for kind, name, rest in re.findall(
      r"@extend\.(\w+)\(\"(\w+)\"\)\n(class .*?)(?=\n\n\n|\Z)", text, re.DOTALL
    ):
      section = "model" if kind in ("mixer", "encoding") else "train"
      declared = re.findall(r"^    (\w+): \w+ = extend\.field", rest, re.M)
      result |= {f"{section}.{name}.{field}" for field in declared}
  return result


@functools.cache
def folder() -> pathlib.Path:
  """A folder with the files, for the rest of the process."""
  result = tempfile.TemporaryDirectory()
  _kept.append(result)
  path = pathlib.Path(result.name)
  for name, text in files().items():
    (path / name).write_text(text)
  return path


_kept: list[tempfile.TemporaryDirectory] = []
