"""Stands in for `gcloud`: a cloud in a folder, with workers that are processes.

A request advances by one state with each look at it. A worker is a folder, its
home, and ssh runs a shell in it. What goes wrong is in `faults` of the state: a
command, a kind, and optionally a text that the call has to contain.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

NAME = "compute.tpus"
ADVANCES = {
  "WAITING_FOR_RESOURCES": "PROVISIONING",
  "PROVISIONING": "ACTIVE",
}
ZONE = {"--zone", "--project", "--format"}
# The flags of each command, as its manual has them.
FLAGS = {
  "queued-resources create": {
    *("--node-id", "--accelerator-type", "--runtime-version", "--spot"),
    *("--reserved", "--guaranteed", "--valid-until-duration"),
  },
  "queued-resources describe": set(),
  "queued-resources delete": {"--force"},
  "tpu-vm describe": set(),
  "tpu-vm ssh": {"--worker", "--command"},
  "tpu-vm scp": {"--worker"},
}
SWITCHES = {"--spot", "--reserved", "--guaranteed", "--force"}
# What gcloud and the cloud say.
SAID = {
  "quota": (
    "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' "
    "has been exceeded. Limit: 4 in zone us-central1-a."
  ),
  "no quota": (
    "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPerProjectPerZoneForTPUAPI' has "
    "been exceeded. Limit: 0 in zone us-central1-a."
  ),
  "stockout": (
    '{\n  "code": 8,\n  "message": "There is no more capacity in the zone '
    '\\"us-central1-a\\"; you can try in another zone where Cloud TPU Nodes '
    'are offered (see https://cloud.google.com/tpu/docs/regions)"\n}'
  ),
  "permission": (
    "PERMISSION_DENIED: Permission 'tpu.queuedresources.create' denied on "
    "'projects/p/locations/us-central1-a'."
  ),
  "late": "Insufficient capacity.",
  "unavailable": "UNAVAILABLE: The service is currently unavailable.",
  "refused": ("[/usr/bin/ssh] exited with return code [255]."),
}


class Cloud:
  """The state of a cloud, locked while it is used."""

  def __init__(self, folder):
    self.folder = pathlib.Path(folder)

  @contextlib.contextmanager
  def state(self):
    path = self.folder / "state.json"
    with (self.folder / "lock").open("a") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      state = json.loads(path.read_text())
      try:
        yield state
      finally:
        path.write_text(json.dumps(state))

  def write(self, **values):
    self.folder.mkdir(exist_ok=True)
    state = {"requests": {}, "faults": [], "lost": [], "num_workers": 2}
    (self.folder / "state.json").write_text(json.dumps(state | values))

  def calls(self, verb=""):
    """The words of all calls so far."""
    path = self.folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    found = map(json.loads, lines)
    return [words for words in found if not verb or verb in words]

  def home(self, worker):
    return self.folder / f"worker-{worker}"

  def preempt(self, name, *, grace=0.0):
    """Takes a slice away, with its disks."""
    with self.state() as state:
      state["requests"][name]["state"] = "SUSPENDED"
      self.destroy(state["num_workers"], grace)

  def destroy(self, num_workers, grace=0.0):
    """Ends all workers, as a shutdown does, and deletes their disks."""
    self.signal(range(num_workers), signal.SIGTERM)
    end = time.monotonic() + grace
    while self.processes(range(num_workers)) and time.monotonic() < end:
      time.sleep(0.05)
    while self.signal(range(num_workers), signal.SIGKILL):
      time.sleep(0.05)
    for worker in range(num_workers):
      shutil.rmtree(self.home(worker), ignore_errors=True)

  def signal(self, workers, number):
    """Signals all processes of some workers; returns whether there are any."""
    found = self.processes(workers)
    for process in found:
      with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
    return bool(found)

  def processes(self, workers):
    marks = [f"WORKER={self.home(worker)}".encode() for worker in workers]
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
      with contextlib.suppress(OSError):
        if any(
          m in (path / "environ").read_bytes().split(b"\0") for m in marks
        ):
          found.append(int(path.name))
    return found


def main(folder, words):
  cloud = Cloud(folder)
  with (cloud.folder / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\n")
  command, options, rest = parse(words)
  with cloud.state() as state:
    fault = next((f for f in state["faults"] if hits(f, command, words)), None)
    if fault:
      state["faults"].remove(fault)
      if fault[1] in SAID and fault[1] != "late":
        fail(command, SAID[fault[1]])
    if command == "queued-resources create":
      create(state, options, fails=fault is not None)
    elif command == "queued-resources delete":
      delete(cloud, state, options)
    elif command == "queued-resources describe":
      print(json.dumps(describe(cloud, state, options)))
    elif command == "tpu-vm describe":
      print(json.dumps(node(state, options)))
    workers, lost = state["num_workers"], state["lost"]
    is_up = up(state, rest[-1].partition(":")[0] if rest else options["name"])
  if command == "tpu-vm ssh":
    if not is_up:
      fail(command, 'This TPU has terminal state "PREEMPTED"')
    ssh(cloud, options, workers, lost, is_dropped=fault is not None)
  if command == "tpu-vm scp":
    for worker in range(workers):
      target = cloud.home(worker) / rest[-1].partition(":")[2]
      shutil.copy(rest[0], target)


def hits(fault, command, words):
  return fault[0] == command and all(t in " ".join(words) for t in fault[2:])


def parse(words):
  command = " ".join(words[2:4])
  if words[:2] != ["compute", "tpus"] or command not in FLAGS:
    fail("gcloud", f"Invalid choice: '{command}'.")
  parser = argparse.ArgumentParser(allow_abbrev=False)
  parser.add_argument("names", nargs="+")
  parser.add_argument("--quiet", action="store_true")
  for flag in FLAGS[command] | ZONE:
    action = "store_true" if flag in SWITCHES else "store"
    parser.add_argument(flag, action=action)
  options = vars(parser.parse_args(words[4:]))
  names = options["names"]
  return command, options | {"name": names[0]}, names[1:] and names


def fail(command, text):
  said = f"ERROR: (gcloud.{NAME}.{command.replace(' ', '.')}) {text}"
  print(said, file=sys.stderr)
  sys.exit(1)


def create(state, options, *, fails):
  name = options["name"]
  if name in state["requests"]:
    fail("queued-resources create", "ALREADY_EXISTS: Resource already exists.")
  state["requests"][name] = {
    "state": "WAITING_FOR_RESOURCES",
    "type": options["accelerator_type"],
    "fails": fails,
  }
  print("Create request issued.", file=sys.stderr)


def absent(path):
  return (
    f"NOT_FOUND: Resource 'projects/p/locations/us-central1-a/{path}' was not "
    "found. This command is authenticated as me@example.com which is the active"
    " account specified by the [core/account] property."
  )


def find(state, command, name):
  if name not in state["requests"]:
    fail(command, absent(f"queuedResources/{name}"))
  return state["requests"][name]


def describe(cloud, state, options):
  request = find(state, "queued-resources describe", options["name"])
  if request["fails"] and request["state"] == "PROVISIONING":
    error = {"code": 8, "message": SAID["late"]}
    return {"state": {"state": "FAILED", "failedData": {"error": error}}}
  shown = request["state"]
  request["state"] = ADVANCES.get(shown, shown)
  if (shown, request["state"]) == ("PROVISIONING", "ACTIVE"):
    start_machines(cloud, state)
  node = {"node": {"acceleratorType": request["type"]}}
  return {"state": {"state": shown}, "tpu": {"nodeSpec": [node]}}


def start_machines(cloud, state):
  for worker in range(state["num_workers"]):
    cloud.home(worker).mkdir()
  state["lost"] = []
  with socket.socket() as listener:
    listener.bind(("localhost", 0))
    (cloud.folder / "port").write_text(str(listener.getsockname()[1]))


def up(state, name):
  return state["requests"].get(name, {}).get("state") == "ACTIVE"


def node(state, options):
  request = find(state, "tpu-vm describe", options["name"])
  if request["state"] not in ("ACTIVE", "SUSPENDED"):
    fail("tpu-vm describe", absent(f"nodes/{options['name']}"))
  is_up = request["state"] == "ACTIVE"
  endpoints = [{"ipAddress": "10.0.0.1"}] * state["num_workers"]
  shown = "READY" if is_up else "PREEMPTED"
  return {"state": shown, "networkEndpoints": endpoints}


def delete(cloud, state, options):
  request = find(state, "queued-resources delete", options["name"])
  if request["state"] == "PROVISIONING" or not options["force"]:
    said = (
      f"not supported when state is {request['state']}; must be one of "
      "[ACCEPTED WAITING_FOR_RESOURCES SUSPENDED FAILED]"
    )
    request["state"] = "SUSPENDED"  # The refusal ends the provisioning.
    fail("queued-resources delete", said)
  cloud.destroy(state["num_workers"])
  del state["requests"][options["name"]]


def ssh(cloud, options, num_workers, lost, *, is_dropped):
  """Runs the command on workers; a dropped connection hangs up on it."""
  asked = options["worker"]
  workers = range(num_workers) if asked == "all" else [int(asked)]
  running = [
    subprocess.Popen(
      ["bash", "-c", options["command"]],
      cwd=cloud.home(worker),
      env={
        "HOME": str(cloud.home(worker)),
        "PATH": f"{cloud.folder}/bin:{os.environ['PATH']}",
        "TPU_WORKER_ID": str(worker),
        "WORKER": str(cloud.home(worker)),
      },
      start_new_session=True,
      stdout=None if not is_dropped else subprocess.DEVNULL,
    )
    for worker in workers
    if worker not in lost
  ]
  for process in running:
    process.wait()
    if is_dropped:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGHUP)
  if is_dropped or len(running) < len(workers):
    fail("tpu-vm ssh", SAID["refused"])


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2:])
