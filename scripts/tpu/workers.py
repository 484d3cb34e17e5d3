"""Shell commands on the workers (hosts) of a slice, over ssh.

Gcloud itself repeats a command whose connection dropped, and so do we: every
command may run twice. What a command means to say it prints, because gcloud has
one exit status for all workers and for ssh.
"""

import re

from scripts.tpu import gcloud
from scripts.tpu import queued_resource

_DONE = "worker is done: "
_KEYS = "; a key with a passphrase needs: ssh-add ~/.ssh/google_compute_engine"


def run(
  slice_: queued_resource.Slice,
  script: str,
  *,
  worker: str = "all",
  seconds: float = 300,
) -> str:
  """Runs a shell script on all workers, or on one; returns what they print.

  Raises:
    GoneError: there are no machines.
    RefusedError: not every worker was reached, or the script failed.
  """
  found = queued_resource.node(slice_)
  if found is None or found.state != "READY":
    text = f"its machines are {found.state if found else 'gone'}"
    raise queued_resource.GoneError(text)
  expected = found.num_workers if worker == "all" else 1
  # One line is one write, so those of several workers do not mix.
  guarded = f"({script}\n) 2>&1; printf '\\n{_DONE}%s\\n' $?"
  try:
    said = gcloud.call(
      *("compute", "tpus", "tpu-vm", "ssh", slice_.name),
      *(f"--worker={worker}", f"--command={guarded}", *slice_.place.flags()),
      seconds=seconds,
    )
  except gcloud.AbsentError as error:
    raise queued_resource.GoneError(str(error)) from None
  except gcloud.RefusedError as error:
    hint = _KEYS if re.search("publickey|ssh-agent", str(error)) else ""
    raise gcloud.RefusedError(f"{error}{hint}") from None
  statuses = re.findall(rf"^{_DONE}(\d+)$", said, re.M)
  if len(statuses) < expected:
    raise gcloud.RefusedError(f"{len(statuses)} of {expected} workers answered")
  said = re.sub(rf"\n?^{_DONE}\d+\n", "", said, flags=re.M)
  if any(status != "0" for status in statuses):
    last = " ".join(said.strip().splitlines()[-3:])
    raise gcloud.RefusedError(f"a command failed: {last}")
  return said


def copy(slice_: queued_resource.Slice, source: str, name: str) -> None:
  """Copies a file into the home folder of every worker.

  Raises:
    RefusedError: not every worker was reached.
  """
  gcloud.call(
    *("compute", "tpus", "tpu-vm", "scp", source, f"{slice_.name}:{name}"),
    *("--worker=all", *slice_.place.flags()),
  )
