"""What happens to the files of a run between two processes."""

import functools
import logging
import pathlib
import random
import shutil

import pytest

from tests import corpus
from tests.faults import victim
from tests.workdir import test_checkpoint
from transformer_xl import signals

pytestmark = pytest.mark.slow


def truncate(path, generator):
  content = path.read_bytes()
  path.write_bytes(content[: generator.randrange(len(content))])


def flip_a_bit(path, generator):
  content = bytearray(path.read_bytes())
  content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
  path.write_bytes(content)


def zero(path, generator):
  path.write_bytes(bytes(path.stat().st_size))


def delete(path, generator):
  path.unlink()


def one_file(harm, folder, generator):
  """Harms a file; those with more bytes are met more often."""
  files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
  sizes = [path.stat().st_size for path in files]
  harm(generator.choices(files, sizes)[0], generator)


def delete_half(folder, generator):
  for path in sorted(folder.rglob("*")):
    if path.is_file() and generator.random() < 0.5:
      path.unlink()


def delete_an_item(folder, generator):
  items = [p for p in sorted(folder.iterdir()) if p.is_dir()]
  shutil.rmtree(generator.choice(items))


def empty(folder, generator):
  shutil.rmtree(folder)
  folder.mkdir()


def replace_by_a_file(folder, generator):
  shutil.rmtree(folder)
  folder.write_text("no checkpoint")


HARMS = {
  "a file truncated": functools.partial(one_file, truncate),
  "a bit flipped": functools.partial(one_file, flip_a_bit),
  "a file of zeros": functools.partial(one_file, zero),
  "a file deleted": functools.partial(one_file, delete),
  "half of its files deleted": delete_half,
  "an item deleted": delete_an_item,
  "emptied": empty,
  "replaced by a file": replace_by_a_file,
}
COUNTS = {"a bit flipped": 6, "a file truncated": 3, "a file deleted": 3}


@pytest.fixture(scope="module")
def half(bench, tmp_path_factory):
  """A workdir that was stopped after two saves or more."""
  workdir = tmp_path_factory.mktemp("half") / "run"
  process = bench.start(workdir)
  process.wait_for("after saving", 4)
  process.hit(victim.SIGTERM)
  assert process.end() == signals.TERMINATED
  assert len(victim.steps(workdir)) >= 2
  return workdir


@pytest.mark.faults
@pytest.mark.parametrize(
  ("harm", "seed"),
  [(harm, seed) for harm in HARMS for seed in range(COUNTS.get(harm, 1))],
)
def test_a_damaged_checkpoint(bench, half, tmp_path, trying, harm, seed):
  """It goes on from this one if nothing is lost, or from the one before."""
  workdir = tmp_path / "run"
  shutil.copytree(half, workdir)
  *_, before, newest = victim.steps(workdir)
  folder = workdir / "checkpoints" / str(newest)
  with trying(f"newest checkpoint: {harm}"):
    HARMS[harm](folder, random.Random(f"{harm} {seed}"))
    says = bench.finish(workdir)
    assert any(f"Resuming after step {s}." in says for s in (before, newest))
    bench.assert_whole(workdir)


def flip_and_restore(folder, source, state, seed):
  """Whether a flipped bit is noticed or did no harm."""
  shutil.copytree(source, folder)
  step = folder / "checkpoints" / "6"
  one_file(flip_a_bit, step, random.Random(seed))
  restored = test_checkpoint.restore(folder, state)
  step = int(restored.state.step)
  test_checkpoint.assert_same(restored.state, test_checkpoint.make_state(step))
  value = float(step)
  memory = test_checkpoint.make_memory(value=value)
  test_checkpoint.assert_same(restored.memory, memory)
  assert restored.metadata.log_window == {"nll": 0.1 + step}
  shutil.rmtree(folder)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  folder = tmp_path_factory.mktemp("flips") / "run"
  states = [test_checkpoint.make_state(3), test_checkpoint.make_state(6)]
  test_checkpoint.save(folder, states)
  return folder


@pytest.mark.parametrize(
  ("first", "count"),
  [(0, 8), pytest.param(8, 92, marks=pytest.mark.faults)],
)
def test_flipped_bits_of_a_checkpoint(
  saved, tmp_path, trying, caplog, first, count
):
  caplog.set_level(logging.CRITICAL, logger="absl")
  state = test_checkpoint.make_state(0)
  for seed in range(first, first + count):
    with trying("checkpoint restored after a flipped bit"):
      flip_and_restore(tmp_path / f"{seed}", saved, state, seed)


@pytest.mark.faults
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
@pytest.mark.parametrize("harm", [truncate, delete])
def test_damaged_files_beside_the_checkpoints(
  bench, half, tmp_path, trying, harm, name
):
  workdir = tmp_path / "run"
  shutil.copytree(half, workdir)
  lines = victim.lines_so_far(workdir)
  with trying(f"{name}: {harm.__name__}d"):
    harm(workdir / name, random.Random(3))
    kept = victim.lines_so_far(workdir)
    bench.finish(workdir)
    # What was deleted of the log is gone; the rest is as it would be.
    expected = kept + bench.lines[len(lines) :]
    assert victim.lines_so_far(workdir) == expected
    assert victim.steps(workdir)[-1] == victim.STEPS


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2))
def test_damaged_compiled_programs(bench, half, tmp_path, trying, seed):
  workdir, cache = tmp_path / "run", tmp_path / "cache"
  shutil.copytree(half, workdir)
  shutil.copytree(bench.cache, cache)
  generator = random.Random(seed)
  with trying("compiled programs truncated, as by a kill while they are kept"):
    for path in sorted(cache.iterdir()):
      if generator.random() < 0.5 and path.is_file():
        truncate(path, generator)
    bench.assert_continues(workdir, cache=cache)


def change_a_token(folder):
  path = folder / "train.npy"
  content = bytearray(path.read_bytes())
  content[-100] ^= 1
  path.write_bytes(content)
  return "it was changed"


def shorten(folder):
  path = folder / "train.npy"
  path.write_bytes(path.read_bytes()[:-50])
  return "is truncated"


def lengthen(folder):
  path = folder / "valid.npy"
  path.write_bytes(path.read_bytes() + b"more")
  return "it was changed"


def prepare_other_text(folder):
  shutil.rmtree(folder)
  tokens = dict(corpus.TOKENS)
  corpus.TOKENS["train"] += 1
  try:
    corpus.write(folder.parent)
  finally:
    corpus.TOKENS.update(tokens)
  return "is not the one that this run was trained on"


@pytest.mark.faults
@pytest.mark.parametrize(
  "harm", [change_a_token, shorten, lengthen, prepare_other_text]
)
def test_a_changed_text(bench, half, tmp_path, trying, harm):
  """It is refused in one line; the run goes on when the text is back."""
  workdir, text = tmp_path / "run", tmp_path / "data"
  shutil.copytree(half, workdir)
  shutil.copytree(bench.data_dir, text)
  flag = f"--config.data.dir={text}"
  with trying(f"token file: {harm.__name__.replace('_', ' ')}"):
    expected = harm(pathlib.Path(text) / corpus.NAME)
    process = bench.start(workdir, flag)
    assert process.end() == 2
    (line,) = process.says().splitlines()[-1:]
    assert line.startswith("error: ")
    assert expected in line
    bench.assert_continues(workdir)
