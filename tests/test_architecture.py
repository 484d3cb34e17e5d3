"""The rooms of the package, read from its imports and its folders.

A room is a sub-package of transformer_xl/. It imports only rooms below it, at
the top of a module or inside a function; `main` alone may load rooms by name.
All checks read source files; nothing is imported here.
"""

import ast
import functools
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = "transformer_xl"
# The faces of the package, to shells, to Python and to extensions. They are no
# folders.
FACES = ("main", "pretrained", "extend")
# From the top to the bottom.
ROOMS = (
  *("main", "report", "analysis", "integrations", "pretrained", "extend"),
  *("importers", "check", "planning", "conformance", "text", "training"),
  *("evaluation", "workdir", "model", "data", "config", "formats"),
)
GROUND_FLOOR = (
  *(
    "arguments",
    "command_line",
    "errors",
    "hardware",
    "log_lines",
    "mesh",
  ),
  *("mesh_axes", "processes", "shapes", "signals", "storage"),
)
OUTSIDE = ("data_prep", "experiments", "benchmarks", "examples", "tests")
# The registry lists datasets and tasks by name, beside the parts of the model,
# and imports what is asked for. `main` prepares data and reads experiments;
# `--published` of the importers compares a checkpoint with the experiment of
# its name; the check times some.
MAY_GO_OUTSIDE = {
  f"{PACKAGE}.config.registry": ("data_prep",),
  f"{PACKAGE}.extend": ("data_prep",),
  f"{PACKAGE}.main": ("data_prep", "experiments"),
  f"{PACKAGE}.importers.import_run": ("experiments",),
  f"{PACKAGE}.check.speed": ("experiments",),
}
# Libraries that training never needs, or only when it writes its events.
NOT_FOR_TRAINING = (
  *("bokeh", "huggingface_hub", "jinja2", "matplotlib", "pyarrow"),
  *("safetensors", "tensorboardX"),
  *("tensorflow_datasets", "tokenizers"),
)
# Tests that concern no single room of the package.
OTHER_TESTS = (
  *("benchmarks", "data_prep", "deploy", "docs", "examples", "experiments"),
  *("faults", "fuzz", "mutants", "parity"),
)


def module_name(path, root):
  parts = path.relative_to(root).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_ours(path, root):
  """Whether a file of the package's folder is no link to one outside it."""
  return path.resolve().is_relative_to((root / PACKAGE).resolve())


def modules(root):
  """Path of every module of the package by its dotted name."""
  paths = (
    p for p in sorted((root / PACKAGE).rglob("*.py")) if is_ours(p, root)
  )
  return {module_name(path, root): path for path in paths}


@functools.cache  # Several tests read every module.
def tree_of(path):
  return ast.parse(path.read_text("utf-8"))


def imported(path, name, *, only_at_once=False):
  """Dotted names that a module imports, also inside functions.

  Modules that are loaded by a name count, if the name starts as a literal.
  With `only_at_once`, what functions import is left out.
  """
  package = name if path.name == "__init__.py" else name.rpartition(".")[0]
  tree = tree_of(path)
  for node in tree.body if only_at_once else ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      above = package.split(".")
      above = above[: len(above) - node.level + 1] if node.level else []
      base = ".".join([*above, *filter(None, [node.module])])
      yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and _is_name_outside(node.value):
      yield node.value


def _is_name_outside(value):
  """Whether a literal is, or begins, the dotted name of a module outside."""
  return isinstance(value, str) and bool(
    re.match(rf"({'|'.join(OUTSIDE)})\.\w*$", value)
  )


def floor(name):
  """Height of a module: 0 for the ground floor, the most for `main`."""
  parts = name.split(".")
  room = parts[1] if len(parts) > 1 else FACES[0]
  if room in GROUND_FLOOR:
    return 0
  return len(ROOMS) - ROOMS.index(room)


def is_known(name):
  parts = name.split(".")
  return len(parts) > 1 and parts[1] in (*ROOMS, *GROUND_FLOOR)


def turned_arrows(root):
  """Imports that go up, or out of the package."""
  wrong = []
  for name, path in modules(root).items():
    for target in imported(path, name):
      top, _, inner = target.partition(".")
      if top == PACKAGE and inner.partition(".")[0] in OUTSIDE:
        top = inner.partition(".")[0]  # By the link to it.
      goes_out = top in OUTSIDE and top not in MAY_GO_OUTSIDE.get(name, ())
      goes_up = (
        top == PACKAGE and is_known(target) and floor(target) > floor(name)
      )
      if goes_out or goes_up:
        wrong.append(f"{name} -> {target}")
  return wrong


def libraries(root, name):
  """Libraries that are imported at once when a module is imported."""
  known, found, waiting, seen = modules(root), set(), [name], set()
  while waiting:
    module = waiting.pop()
    if module in seen:
      continue
    seen.add(module)
    for target in imported(known[module], module, only_at_once=True):
      inner = [
        part for part in (target, target.rpartition(".")[0]) if part in known
      ]
      waiting += inner
      found |= set() if inner else {target.partition(".")[0]}
  return found


def flat_modules(root):
  """Modules that lie in the package itself and are not of the ground floor."""
  allowed = {"__init__", *FACES, *GROUND_FLOOR}
  return sorted(
    path.name
    for path in (root / PACKAGE).glob("*.py")
    if path.stem not in allowed
  )


def unknown_rooms(root):
  """Folders of the package without a place in the order of rooms."""
  paths = (root / PACKAGE).glob("*/*.py")
  folders = {path.parent.name for path in paths if is_ours(path, root)}
  return sorted(folders - {*ROOMS, "processes"})  # On the ground floor.


def stray_tests(root):
  """Test files in a folder that is neither a room nor named above."""
  wrong = []
  for path in sorted((root / "tests").rglob("test_*.py")):
    folder = path.relative_to(root / "tests").parent
    if not folder.parts or str(folder) in OTHER_TESTS:
      continue
    is_room = folder.parts[0] in ROOMS and (root / PACKAGE / folder).is_dir()
    if not is_room:
      wrong.append(str(path.relative_to(root)))
  return wrong


def test_every_import_goes_down():
  assert turned_arrows(ROOT) == []


def test_no_module_reaches_itself_through_its_imports():
  known = modules(ROOT)
  graph = {
    name: {
      module
      for target in imported(path, name)
      for module in (target, target.rpartition(".")[0])
      if module in known and module != name and "." in module
    }
    for name, path in known.items()
  }
  assert len(list(graphlib.TopologicalSorter(graph).static_order())) > 90


def test_training_starts_without_the_libraries_of_other_rooms():
  found = libraries(ROOT, f"{PACKAGE}.training.loop")
  assert found >= {"jax", "flax", "optax", "orbax"}
  assert not found & set(NOT_FOR_TRAINING)
  assert "matplotlib" in libraries(ROOT, f"{PACKAGE}.analysis.recl")


def test_the_package_has_rooms_and_a_ground_floor():
  assert flat_modules(ROOT) == []
  assert unknown_rooms(ROOT) == []
  for name in (*FACES, *GROUND_FLOOR):
    path = ROOT / PACKAGE / name
    assert path.is_dir() or path.with_suffix(".py").exists(), name


def test_tests_mirror_the_package():
  assert stray_tests(ROOT) == []
  rooms = set(ROOMS) - set(FACES)
  assert all((ROOT / "tests" / name).is_dir() for name in rooms)


def named(path):
  """Words of a file's strings and identifiers, docstrings left out."""
  tree = ast.parse(path.read_text("utf-8"))
  texts = [ast.get_docstring(tree, clean=False)]
  for node in ast.walk(tree):
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
      texts.append(ast.get_docstring(node, clean=False))
  docstrings = set(filter(None, texts))
  for node in ast.walk(tree):
    if isinstance(node, ast.Constant) and node.value not in docstrings:
      yield from re.findall(r"\w+", str(node.value))
    for field in ("id", "attr", "name", "arg", "module"):
      value = getattr(node, field, None)
      if isinstance(value, str):
        yield from value.split(".")


def test_only_its_own_tests_know_a_mixer_or_an_encoding_by_name():
  """Others ask `tests/kinds.py`. The usual ones are words of other things."""
  usual = ("attention", "relative", "relative_tied", "absolute", "none")
  names = {
    name
    for folder in ("mixers", "encodings")
    for path in (ROOT / PACKAGE / "model" / folder).glob("*.py")
    for name in re.findall(r'register\("(\w+)"\)', path.read_text("utf-8"))
    if name not in ("name", *usual)
  }
  assert len(names) > 8
  found = {name: [] for name in names}
  for path in sorted((ROOT / "tests").rglob("*.py")):
    text = path.read_text("utf-8").lower()
    if any(name in text for name in names):  # Parsing takes longer.
      for name in names.intersection(named(path)):
        found[name].append(path.relative_to(ROOT).as_posix())
  too_many = {name: paths for name, paths in found.items() if len(paths) > 4}
  assert not too_many


def write(root, files):
  for name, text in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


GOOD = {
  "transformer_xl/__init__.py": '"""A package."""\n',
  "transformer_xl/main.py": "from transformer_xl.experiments import base\n",
  "transformer_xl/mesh.py": "from transformer_xl import errors\n",
  "transformer_xl/errors.py": "import os\n",
  "transformer_xl/data/streams.py": "from transformer_xl.config import load\n",
  "transformer_xl/config/load.py": "from transformer_xl import mesh\n",
  "tests/data/test_streams.py": "",
  "tests/parity/test_oracle.py": "",
}
TURNED = {
  "from": "from transformer_xl.data import streams\n",
  "import": "import transformer_xl.data.streams\n",
  "symbol": "from transformer_xl.data.streams import open\n",
  "late": "def f():\n  from transformer_xl.data import streams\n",
  "relative": "from ..data import streams\n",
  "relative name": "from .. import data\n",
  "guarded": "if True:\n  import transformer_xl.training.loop\n",
  "out": "def f():\n  import data_prep.main\n",
  "out by the link": "from transformer_xl.data_prep import main\n",
  "benchmark": "from benchmarks import ours\n",
  "out by name": 'import importlib\nx = f"experiments.{__name__}"\n',
  "main": "from transformer_xl import main\n",
}


def test_a_tree_with_every_arrow_downwards_is_right(tmp_path):
  write(tmp_path, GOOD)
  assert turned_arrows(tmp_path) == []
  assert flat_modules(tmp_path) == unknown_rooms(tmp_path) == []
  assert stray_tests(tmp_path) == []


@pytest.mark.parametrize("text", TURNED.values(), ids=TURNED)
def test_a_turned_arrow_is_found(tmp_path, text):
  write(tmp_path, GOOD | {"transformer_xl/config/load.py": text})
  (arrow,) = turned_arrows(tmp_path)
  assert arrow.startswith("transformer_xl.config.load -> ")


def test_the_ground_floor_imports_no_room(tmp_path):
  text = "from transformer_xl.formats import crc32c\n"
  write(tmp_path, GOOD | {"transformer_xl/mesh.py": text})
  (arrow,) = turned_arrows(tmp_path)
  assert arrow == "transformer_xl.mesh -> transformer_xl.formats.crc32c"


def test_what_lies_elsewhere_is_found(tmp_path):
  extra = {
    "transformer_xl/utils.py": "",
    "transformer_xl/cellar/x.py": "",
    "tests/cellar/test_x.py": "",
  }
  write(tmp_path, GOOD | extra)
  assert flat_modules(tmp_path) == ["utils.py"]
  assert unknown_rooms(tmp_path) == ["cellar"]
  assert stray_tests(tmp_path) == ["tests/cellar/test_x.py"]


@pytest.mark.parametrize("folder", ["data_prep", "experiments"])
def test_folders_beside_the_package_are_imported_through_it(folder):
  """An installation has no other name for them."""
  for path in (ROOT / folder).rglob("*.py"):
    name = module_name(path, ROOT)
    tops = {target.partition(".")[0] for target in imported(path, name)}
    assert not tops & {*OUTSIDE}, path
