"""Lines of the log are short, and how a program was started is known."""

import os
import re
import subprocess
import sys
import threading

import pytest

from tests import test_main
from transformer_xl import command_line

HUGE_PAGES = """
import os
import sys
from transformer_xl import command_line

count = int(os.environ.get("STARTED", "0"))
os.environ["STARTED"] = str(count + 1)
command_line.use_huge_pages()
assert count < 2
print("once")
print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1])
"""
CLOSED = """
import os, sys
from absl import flags
from transformer_xl import command_line
from transformer_xl import signals

signals.end_at_signals()
FILE = flags.DEFINE_string("file", None, "")

def main(argv):
  with open(FILE.value, "w") as file:
    print("printed", flush=True)
    print("printed", file=sys.stderr, flush=True)
    file.write(f"read {sys.stdin.buffer.read().decode()!r}")

command_line.run(main)
"""
LOGGING = """
from absl import logging
from transformer_xl import command_line
from transformer_xl import log_lines

def main(argv):
  logging.info("of one")
  log_lines.format_log(3)
  logging.info("of many")
  logging.warning("look")

command_line.run(main, quiet=False)
"""
WAITING = """
import atexit, sys, threading, time
from transformer_xl import command_line
from transformer_xl import errors

command_line._THREADS_END_SECONDS = float(sys.argv.pop(1))

def leave():
  time.sleep(0.5)
  print("left", flush=True)

def main(argv):
  atexit.register(leave)
  print("printed")
  threading.Thread(target=time.sleep, args=(float(sys.argv[1]),)).start()
  raise {error}

command_line.run(main, takes_words=True)
"""


@pytest.fixture(autouse=True)
def no_flags_of_xla(monkeypatch):
  """Nothing is compiled here, and each process would ask another about them."""
  monkeypatch.setenv("XLA_FLAGS", "")


@pytest.mark.some(3)
@pytest.mark.parametrize(
  ("error", "status", "last"),
  [
    ("errors.UserError('a mistake')", 2, "error: a mistake"),
    ("OSError(28, 'No space left on device', 'disk')", 1, "error: No space"),
    ("ValueError('a bug')", 1, "ValueError: a bug"),
  ],
)
@pytest.mark.parametrize(
  ("limit", "seconds", "printed"),
  [("0.1", "100", "printed\n"), ("0.3", "0.01", "printed\nleft\n")],
)
def test_a_command_that_failed_does_not_wait_for_threads(
  error, status, last, limit, seconds, printed
):
  """But for what is done at the end of a process, however long that takes."""
  finished = subprocess.run(
    [sys.executable, "-c", WAITING.format(error=error), limit, seconds],
    capture_output=True,
    check=False,
    cwd=test_main.ROOT,
    text=True,
    timeout=30,
  )
  assert finished.stderr.splitlines()[-1].startswith(last)
  assert (finished.returncode, finished.stdout) == (status, printed)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("JAX_ENABLE_X64", "maybe"),
    ("JAX_NUM_CPU_DEVICES", "two"),
    ("JAX_DEFAULT_MATMUL_PRECISION", "foo"),
  ],
)
@pytest.mark.parametrize("config", [[], ["--config=base"]])
@pytest.mark.some(2)
def test_a_value_that_jax_refuses_is_named_with_its_variable(
  tmp_path, name, value, config
):
  finished = subprocess.run(
    [
      *(sys.executable, "-m", "transformer_xl.main", "--mode=check"),
      *(f"--workdir={tmp_path}", *config),
    ],
    capture_output=True,
    check=False,
    cwd=test_main.ROOT,
    env=os.environ | {name: value},
    text=True,
  )
  assert finished.returncode == 2
  (line,) = finished.stderr.splitlines()
  assert line.startswith(f"error: JAX refuses {name}={value!r} of the envir")


def test_a_line_has_the_time_the_process_and_what_is_no_information():
  finished = subprocess.run(
    [sys.executable, "-c", LOGGING],
    capture_output=True,
    check=True,
    cwd=test_main.ROOT,
    text=True,
  )
  lines = finished.stderr.splitlines()
  assert all(test_main.LOG_LINE.match(line) for line in lines)
  said = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines]
  assert said == ["of one", "[3] of many", "[3] warning: look"]


@pytest.mark.some(2)
@pytest.mark.parametrize(
  ("device", "given", "first", "expected"),
  [
    ("/nowhere*", None, "", "cpu"),
    ("/nowhere*", None, "import jax; ", "cpu"),
    ("/nowhere*", "tpu,cpu", "", "tpu,cpu"),
    ("/dev/null", None, "", "None"),
  ],
)
def test_libtpu_is_left_alone_where_there_is_no_tpu(
  tmp_path, device, given, first, expected
):
  (tmp_path / "libtpu.py").write_text("raise RuntimeError('started')")
  program = f"""
{first}import os, sys
from transformer_xl import command_line

def main(argv):
  jax = sys.modules.get("jax")
  print(jax.config.jax_platforms if jax else os.environ.get("JAX_PLATFORMS"))

command_line._ACCELERATORS = ("{device}",)
command_line.run(main)
"""
  environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{test_main.ROOT}"}
  environment.pop("JAX_PLATFORMS", None)
  if given:
    environment["JAX_PLATFORMS"] = given
  finished = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    check=True,
    cwd=test_main.ROOT,
    env=environment,
    text=True,
  )
  assert finished.stdout == f"{expected}\n"


def test_a_character_that_the_terminal_lacks_is_escaped():
  program = """
from transformer_xl import command_line

command_line.run(lambda argv: print("5 \u20ac"))
"""
  finished = subprocess.run(
    [sys.executable, "-c", program],
    capture_output=True,
    check=False,
    cwd=test_main.ROOT,
    env={**os.environ, "PYTHONIOENCODING": "latin-1"},
  )
  assert (finished.returncode, finished.stderr) == (0, b"")
  assert finished.stdout == b"5 \\u20ac\n"


def test_a_command_runs_with_closed_streams(tmp_path):
  """What it prints gets into no file that it opens."""
  line = 'exec "$0" -c "$1" "$2" <&- >&- 2>&-'
  path = tmp_path / "file"
  finished = subprocess.run(
    ["sh", "-c", line, sys.executable, CLOSED, f"--file={path}"],
    cwd=test_main.ROOT,
  )
  assert finished.returncode == 0
  assert path.read_text() == "read ''"


@pytest.mark.parametrize(
  ("line", "argv"),
  [
    (["python", "-m", "notebook", "x"], ["main.py", "--config=base"]),
    (["python", "-m", "notebook"], ["main.py"]),
    (["python", "train_all.py", "--config=base"], ["main.py", "--config=base"]),
    (["python", "train_all.py"], ["main.py"]),
  ],
)
def test_another_program_is_not_started_again(monkeypatch, line, argv):
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
  monkeypatch.setattr(sys, "orig_argv", line)
  monkeypatch.setattr(sys, "argv", argv)
  monkeypatch.setattr(threading, "active_count", lambda: 1)
  monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started again"))
  command_line.use_huge_pages()


@pytest.mark.parametrize(
  ("line", "words"),
  [
    (["python", "-m", "a.main", "--x=1", "y"], "python -m a.main"),
    (["my env/python", "-m", "a.main"], "'my env/python' -m a.main"),
    (["/bin/python", "/nowhere/bin/tool", "--x=1"], "/nowhere/bin/tool"),
    (["/bin/sh", "/bin/sh", "-c"], "sh"),
  ],
)
def test_a_program_is_named_as_one_types_it(monkeypatch, line, words):
  start = 3 if "-m" in line else 2
  monkeypatch.setattr(sys, "orig_argv", line)
  monkeypatch.setattr(sys, "argv", ["main.py", *line[start:]])
  monkeypatch.setenv("PATH", "/bin:/usr/bin")
  assert command_line.words() == words


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_command_on_a_cpu_asks_for_huge_pages_and_starts_again_once():
  environment = {"JAX_PLATFORMS": "cpu"}
  environment["GLIBC_TUNABLES"] = "glibc.malloc.perturb=1"
  finished = subprocess.run(
    [sys.executable, "-c", HUGE_PAGES, "an argument"],
    capture_output=True,
    check=True,
    cwd=test_main.ROOT,
    env=os.environ | environment,
    text=True,
  )
  tunables = "glibc.malloc.perturb=1:glibc.malloc.hugetlb=1"
  assert finished.stdout == f"once\n{tunables} an argument\n"


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
@pytest.mark.parametrize(
  ("platforms", "given", "expected"),
  [
    ("cpu", "", "glibc.malloc.hugetlb=1"),
    ("cpu", "glibc.malloc.hugetlb=0", None),
    ("tpu", "", None),
  ],
)
def test_a_command_starts_again_by_platform_and_by_what_is_set(
  monkeypatch, platforms, given, expected
):
  found = []
  monkeypatch.setenv("JAX_PLATFORMS", platforms)
  monkeypatch.setenv("GLIBC_TUNABLES", given)
  monkeypatch.setattr(command_line, "_is_own_process", lambda: True)
  monkeypatch.setattr(
    os, "execv", lambda *_: found.append(os.environ["GLIBC_TUNABLES"])
  )
  command_line.use_huge_pages()
  assert found == [expected] * bool(expected)


def test_windows_is_refused_in_one_line():
  program = (
    "import signal; del signal.SIGHUP;"
    " from transformer_xl import signals; signals.end_at_signals()"
  )
  done = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  )
  assert done.returncode == 2
  assert done.stderr.startswith("error: this package runs on Linux and macOS")
  assert done.stderr.count("\n") == 1
