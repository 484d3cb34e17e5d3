"""The targets of make, without running them."""

import os
import re
import subprocess

from tests import test_main

MAKEFILE = (test_main.ROOT / "Makefile").read_text()
# What a make that runs the tests hands on to another make.
OUTER = ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


def make(*words, **environment):
  """What make prints, outside of the environment of the tests."""
  outer = {name: os.environ[name] for name in os.environ if name not in OUTER}
  finished = subprocess.run(
    ["make", *words],
    capture_output=True,
    check=True,
    cwd=test_main.ROOT,
    env=outer | environment,
    text=True,
  )
  return finished.stdout


def test_help_has_every_target_and_is_what_make_says_alone():
  lines = make("help").splitlines()
  targets = re.findall(r"^.PHONY: (.*)", MAKEFILE, re.MULTILINE)
  listed = [line.split()[0] for line in lines if re.match("  [a-z]", line)]
  assert sorted(listed) == sorted(" ".join(targets).split())
  assert max(map(len, lines)) <= 80
  assert make() == make("help")


def test_the_quickstart_takes_a_number_of_steps():
  assert make("-n", "quickstart", "STEPS=300").endswith(
    " --config=quickstart --workdir=runs/quickstart \\\n"
    "  --config.train.num_steps=300\n"
  )
  assert "num_steps" not in make("-n", "quickstart")


def test_an_environment_that_is_activated_is_used(tmp_path):
  (tmp_path / "bin").mkdir()
  (tmp_path / "bin" / "python").touch(mode=0o755)
  said = make("-n", "test-smoke", VIRTUAL_ENV=str(tmp_path))
  assert f" {tmp_path}/bin/python -m pytest " in said
  assert f"\n{tmp_path}/bin/python -m pip install " in said
  assert ".venv" not in said
  assert " .venv/bin/python -m pytest " in make("-n", "test-smoke")


def test_the_quickstart_uses_what_is_installed_and_needs_no_tools_of_tests(
  tmp_path,
):
  """As the README has installed it: into an environment that is activated."""
  (tmp_path / "bin").mkdir()
  (tmp_path / "bin" / "python").touch(mode=0o755)
  fresh = make("-n", "quickstart", VIRTUAL_ENV=str(tmp_path))
  install = (
    "pip install --no-compile --constraint requirements.lock --editable ."
  )
  assert f" -m {install}\n" in fresh
  (tmp_path / "bin" / "transformer-xl").touch(mode=0o755)
  there = make("-n", "quickstart", VIRTUAL_ENV=str(tmp_path))
  assert there.startswith(f"{tmp_path}/bin/transformer-xl --config=quickstart ")
  tests = make("-n", "test", VIRTUAL_ENV=str(tmp_path))
  assert f' -m {install.removesuffix(".")}".[test]"\n' in tests
