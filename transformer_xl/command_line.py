"""How every command starts and ends: flags, help, one line for a mistake."""

import atexit
import contextlib
import errno
import functools
import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from absl import app
from absl import flags
from absl import logging

from transformer_xl import errors
from transformer_xl import log_lines
from transformer_xl import signals
from transformer_xl.processes import others

_PLUGINS = ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")
# Device files of TPUs and GPUs on Linux; the last is that of Windows' GPUs.
_ACCELERATORS = (
  "/dev/accel*",
  "/dev/vfio/[0-9]*",
  "/dev/nvidia[0-9]*",
  "/dev/kfd",
  "/dev/dxg",
)
# How long threads may go on after a command has failed.
_THREADS_END_SECONDS = 2.0
# Of a longer word in a message, such as a value, only the ends are printed.
_LONGEST_WORD = 400
_LONGEST_END = 60
_HELP = {"--help", "-help", "-h", "-?", "--helpshort", "--helpfull"}


def use_huge_pages() -> None:
  """Starts this command again with huge pages, on Linux without an accelerator.

  XLA's temporary memory goes back to Linux after every call, and a CPU would
  fault it in again page by page. glibc only reads the setting when it starts.
  """
  setting = "glibc.malloc.hugetlb"
  given = os.environ.get("GLIBC_TUNABLES", "")
  platforms = os.environ.get("JAX_PLATFORMS", "")
  is_on_cpu = platforms == "cpu" if platforms else not _has_accelerator()
  if sys.platform != "linux" or not is_on_cpu or setting in given:
    return
  if not _is_own_process():
    return  # Another program would start again.
  tunables = [*filter(None, [given]), f"{setting}=1"]
  os.environ["GLIBC_TUNABLES"] = ":".join(tunables)
  os.execv(sys.executable, sys.orig_argv)


def hide_missing_devices() -> None:
  """Keeps JAX from looking for a TPU or a GPU that is not there.

  With their libraries, as for planning, it would look for seconds, and print
  warnings or a traceback.
  """
  if os.environ.get("JAX_PLATFORMS") or _has_accelerator():
    return
  if any(map(importlib.util.find_spec, _PLUGINS)):
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # It has read the variable already.
      sys.modules["jax"].config.update("jax_platforms", "cpu")


def require_flags_of_xla() -> None:
  """Raises a UserError if XLA cannot read XLA_FLAGS.

  XLA would end the process, after pages of its flags. So another process reads
  them first, in a third of a second.
  """
  given = os.environ.get("XLA_FLAGS", "")
  reason = _why_unreadable(given) if given.strip() else ""
  if reason:
    raise errors.UserError(
      f"XLA cannot read XLA_FLAGS={given!r} of the environment ({reason}); "
      "correct it, or unset it."
    )


@functools.cache  # Commands that are forks of one process ask once.
def _why_unreadable(flags_of_xla: str) -> str:
  """What XLA says of flags that it cannot read; "" if it can."""
  code = "from jaxlib import xla_client; xla_client.CompileOptions()"
  finished = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "XLA_FLAGS": flags_of_xla},
    check=False,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
  )
  said = finished.stderr.decode(errors="replace")
  reason = re.search(r"^[EF]\d{4} .*?\] (.*)", said, re.MULTILINE)
  if not finished.returncode or reason is None:
    return ""
  return reason[1].strip().rstrip(".")


def _has_accelerator() -> bool:
  """Whether this machine may have a TPU or a GPU."""
  return any(map(glob.glob, _ACCELERATORS))


def start(module: str) -> None:
  """Runs a module as `python -m` does; for the console scripts."""
  runpy.run_module(module, run_name="__main__", alter_sys=True)


def transformer_xl() -> None:
  """The console script `transformer-xl`."""
  start("transformer_xl.main")


def conformance() -> None:
  """The console script `transformer-xl-conformance`."""
  start("transformer_xl.conformance")


def words() -> str:
  """The words that start this command, up to its flags, as one types them."""
  own = _own_words()
  if own is None:
    return "transformer-xl"
  *python, last = own
  if "-m" in python:
    return shlex.join([*python, last])
  name = os.path.basename(last)
  is_on_path = shutil.which(name) == os.path.abspath(last)
  return name if is_on_path else shlex.quote(last)


def split(argv: list[str], flag: str) -> tuple[str | None, list[str]]:
  """The value of a flag, and the other words after the command's name.

  --config is needed before the flags of its fields exist, and --mode before it
  is known whether --config is needed.
  """
  only_one = flags.FlagValues()
  only_one.set_gnu_getopt(True)  # Values of other flags may be words.
  flags.DEFINE_string(flag, None, "", flag_values=only_one)
  _, *rest = only_one(argv, known_only=True)
  return only_one[flag].value, rest


def given(flag: str) -> list[str]:
  """The words of this command that set a flag, to be repeated in another."""
  words = sys.argv[1:]
  return [word for word in words if word.lstrip("-").startswith(f"{flag}=")]


def _is_own_process() -> bool:
  """Whether this process was started for the command that runs in it.

  A notebook or a script may run it as well, with arguments of its own.
  """
  own = _own_words()
  if own is None or threading.active_count() > 1:
    return False
  *_, option, last = ["", *own]
  if option == "-m":
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == last
  return option == "-c" or os.path.basename(last) == "transformer-xl"


def _own_words() -> list[str] | None:
  """The words that started this process, up to the flags.

  None if the flags are not the ones that the process was started with.
  """
  count = len(sys.orig_argv) - len(sys.argv) + 1
  is_own = count >= 1 and sys.orig_argv[count:] == sys.argv[1:]
  return sys.orig_argv[:count] if is_own else None


def version() -> str:
  """The versions that a report of a problem needs, on one line."""
  packages = ("transformer-xl", "jax")
  named = [f"{name} {importlib.metadata.version(name)}" for name in packages]
  return ", ".join([*named, f"Python {platform.python_version()}"])


def describe(argv: list[str], topic: str) -> str:
  """The docstring of the command's module, and its flags."""
  del argv, topic
  documentation = sys.modules["__main__"].__doc__ or ""
  # The first line is the path of the module.
  _, _, listed = flags.FLAGS.main_module_help().strip().partition("\n")
  return f"{documentation.strip()}\n\nFlags\n{listed}"


def run(
  main: Callable[[list[str]], None],
  *,
  parse: Callable[[list[str]], list[str]] = flags.FLAGS,
  describe: Callable[[list[str], str], str] = describe,
  quiet: bool = True,
  takes_words: bool = False,
) -> None:
  """Runs a command and ends the process.

  The exit status is 0 for `--help` and `--version`, 2 after a user's mistake,
  1 after divergence, wrong numbers, the loss of another process or where the
  machine refuses, 130 after Ctrl-C, 143 if another signal stopped the command.
  Other exceptions are bugs and keep their traceback.

  Args:
    main: takes the arguments that are not flags.
    parse: parses the flags of a command line and returns the other arguments.
    describe: makes the text of `--help=TOPIC` from a command line without it
      and the topic, which is "" for `--help`.
    quiet: log errors only.
    takes_words: whether arguments that are not flags are allowed.
  """

  def parse_or_help(argv: list[str]) -> list[str]:
    if "--version" in argv:
      print(version(), flush=True)
      sys.exit(0)
    asking = [word for word in argv if word.partition("=")[0] in _HELP]
    with one_line():
      if not asking:
        return parse(argv)
      rest = [word for word in argv if word not in asking]
      print(describe(rest, asking[0].partition("=")[2]), flush=True)
    sys.exit(0)

  def guarded(argv: list[str]) -> None:
    # Late, so that Ctrl-C has an answer before anything is imported that takes
    # long.
    from transformer_xl import storage

    storage.configure()
    log_lines.start()
    hide_missing_devices()
    if quiet:
      logging.set_verbosity(logging.ERROR)
    with one_line():
      if argv[1:] and not takes_words:
        raise errors.UserError(
          f"{argv[1]!r} belongs to no flag; write --flag=VALUE, with quotes "
          "around a value that has spaces or patterns."
        )
      require_flags_of_xla()
      with others.on_failure():
        main(argv)
      sys.stdout.flush()

  signals.open_closed_streams()
  with contextlib.suppress(AttributeError):  # A notebook needs no escapes.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore
  try:
    app.run(guarded, flags_parser=parse_or_help)
  except BaseException as error:
    _end_despite_threads(error)
    raise


@contextlib.contextmanager
def one_line() -> Iterator[None]:
  """Ends the process with one line unless the program itself is wrong."""
  try:
    yield
  except (errors.UserError, flags.Error) as error:
    message = errors.misread_variable(error) or _without_none(str(error))
    status = 2
  except (
    errors.DivergenceError,
    errors.WrongResultError,
    errors.UnreadableError,
  ) as error:
    message = str(error)
    status = 1
  except errors.LostProcessError as error:
    message = str(error)
    status = error.status
  except KeyboardInterrupt:
    message = signals.INTERRUPTION
    status = signals.INTERRUPTED
  except errors.StoppedError as stopped:
    others.leave()  # As all of them do.
    sys.exit(signals.stopped_status(stopped.number))
  except Exception as error:
    if _is_lost_output(error) and signals.drop_unread_output():
      if others.is_one_of_several():
        _end_alone("its output has lost its reader", 1)
      sys.exit(1)
    message = errors.refusal(error) or ""
    status = 1
    if misread := errors.misread_variable(error):
      message = misread
      status = 2
    if (
      not message and isinstance(error, OSError) and error.filename is not None
    ):
      fix = "fix that and run the same command again."
      message = f"cannot use {error.filename}: {error.strerror}; {fix}"
      status = 2
    if not message:
      raise
  else:
    return
  message = _without_long_words(message)
  if others.is_one_of_several():
    _end_alone(message, status)
  print(f"error: {message}", file=sys.stderr)
  sys.exit(status)


def _end_despite_threads(error: BaseException) -> None:
  """Ends a process that has failed soon after its end, whatever threads do.

  Python would wait for them, and those of a save that could not begin wait
  minutes for its other parts. JAX would wait minutes for other processes.
  """
  status = error.code if isinstance(error, SystemExit) else 1
  if not status:
    return
  is_bug = not isinstance(error, SystemExit)
  if is_bug:
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    others.leave(1, f"{text} (its own log has the traceback)")
  ended = threading.Event()
  atexit.register(ended.set)  # Called when no thread is left.

  def end() -> None:
    threading.main_thread().join()
    # JAX's end comes last, and would wait for the others.
    is_waiting = is_bug and others.is_one_of_several()
    if is_waiting or not ended.wait(_THREADS_END_SECONDS):
      sys.stdout.flush()
      os._exit(status if isinstance(status, int) else 1)

  threading.Thread(target=end, daemon=True).start()


def _end_alone(message: str, status: int) -> NoReturn:
  """Ends the process, without waiting for others that know of no mistake.

  JAX would wait five minutes for them and then abort, with a status of its own.
  """
  sys.stdout.flush()
  others.leave(status, message)
  signals.end(message, status)


def _without_none(message: str) -> str:
  """Says of required flags that they are missing; absl says "None"."""
  missing = re.findall(
    r"Flag --(\w+) must have a value other than None", message
  )
  if not missing:
    return message
  names = ", ".join(f"--{name}" for name in missing)
  return f"{names} must be given; --help explains the flags."


def _without_long_words(message: str) -> str:
  """Leaves out the middle of words such as a number of 5,000 digits."""

  def shorten(word: str) -> str:
    left_out = len(word) - 2 * _LONGEST_END
    if len(word) < _LONGEST_WORD:
      return word
    return f"{word[:_LONGEST_END]}[{left_out} more]{word[-_LONGEST_END:]}"

  return " ".join(map(shorten, message.split()))


def _is_lost_output(error: Exception) -> bool:
  codes = (errno.EPIPE, errno.EIO)  # A pipe's reader or the terminal is gone.
  return isinstance(error, OSError) and error.errno in codes
