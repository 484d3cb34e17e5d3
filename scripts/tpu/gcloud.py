"""Calls `gcloud`, and tells refusals that may pass from a user's mistakes."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from typing import NamedTuple

from transformer_xl import errors


class RefusedError(Exception):
  """Gcloud or the cloud refused; the same call may succeed later."""


class AbsentError(Exception):
  """What the call names does not exist."""


class ExistsError(Exception):
  """What the call creates exists already."""


class Place(NamedTuple):
  """Where resources are; None for what `gcloud config` says."""

  project: str | None = None
  zone: str | None = None

  def flags(self) -> list[str]:
    """The flags of gcloud that say so."""
    named = zip(self._fields, self, strict=True)
    return [f"--{name}={value}" for name, value in named if value]


# The first that matches what gcloud says decides. A quota comes before
# permissions, because the cloud calls some of its quotas forbidden.
_MISTAKES = (
  (
    r"Limit:? 0(\.0)? in\b",
    "the project has no quota for this type here; ask for it at "
    "https://cloud.google.com/tpu/docs/quota, or take another --type, --tier "
    "or --zone",
  ),
  (r"quota|RESOURCE_EXHAUSTED|no more capacity", None),
  (
    r"gcloud auth login|active account selected|invalid_grant|"
    r"[Rr]eauthentication",
    "gcloud has no valid login; run: gcloud auth login",
  ),
  (
    r"SERVICE_DISABLED|has not been used in project",
    "the project has no Cloud TPU API; run: gcloud services enable "
    "tpu.googleapis.com",
  ),
  (
    r"PERMISSION_DENIED|does not have permission|[Pp]ermission '[^']*' denied",
    "your account may not do this in the project; the roles TPU Admin, Service "
    "Account User and Compute Viewer are needed, or another --project",
  ),
  (
    r"(property|attribute) \[(core/)?project\]|[Pp]roject\b.*(not found|not "
    r"exist|invalid)|Invalid project",
    "name a project that exists: --project=ID, or gcloud config set project ID",
  ),
  (
    r"(property|attribute) \[(compute/)?zone\]|[Ll]ocation\b.*(not found|"
    r"invalid|not available)|[Ii]nvalid zone",
    "name a zone with TPUs: --zone=ZONE, or gcloud config set compute/zone "
    "ZONE; https://cloud.google.com/tpu/docs/regions-zones lists them",
  ),
  (
    r"INVALID_ARGUMENT|Invalid value|unrecognized arguments|Bad Request",
    "see which types the zone has with: gcloud compute tpus tpu-vm "
    "accelerator-types list",
  ),
)
# Gcloud adds it to refusals, whatever their reason.
_ACCOUNT = r"This command is authenticated as [^\n]*"
_ABSENT = r"NOT_FOUND|\bnot found|[Cc]ould not fetch resource"
_EXISTS = r"ALREADY_EXISTS|already exists"


def call(*words: str, seconds: float = 900) -> str:
  """What gcloud prints to standard output.

  Args:
    *words: what follows `gcloud`.
    seconds: after which it is ended.

  Raises:
    AbsentError, ExistsError: what the words name is not there, or is.
    RefusedError: anything else that may pass; also after `seconds`.
    UserError: it will not pass.
  """
  if not shutil.which("gcloud"):
    raise errors.UserError(
      "there is no gcloud on PATH: install the Google Cloud CLI from "
      "https://cloud.google.com/sdk/docs/install, or use Cloud Shell."
    )
  process = subprocess.Popen(
    ["gcloud", *words, "--quiet"],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    encoding="utf-8",
    errors="replace",
    start_new_session=True,  # Ctrl-C is for this program to answer.
  )
  try:
    output, said = process.communicate(timeout=seconds)
  except BaseException as error:
    with contextlib.suppress(ProcessLookupError):  # It has ended.
      os.killpg(process.pid, signal.SIGKILL)  # The ssh below gcloud as well.
    process.communicate()
    if isinstance(error, subprocess.TimeoutExpired):
      raise RefusedError(f"gcloud took longer than {seconds:.0f} s") from None
    raise
  if process.returncode:
    raise refusal(said)
  return output


def refusal(said: str) -> Exception:
  """The error for what gcloud said."""
  said = re.sub(_ACCOUNT, "", said)
  reason = summary(said)
  for pattern, fix in _MISTAKES:
    if re.search(pattern, said):
      if fix is None:
        break
      return errors.UserError(f"gcloud: {reason}: {fix}.")
  else:
    if re.search(_ABSENT, said):
      return AbsentError(reason)
    if re.search(_EXISTS, said):
      return ExistsError(reason)
  return RefusedError(reason)


def summary(said: str) -> str:
  """The line that says why, without the name of the command."""
  lines = [line.strip() for line in said.splitlines() if line.strip()]
  last = next((line for line in reversed(lines) if "ERROR" in line), None)
  text = " ".join(lines[lines.index(last) :]) if last else "".join(lines[-1:])
  message = re.search(r'"message": "((?:[^"\\]|\\.)*)"', text)
  text = message[1].replace('\\"', '"') if message else text
  text = re.sub(r"^ERROR: (\([\w.-]+\) )?", "", text)
  return text.rstrip(". ")[:200] or "gcloud failed and said nothing"
