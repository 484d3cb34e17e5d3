"""What gcloud says is told apart: to be tried again, or a user's mistake."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from scripts.tpu import gcloud
from tests.scripts import conftest
from tests.scripts import stand_in
from transformer_xl import errors

PREFIX = "ERROR: (gcloud.compute.tpus.queued-resources.create) "
# As Google Cloud SDK 528 and the cloud word them.
MISTAKES = {
  "gcloud auth login": (
    "You do not currently have an active account selected.\nPlease run:\n\n"
    "  $ gcloud auth login\n\nto obtain new credentials.\n"
  ),
  "--zone=ZONE": (
    "Error parsing [queued_resource].\nThe [queued_resource] resource is not "
    "properly specified.\nFailed to find attribute [zone]. The attribute can be"
    " set in the following ways: \n- set the property `compute/zone`\n"
  ),
  "gcloud config set compute/zone": (
    "The required property [zone] is not currently set.\nIt can be set on a "
    "per-command basis by re-running your command with the [--zone] flag.\n"
  ),
  "--project=ID": "The required property [project] is not currently set.\n",
  "gcloud services enable tpu.googleapis.com": (
    "PERMISSION_DENIED: Cloud TPU API has not been used in project 7 before or "
    "it is disabled.\nreason: SERVICE_DISABLED"
  ),
  "TPU Admin": stand_in.SAID["permission"],
  "no quota": stand_in.SAID["no quota"],
  "accelerator-types list": (
    "INVALID_ARGUMENT: Accelerator type v5litepod-3 is not available in "
    "us-central1-a."
  ),
}
PASSING = {
  **{name: stand_in.SAID[name] for name in ("quota", "stockout", "refused")},
  "busy": "FAILED_PRECONDITION: not supported when state is PROVISIONING",
  "internal": "INTERNAL: Internal error encountered.",
}


@pytest.mark.parametrize("fix", MISTAKES)
def test_a_mistake_is_one_line_with_the_fix(fix):
  error = gcloud.refusal(PREFIX + MISTAKES[fix])
  assert isinstance(error, errors.UserError)
  assert fix in str(error)
  assert "\n" not in str(error)


@pytest.mark.parametrize("text", PASSING.values(), ids=PASSING)
def test_what_may_pass_is_tried_again(text):
  error = gcloud.refusal(PREFIX + text)
  assert type(error) is gcloud.RefusedError
  assert "gcloud.compute" not in str(error)


def test_what_is_absent_or_there_already():
  absent = gcloud.refusal(PREFIX + stand_in.absent("queuedResources/xl"))
  exists = gcloud.refusal(f"{PREFIX}ALREADY_EXISTS: Resource already exists.")
  assert isinstance(absent, gcloud.AbsentError)
  assert str(absent).endswith("queuedResources/xl' was not found")
  assert isinstance(exists, gcloud.ExistsError)


def test_a_call_that_hangs_ends_with_what_it_started(tmp_path, monkeypatch):
  text = f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/pid\nwait\n"
  conftest.write_program(tmp_path / "bin" / "gcloud", text)
  monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
  with pytest.raises(gcloud.RefusedError, match="took longer than 1 s"):
    gcloud.call("compute", seconds=1)
  child = (tmp_path / "pid").read_text().strip()
  command = pathlib.Path("/proc", child, "cmdline")  # A zombie's is empty.
  assert not command.exists() or not command.read_text()


def test_gcloud_has_to_be_there(monkeypatch, tmp_path):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(errors.UserError, match="no gcloud on PATH"):
    gcloud.call("compute")


@pytest.mark.rest
@pytest.mark.skipif(not shutil.which("gcloud"), reason="there is no gcloud")
@pytest.mark.parametrize("command", stand_in.FLAGS)
def test_the_flags_of_the_stand_in_are_those_of_gcloud(command, tmp_path):
  finished = subprocess.run(
    ["gcloud", "compute", "tpus", *command.split(), "--help"],
    env=os.environ | {"CLOUDSDK_CONFIG": str(tmp_path)},
    capture_output=True,
    check=True,
    text=True,
  )
  manual = re.sub(r"\x1b\[\d*m", "", finished.stdout)
  for flag in stand_in.FLAGS[command] | {"--zone", "--project", "--format"}:
    assert re.search(rf"(?<![\w-]){flag}(?![\w-])", manual), flag
