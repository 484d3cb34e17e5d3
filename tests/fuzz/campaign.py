"""Runs one reader on many files, in a process that may die of it.

A file may be read or refused by a UserError. Anything else is a crash: another
exception, a signal, more time or memory than a small file is worth, a program
or a network connection that it starts, a file that it writes elsewhere.
"""

import collections
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.fuzz import mutations
from transformer_xl import errors

SECONDS = 5  # Processor time for one file; usual are a few thousandths.
MEGABYTES = 256  # That memory may grow by, whatever the files say.
_ADDRESS_SPACE = 4 << 30  # Beyond what is there at the start.
_BATCH = 5000  # Files that one process reads.
_QUICK = "/dev/shm" if os.path.isdir("/dev/shm") else None
_FORBIDDEN = frozenset(
  (
    *("exec", "os.system", "os.exec", "os.posix_spawn", "os.fork"),
    *("subprocess.Popen", "socket.connect", "pickle.find_class"),
  )
)


class Reader(NamedTuple):
  """Something that reads files."""

  seeds: Sequence[bytes]  # Valid files.
  read: Callable[[bytes, str], Any]  # Takes a content and a folder to use.
  share: int  # Share of the files, in thousandths.


class Tally(NamedTuple):
  """What became of the files."""

  read: int
  refused: int
  crashes: dict[str, str]  # An example of each kind.
  num_crashes: int
  slowest: float  # Seconds.
  growth: int  # MiB.


class _Violation(BaseException):
  """Something that no reader may do."""


class _Watch:
  """Audits what is done while a file is read."""

  def __init__(self):
    self.folder: str | None = None
    sys.addaudithook(self._hook)

  def _hook(self, event, arguments):
    if self.folder is None:
      return
    if event in _FORBIDDEN:
      raise _Violation(f"{event} {arguments!r:.200}")
    if event == "open" and isinstance(arguments[0], str):
      path, _, flags = arguments
      if flags & (os.O_WRONLY | os.O_RDWR) and not os.path.abspath(
        path
      ).startswith(self.folder):
        raise _Violation(f"writes {path}")


def run(name: str, reader: Reader, *, count: int, seed: int) -> Tally:
  """Feeds `count` files that are functions of the seed and their number."""
  with tempfile.TemporaryDirectory(dir=_QUICK) as folder:
    for one in reader.seeds:  # Imports what it needs; is read without error.
      reader.read(one, folder)
  total: collections.Counter[str] = collections.Counter()
  crashes: dict[str, str] = {}
  shared = mmap.mmap(-1, 1 << 20)
  start = 0
  while start < count:
    stop = min(start + _BATCH, count)
    shared.seek(0)
    shared.write(bytes(64))
    child = os.fork()
    if child == 0:
      _in_child(name, reader, range(start, stop), seed, shared)
    _, status = os.waitpid(child, 0)
    done, read, refused, failed, slowest, growth = _NUMBERS.unpack_from(shared)
    total.update(read=read, refused=refused, crashes=failed)
    total["slowest"] = max(total["slowest"], slowest)
    total["growth"] = max(total["growth"], growth)
    for line in shared[64:].rstrip(b"\0").decode().split("\0"):
      kind, _, text = line.partition("\1")
      if kind:
        crashes.setdefault(kind, text)
    if status:  # It died of file number `done`.
      total["crashes"] += 1
      crashes.setdefault(f"status {status}", f"{name} {done}")
      stop = done + 1
    start = stop
  return Tally(
    total["read"],
    total["refused"],
    crashes,
    total["crashes"],
    total["slowest"] / 1e6,
    total["growth"] >> 10,
  )


_NUMBERS = struct.Struct("6q")


def content(name: str, reader: Reader, index: int, *, seed: int) -> bytes:
  """The file of a number."""
  generator = random.Random(f"{seed}/{name}/{index}")
  return mutations.mutate(
    generator.choice(reader.seeds), reader.seeds, generator
  )


def _in_child(name, reader, indices, seed, shared):
  """Never returns."""
  os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # Panics of Rust are printed.
  warnings.simplefilter("ignore")
  watch, kinds, written = _Watch(), set(), 64
  read = refused = failed = slowest = growth = 0
  with tempfile.TemporaryDirectory(dir=_QUICK) as folder:
    _limit()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in indices:
      _NUMBERS.pack_into(
        shared, 0, index, read, refused, failed, slowest, growth
      )
      data = content(name, reader, index, seed=seed)
      started = time.process_time()
      trouble = _read(reader, data, folder, watch)
      seconds = time.process_time() - started
      slowest = max(slowest, int(1e6 * seconds))
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
      if trouble in (None, "refused") and (peak - before) >> 10 > MEGABYTES:
        trouble = f"memory\1grew by {(peak - before) >> 10} MiB"
      growth, before = max(growth, peak - before), peak
      read += trouble is None
      refused += trouble == "refused"
      if trouble not in (None, "refused"):
        failed += 1
        kind, _, text = trouble.partition("\1")
        line = f"{kind}\1{name} {index}: {text}"[:2000].encode() + b"\0"
        if kind not in kinds and written + len(line) < len(shared):
          kinds.add(kind)
          shared[written : written + len(line)] = line
          written += len(line)
    _NUMBERS.pack_into(
      shared, 0, indices[-1], read, refused, failed, slowest, growth
    )
  os._exit(0)


def _read(reader, data, folder, watch) -> str | None:
  """None, "refused", or what went wrong, first its kind."""
  signal.setitimer(signal.ITIMER_PROF, SECONDS)
  signal.setitimer(signal.ITIMER_REAL, 60 * SECONDS)
  watch.folder = folder
  try:
    reader.read(data, folder)
    return None
  except errors.UserError as error:
    watch.folder = None
    if "\n" in str(error):
      return f"more than a line\1{error}"
    return "refused"
  except BaseException as error:
    watch.folder = None
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = [
      frame
      for frame in traceback.extract_tb(error.__traceback__)
      if "/transformer_xl/" in frame.filename
      or "/data_prep/" in frame.filename
      or "/experiments/" in frame.filename
    ]
    where = (ours or [last])[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return f"{type(error).__name__} at {place}\1{error!r:.300}"
  finally:
    watch.folder = None
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _limit():
  def too_slow(number, _):
    raise _Violation(f"takes too long: {signal.Signals(number).name}")

  signal.signal(signal.SIGPROF, too_slow)
  signal.signal(signal.SIGALRM, too_slow)
  with open("/proc/self/statm", encoding="ascii") as file:
    size = int(file.read().split()[0]) * mmap.PAGESIZE
  limit = size + _ADDRESS_SPACE
  resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
