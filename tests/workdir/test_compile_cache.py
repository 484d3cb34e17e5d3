"""Compiled programs are shared only where nobody else can write them."""

import os

import pytest

from transformer_xl.workdir import compile_cache


@pytest.mark.parametrize(
  ("mode", "is_shared"), [(0o755, True), (0o775, True), (0o1777, False)]
)
def test_runs_share_compiled_programs_only_where_nobody_else_writes(
  tmp_path, mode, is_shared
):
  parent = tmp_path / "parent"
  parent.mkdir()
  parent.chmod(mode)
  for workdir in (parent / "run", parent / "new" / "run"):
    found = compile_cache.folder(str(workdir))
    expected = workdir.parent if is_shared else workdir
    assert found == str(expected / ".jax_cache")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_compiled_programs_of_another_user_are_not_run(tmp_path):
  os.chown(tmp_path, 12345, -1)
  found = compile_cache.folder(str(tmp_path / "run"))
  assert found == str(tmp_path / "run" / ".jax_cache")
