"""A command that workers run by themselves, whoever is connected.

Each worker has a folder for a job: `log`, `pid`, `status` once it ended, and
`lock`, which is held as long as any part of it runs, so that a second start
does nothing.
"""

import re
import shlex
from typing import NamedTuple

from scripts.tpu import queued_resource
from scripts.tpu import software
from scripts.tpu import workers

# Training ends with status 0 when it is finished and when a signal stopped it
# on a checkpoint; then its log ends with these words.
STOPPED = "Saved at step [0-9]*; the same command continues"
_FOLDER = "$HOME/jobs/{name}"
_RUN = """
trap : TERM  # The command answers it; this script waits for its status.
echo $$ > {folder}/pid
cd "$HOME/{checkout}"
{command}
status=$?
if [ $status = 0 ] && tail -n 50 {folder}/log | grep -q '{stopped}'; then
  status=stopped
fi
echo $status > {folder}/status
"""
_START = """
mkdir -p {folder} && cd {folder} || exit
exec 9>>lock
flock -w 2 9 || {{ echo 'job: running'; exit 0; }}
if [ -f log ]; then mv log log.previous; fi
rm -f status pid
printf %s {script} > run.sh
setsid nohup bash run.sh > log 2>&1 < /dev/null &
echo 'job: started'
"""
_STATE = """
cd {folder} 2>/dev/null || {{ echo 'job: absent'; exit 0; }}
if ! flock -n lock true; then echo 'job: running'
elif [ -s status ]; then echo "job: $(cat status)"
else echo 'job: killed'
fi
"""
_READ = """
cd {folder} && size=$(stat -c %s log) || exit 0
start=$(( size > {offset} + {most} ? size - {most} : {offset} ))
echo "size: $size"
tail -c +$(( start + 1 )) log | head -c $(( size - start ))
"""
_KILL = """
cd {folder} 2>/dev/null && [ -f pid ] || exit 0
flock -n lock true || kill -KILL -- -$(cat pid)
flock -w 60 lock true
"""


class Job(NamedTuple):
  """A job on a slice."""

  slice_: queued_resource.Slice
  name: str
  worker: str  # all, or a number.
  command: str  # For a shell, in the checkout.

  @property
  def folder(self) -> str:
    """The folder on a worker, for a shell."""
    return _FOLDER.format(name=self.name)


def python(module: str, arguments: list[str]) -> str:
  """The shell command that runs a module of the checkout."""
  return shlex.join([".venv/bin/python", "-m", module, *arguments])


def start(job: Job) -> None:
  """Starts a job on the workers where it does not run.

  Raises:
    GoneError: there are no machines.
    RefusedError: a worker was not reached; it is safe to call it again.
  """
  values = {"folder": job.folder, "checkout": software.FOLDER}
  script = _RUN.format(command=job.command, stopped=STOPPED, **values)
  text = _START.format(folder=job.folder, script=shlex.quote(script))
  workers.run(job.slice_, text, worker=job.worker)


def states(job: Job) -> list[str]:
  """What became of a job on each worker.

  Returns:
    An exit status, or "stopped" (by a signal, on a checkpoint), "running",
    "killed" (without a status) or "absent".

  Raises:
    GoneError: there are no machines.
    RefusedError: a worker was not reached.
  """
  text = _STATE.format(folder=job.folder)
  return _states(workers.run(job.slice_, text, worker=job.worker))


def kill(job: Job) -> None:
  """Ends what still runs of a job at once.

  Raises:
    GoneError: there are no machines.
    RefusedError: a worker was not reached.
  """
  workers.run(job.slice_, _KILL.format(folder=job.folder), worker=job.worker)


def read(job: Job, offset: int, most: int = 100_000) -> tuple[str, int]:
  """What is new in the log of the first worker, and the offset after it.

  Args:
    job: the job.
    offset: bytes that were read.
    most: bytes; if more are new, those before them are skipped.

  Raises:
    GoneError: there are no machines.
    RefusedError: the worker was not reached.
  """
  worker = "0" if job.worker == "all" else job.worker
  text = _READ.format(folder=job.folder, offset=offset, most=most)
  said = workers.run(job.slice_, text, worker=worker)
  match = re.search(r"^size: (\d+)\n", said, re.M)
  if not match:
    return "", offset
  return said[match.end() :], int(match[1])


def _states(said: str) -> list[str]:
  return re.findall(r"^job: (\w+)$", said, re.M)
