"""What holds for every test: strict arrays, checked shapes, cached compiles."""

import collections
import gc
import importlib.metadata
import itertools
import os
import pathlib
import re

# Tests compile much and run little; what XLA makes of the arrays is unchanged,
# only its machine code is less refined. Set before JAX is imported, for the
# processes that tests start, too.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Half of the compile time goes into XLA's newer way of writing loops for a CPU;
# later releases have no other. A caller's setting comes last and so counts.
if importlib.metadata.version("jaxlib").startswith("0.10."):
  os.environ["XLA_FLAGS"] = (
    "--xla_cpu_use_fusion_emitters=false " + os.environ.get("XLA_FLAGS", "")
  )
# A program is not cut into 32 modules for as many threads to compile: cutting
# takes longer than it saves where every core has a worker of its own.
os.environ["XLA_FLAGS"] = (
  "--xla_cpu_parallel_codegen_split_count=1 " + os.environ.get("XLA_FLAGS", "")
)

import hypothesis
import jax
import jaxtyping
import pytest

from tests import emulator
from tests import faulty_server
from transformer_xl import storage

_ROOT = pathlib.Path(__file__).parents[1]
_MIXERS = [
  f"transformer_xl.model.mixers.{path.stem}"
  for path in sorted(_ROOT.glob("transformer_xl/model/mixers/*.py"))
  if path.stem not in ("__init__", "mixer")
]
# Before the first import of the modules that it checks. Only functions on
# arrays are in them: under the hook, annotated fields of `flax.struct` break
# `eval_shape`, whereas those of a NamedTuple do not.
_checks = jaxtyping.install_import_hook(
  [
    "transformer_xl.model.adaptive_softmax",
    "transformer_xl.model.sparse_tails",
    "transformer_xl.model.kernels.xla_attention",
    "transformer_xl.model.dropout",
    "transformer_xl.model.encodings.distances",
    "transformer_xl.model.kernels.dispatch",
    "transformer_xl.model.kernels.xla_ring",
    "transformer_xl.model.block",
    *_MIXERS,
    "transformer_xl.model.network",
    "transformer_xl.model.visibility",
    "transformer_xl.evaluation.dynamic.neural_cache",
  ],
  "beartype.beartype",
)

_CHECKED = [
  pathlib.Path(__file__).parent / name
  for name in ("model", "conformance", "evaluation/dynamic")
]
_CACHE = _ROOT / ".jax_cache"
# Commands keep their compiled programs there, too, not in the user's home.
os.environ["XDG_CACHE_HOME"] = str(_CACHE)
_COUNT = itertools.count(1)  # Counts the tests that this process runs.
_MAPS = pathlib.Path("/proc/self/maps")

storage.configure()  # As every command does.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# The same examples on each run, however slow the machine.
hypothesis.settings.register_profile(
  "tests", deadline=None, derandomize=True, max_examples=50, database=None
)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser):
  parser.addoption(
    "--whole",
    action="store_true",
    help="try all parameters of tests that are marked `some`",
  )
  parser.addoption(
    "--every",
    type=int,
    default=1,
    help="of the tests that are left, run every Nth",
  )
  parser.addoption(
    "--part",
    type=int,
    default=0,
    help="of those parts, the one to run; counted on beyond N",
  )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
  """Slow files come first, so that at the end no worker is left with one."""
  _refuse_names_of_sets(items)
  if not config.getoption("whole"):
    _leave_to_the_rest(items)
  result = yield  # The markers choose.
  slow = {item.path for item in items if item.get_closest_marker("slow")}
  items.sort(key=lambda item: item.path not in slow)
  every = config.getoption("every")
  first = config.getoption("part") % every
  chosen = items[first::every]
  if len(chosen) < len(items):
    left_out = [item for i, item in enumerate(items) if i % every != first]
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen
  return result


def _leave_to_the_rest(items):
  """Marks parameters of tests that are marked `some(count)` as `rest`.

  `count` parameters of each test stay, evenly spread.
  """
  by_test = collections.defaultdict(list)
  for item in items:
    is_some = item.get_closest_marker("some")
    elsewhere = any(map(item.get_closest_marker, ("rest", "combinations")))
    if is_some and not elsewhere:
      by_test[item.nodeid.split("[")[0]].append(item)
  for each in by_test.values():
    (count,) = each[0].get_closest_marker("some").args
    chosen = {i * len(each) // count for i in range(count)}
    for i, item in enumerate(each):
      if i not in chosen:
        item.add_marker(pytest.mark.rest)


def _refuse_names_of_sets(items):
  """A set is written in another order by each worker, which then disagree."""
  for item in items:
    if not hasattr(item, "callspec"):
      continue
    values = item.callspec.params.values()
    has_set = any(isinstance(value, set | frozenset) for value in values)
    if has_set and re.search(r"\{'|set\(\{", item.name):
      raise pytest.UsageError(
        f"{item.nodeid} is named after a set, whose order changes: take a tuple"
      )


def pytest_collection_finish():
  """What is imported stays: a tenth of the time went into looking at it.

  What tracing makes stays as well, mostly, so it is looked at seldom.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup(item):
  """Checks shapes where the model is tested; elsewhere it is traced faster."""
  is_checked = any(map(item.path.is_relative_to, _CHECKED))
  jaxtyping.config.update("jaxtyping_disable", not is_checked)


def pytest_runtest_teardown():
  """Lets compiled programs go before a process has too many of them.

  Each has memory maps of its own, and Linux ends what has more than 65,530. The
  conformance checks alone make that many.
  """
  is_time = next(_COUNT) % 50 == 0 and _MAPS.exists()
  if is_time and len(_MAPS.read_bytes().splitlines()) > 30_000:
    jax.clear_caches()


@pytest.fixture
def strict_dtypes():
  """No implicit promotion; for the model alone, Optax does not hold to it."""
  with jax.numpy_dtype_promotion("strict"):
    yield


@pytest.fixture(scope="session")
def bucket_server(tmp_path_factory):
  """The port of an emulated bucket, which the environment points at."""
  folder = tmp_path_factory.mktemp("bucket")
  with (
    emulator.serving(folder / "log") as port,
    pytest.MonkeyPatch.context() as patch,
  ):
    for name, value in emulator.environment(port).items():
      patch.setenv(name, value)
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    yield port


@pytest.fixture
def bucket(bucket_server, request):
  """The address of a folder that no other test uses."""
  name = re.sub(r"\W+", "-", request.node.nodeid).strip("-")
  return f"{emulator.BUCKET}/{name}"


@pytest.fixture
def faulty(bucket_server, monkeypatch):
  """A server before the bucket, which the environment points at."""
  server = faulty_server.FaultyServer(bucket_server)
  for name, value in emulator.environment(server.port).items():
    monkeypatch.setenv(name, value)
  yield server
  server.refuse()
