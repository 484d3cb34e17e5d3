"""Compiled programs are kept where nobody else can write."""

import os
import subprocess
import sys

import jax
import pytest

from transformer_xl.workdir import compile_cache


@pytest.fixture
def path(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  return tmp_path / "transformer_xl" / "compiled"


def test_compiled_programs_are_in_a_folder_of_this_user_alone(path):
  assert compile_cache.folder() == str(path)
  assert path.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_used(path):
  path.mkdir(parents=True)
  path.chmod(0o1777)
  assert compile_cache.folder() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_compiled_programs_of_another_user_are_not_run(path):
  path.mkdir(parents=True)
  path.chmod(0o700)
  os.chown(path, 12345, -1)
  assert compile_cache.folder() is None


def test_a_command_runs_without_a_home_that_it_can_write_to(path):
  path.parent.write_text("a file")
  assert compile_cache.folder() is None


def test_programs_that_compile_in_no_time_are_kept(path):
  program = (
    "from transformer_xl.workdir import compile_cache; compile_cache.use(); "
    "import jax; jax.jit(lambda number: number + 1)(1)"
  )
  subprocess.run([sys.executable, "-c", program], check=True)
  assert any(path.iterdir())


@pytest.mark.parametrize("how", ["variable", "python"])
def test_a_folder_that_somebody_has_chosen_stays(path, monkeypatch, how):
  """JAX has read the variable long before; an empty one chooses no folder."""
  name = "jax_compilation_cache_dir"
  before = jax.config.values[name]
  chosen = str(path.parent / "own") if how == "python" else None
  monkeypatch.delenv(name.upper(), raising=False)
  if how == "variable":
    monkeypatch.setenv(name.upper(), "")
  try:
    jax.config.update(name, chosen)
    compile_cache.use()
    assert jax.config.values[name] == chosen
  finally:
    jax.config.update(name, before)
  assert not path.exists()
