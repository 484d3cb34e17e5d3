"""A run reaches its end whatever the cloud takes away or refuses."""

import signal
import time

import pytest

from tests.scripts import conftest

ASKED = ("--type=v5litepod-16", "--tier=spot", "--yes")
COMMAND = ("--", "--config=experiments/ptb.py", "--workdir=gs://bucket/run")
STEPS = 24
# In place of Python: worker 0 counts to STEPS in a bucket, the others wait. It
# does not go beyond a step at which there is a gate.
PROGRAM = """#!/bin/bash
echo "arguments: $*"
bucket={bucket}
step() {{ wc -l < $bucket; }}
trap 'echo "Saved at step $(step); the same command continues."; exit 0' TERM
while [ $(step) -lt {steps} ]; do
  while [ -e $bucket.$(step) ]; do sleep 0.05; done
  if [ $TPU_WORKER_ID = 0 ]; then echo $(($(step) + 1)) | tee -a $bucket; fi
  sleep 0.05
done
exit {status}
"""


@pytest.fixture
def bucket(cloud):
  """What the program has counted, which survives its workers."""
  path = cloud.folder / "bucket"
  path.touch()
  install_program(cloud, steps=STEPS)
  return path


def install_program(cloud, *, steps, status=0):
  text = PROGRAM.format(
    bucket=cloud.folder / "bucket", steps=steps, status=status
  )
  conftest.write_program(cloud.folder / "bin" / "program", text)


def gate(bucket, step):
  """A file that holds the program at a step."""
  path = bucket.with_name(f"bucket.{step}")
  path.touch()
  return path


def counted(bucket):
  return [int(line) for line in bucket.read_text().split()]


def wait_for(process, condition):
  hung = time.monotonic() + 300
  while not condition():
    assert process.poll() is None, process.stdout.read()
    assert time.monotonic() < hung
    time.sleep(0.02)


def said(lines, text):
  return [line for line in lines if text in line]


@pytest.mark.rest
def test_two_preemptions_and_what_else_goes_wrong(cloud, bucket):
  with cloud.state() as state:
    state["faults"] = [
      ["queued-resources create", "quota"],
      ["queued-resources create", "stockout"],
      ["queued-resources describe", "unavailable"],
      ["tpu-vm scp", "refused"],
      ["tpu-vm ssh", "refused"],
      ["tpu-vm ssh", "dropped", "uv pip install"],
      ["tpu-vm ssh", "dropped", "setsid"],
    ]
  gates = {step: gate(bucket, step) for step in (8, 16)}
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  try:
    for (step, held), grace in zip(gates.items(), (5.0, 0.0), strict=True):
      wait_for(process, lambda step=step: len(counted(bucket)) == step)
      cloud.preempt("xl", grace=grace)
      held.unlink()
    lines = conftest.finish(process)
  finally:
    process.kill()
  assert counted(bucket) == list(range(1, STEPS + 1))
  with cloud.state() as state:
    assert state["requests"] == {}
    assert state["faults"] == []
  assert len(said(lines, "lost: its machines are PREEMPTED")) == 2
  assert len(said(lines, "xl: ACTIVE.")) == 3
  assert said(lines, "Limit: 4 in zone us-central1-a; trying again in 0.1 s")
  assert said(lines, "There is no more capacity in the zone")
  assert said(lines, "16 chips x $0.2449 a chip-hour")
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."
  arguments = said(lines, "arguments:")
  assert set(arguments) == {
    "arguments: -m transformer_xl.main --config=experiments/ptb.py "
    "--workdir=gs://bucket/run"
  }


@pytest.mark.rest
def test_a_lost_worker_is_replaced_with_its_slice(cloud, bucket):
  held = gate(bucket, 4)  # Worker 0 would reach the end alone.
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  try:
    wait_for(process, lambda: len(counted(bucket)) == 4)
    with cloud.state() as state:
      state["lost"] = [1]
    cloud.signal([1], signal.SIGKILL)
    wait_for(process, lambda: len(cloud.calls("create")) == 2)
    held.unlink()
    lines = conftest.finish(process)
  finally:
    process.kill()
  assert counted(bucket) == list(range(1, STEPS + 1))
  assert said(lines, "given up: [/usr/bin/ssh] exited with return code [255]")
  assert len(said(lines, "xl: ACTIVE.")) == 2


@pytest.mark.rest
def test_the_verbs_one_by_one(cloud, bucket):
  def verb(*words, status=0):
    return conftest.finish(conftest.start(cloud, *words), status=status)

  created = verb("create", *ASKED, "--valid_for=6h")
  states = ("WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
  assert [line[9:] for line in created[1:5]] == [
    "xl: asking for it.",
    *(f"xl: {state}." for state in states),
  ]
  costs = "xl is ACTIVE and COSTS MONEY UNTIL YOU DELETE IT: python -m "
  assert created[-1] == f"{costs}scripts.tpu.main delete xl"
  (words,) = cloud.calls("create")
  assert set(words) >= {
    *("--node-id=xl", "--accelerator-type=v5litepod-16", "--spot"),
    *("--runtime-version=v2-alpha-tpuv5-lite", "--valid-until-duration=6h"),
  }
  assert said(verb("install"), "is installed")
  for worker in range(2):
    assert (cloud.home(worker) / "uv").read_text().splitlines() == [
      "venv --quiet --python 3.12",
      "pip install --quiet --constraint requirements.lock --editable "
      ".[tpu,gcs]",
    ]
  verb("install")  # There is nothing to do.
  assert len((cloud.home(0) / "uv").read_text().splitlines()) == 2
  data = verb("data", "--", "--dataset=ptb", "--data_dir=gs://bucket/data")
  assert said(data, "arguments: -m data_prep.main --dataset=ptb --data_dir=gs:")
  assert not (cloud.home(1) / "jobs").exists()
  bucket.write_text("")
  held = gate(bucket, 4)
  assert said(verb("start", *COMMAND), "train is started")
  again = verb("start", *COMMAND, status=2)
  assert said(again, "error: the job train runs already, with the flags it was")
  held.unlink()
  logs = verb("logs")
  assert counted(bucket) == list(range(1, STEPS + 1))
  assert said(logs, "train is finished")
  assert len(said(logs, "arguments:")) == 1
  assert (
    verb("delete")[-1] == "xl does not exist and costs nothing; buckets do."
  )


def test_a_mistake_in_the_command_is_not_repeated_and_nothing_is_left(
  cloud, bucket
):
  install_program(cloud, steps=1, status=2)
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  lines = conftest.finish(process, status=2)
  assert said(lines, "error: the command was refused, see the log above")
  assert len(said(lines, "train is started")) == 1
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."


def test_a_run_that_a_signal_stops_is_not_finished(cloud, bucket):
  held = gate(bucket, 4)
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  try:
    wait_for(process, lambda: len(counted(bucket)) == 4)
    cloud.signal([0, 1], signal.SIGTERM)  # Its status is 0.
    held.unlink()
    lines = conftest.finish(process)
  finally:
    process.kill()
  assert said(lines, "Saved at step 4; the same command continues.")
  assert said(lines, "xl: a signal stopped the run.")
  assert len(said(lines, "train is started")) == 2
  assert len(said(lines, "xl: ACTIVE.")) == 2  # The same slice, seen again.
  assert len(cloud.calls("create")) == 1
  assert counted(bucket) == list(range(1, STEPS + 1))


@pytest.mark.rest
def test_workers_that_outlast_a_failed_one_are_ended(cloud, bucket):
  held = gate(bucket, 4)
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  try:
    wait_for(process, lambda: len(counted(bucket)) == 4)
    cloud.signal([1], signal.SIGKILL)
    wait_for(
      process,
      lambda: any("kill -KILL" in " ".join(words) for words in cloud.calls()),
    )
    held.unlink()
    lines = conftest.finish(process)
  finally:
    process.kill()
  assert said(lines, "the run failed with status killed; starting it again")
  assert len(said(lines, "train is started")) == 2
  assert counted(bucket) == list(range(1, STEPS + 1))


@pytest.mark.rest
def test_an_installation_that_always_fails_ends(cloud, bucket):
  conftest.write_program(cloud.folder / "bin" / "uv", "#!/bin/sh\nexit 1\n")
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  lines = conftest.finish(process, status=2)
  assert said(lines, "error: the installation failed on 3 slices, last with")
  assert len(said(lines, "xl: ACTIVE.")) == 3
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."


@pytest.mark.rest
def test_a_run_that_crashes_again_and_again_ends(cloud, bucket):
  install_program(cloud, steps=1, status=70)
  process = conftest.start(cloud, "run", *ASKED, *COMMAND)
  lines = conftest.finish(process, status=2)
  assert said(lines, "error: the run failed 3 times, last with status 70")
  assert len(said(lines, "train is started")) == 3
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."


def interrupted(cloud, bucket, *flags):
  process = conftest.start(cloud, "run", *ASKED, *flags, *COMMAND)
  try:
    wait_for(process, lambda: len(counted(bucket)) == 4)
    process.send_signal(signal.SIGINT)
    return conftest.finish(process, status=130)
  finally:
    process.kill()


def test_after_ctrl_c_the_run_goes_on_and_the_same_command_joins_it(
  cloud, bucket
):
  held = gate(bucket, 4)
  lines = interrupted(cloud, bucket)
  assert lines[-1].startswith("xl is ACTIVE and COSTS MONEY UNTIL YOU DELETE")
  again = conftest.start(cloud, "run", *ASKED, *COMMAND)
  lines = [again.stdout.readline(), again.stdout.readline()]
  assert "the run is there; following it" in lines[-1]
  held.unlink()
  lines = conftest.finish(again)
  assert counted(bucket) == list(range(1, STEPS + 1))
  assert not said(lines, "train is started")


@pytest.mark.rest
def test_ctrl_c_deletes_if_told_so(cloud, bucket):
  gate(bucket, 4)
  lines = interrupted(cloud, bucket, "--delete_at_ctrl_c")
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."


def test_nothing_is_asked_for_without_a_confirmation(cloud):
  process = conftest.start(cloud, "create", *ASKED[:2])
  lines = conftest.finish(process, status=2)
  assert said(lines, "= $3.92 an hour")
  assert said(lines, "error: not confirmed: type yes, or give --yes.")
  assert cloud.calls("create") == []
