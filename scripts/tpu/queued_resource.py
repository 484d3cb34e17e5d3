"""Queued resources: requests for a TPU slice, and the slice that they bring.

A request and its only node have the same name.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scripts.tpu import gcloud
from transformer_xl import errors

_REQUESTS = ("compute", "tpus", "queued-resources")
_NODES = ("compute", "tpus", "tpu-vm")
# From these a request may still become ACTIVE.
_COMING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
_LOOKS = 10  # After so many without machines, an active request is lost.
_MOST_PAUSES = 20  # The longest pause is so many intervals.


class GoneError(Exception):
  """The machines of a slice are not there, or not in use."""


class Slice(NamedTuple):
  """A slice and how to ask for it."""

  name: str
  place: gcloud.Place
  interval: float  # Seconds between two looks.
  type: str = ""
  runtime_version: str = ""
  tier: str = "on-demand"
  valid_for: str = ""  # The request expires after this, if it is still waiting.


class Node(NamedTuple):
  """The machines of a slice."""

  state: str
  num_workers: int


def pauses(slice_: Slice) -> Iterator[float]:
  """Seconds to wait before the next try, twice as many each time."""
  count = 1
  while True:
    yield slice_.interval * count
    count = min(2 * count, _MOST_PAUSES)


def log(text: str) -> None:
  """Prints a line with the time."""
  print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def patiently(
  slice_: Slice, what: str, call: Callable[[], Any], tries: int | None = None
) -> Any:
  """Calls until it is not refused, with pauses.

  Args:
    slice_: for which.
    what: what is refused, for the log.
    call: raises RefusedError, to be called again.
    tries: how often; None for as long as it takes.

  Raises:
    RefusedError: the last try was refused, too.
  """
  for number, pause in enumerate(pauses(slice_), 1):
    try:
      return call()
    except gcloud.RefusedError as error:
      if number == tries:
        raise
      log(f"{slice_.name}: {what}: {error}; trying again in {pause:g} s.")
      time.sleep(pause)
  raise AssertionError("pauses end")


def request(slice_: Slice) -> dict[str, Any] | None:
  """The request as the cloud describes it; None if there is none.

  Raises:
    RefusedError: it cannot be seen now.
  """
  words = (*_REQUESTS, "describe", slice_.name, "--format=json")
  try:
    return json.loads(gcloud.call(*words, *slice_.place.flags(), seconds=120))
  except gcloud.AbsentError:
    return None


def state(slice_: Slice) -> str | None:
  """The state of the request, such as ACTIVE; None if there is none."""
  found = request(slice_)
  return found["state"]["state"] if found else None


def is_up_or_coming(found: dict[str, Any]) -> bool:
  """Whether a request has machines, or waits for them."""
  return found["state"]["state"] in (*_COMING, "ACTIVE")


def type_of(found: dict[str, Any]) -> str:
  """The accelerator type of a request."""
  return found["tpu"]["nodeSpec"][0]["node"]["acceleratorType"]


def node(slice_: Slice) -> Node | None:
  """The machines; None if there are none.

  Raises:
    RefusedError: they cannot be seen now.
  """
  words = (*_NODES, "describe", slice_.name, "--format=json")
  try:
    found = json.loads(gcloud.call(*words, *slice_.place.flags(), seconds=120))
  except gcloud.AbsentError:
    return None
  return Node(found["state"], len(found.get("networkEndpoints", [])))


def ensure(slice_: Slice) -> None:
  """Waits until the slice is up; asks for it, and again if it is taken away.

  Raises:
    UserError: the request is refused for good.
  """
  looks, last = 0, ""
  tries = pauses(slice_)
  while True:
    found = patiently(slice_, "cannot be seen", lambda: request(slice_))
    now = found["state"]["state"] if found else "asking for it"
    is_old = not last
    if now != last:
      log(f"{slice_.name}: {now}.")
      last = now
    if found is None:
      _create(slice_)
      continue
    if now == "ACTIVE" and _is_ready(slice_):
      return
    looks = looks + 1 if now == "ACTIVE" else 0
    if looks > _LOOKS or now not in (*_COMING, "ACTIVE", "DELETING"):
      if not is_old:  # An old request says nothing about the next one.
        _explain(slice_, found)
      delete(slice_)
      looks = 0
      time.sleep(next(tries))
    else:
      time.sleep(slice_.interval)


def _is_ready(slice_: Slice) -> bool:
  found = patiently(slice_, "cannot be seen", lambda: node(slice_))
  return found is not None and found.state == "READY"


def _create(slice_: Slice) -> None:
  words = [
    *(*_REQUESTS, "create", slice_.name, f"--node-id={slice_.name}"),
    f"--accelerator-type={slice_.type}",
    f"--runtime-version={slice_.runtime_version}",
    *slice_.place.flags(),
  ]
  if slice_.tier != "on-demand":
    words.append(f"--{slice_.tier}")
  if slice_.valid_for:
    words.append(f"--valid-until-duration={slice_.valid_for}")

  def create():
    # It exists if an earlier call was answered with an error and succeeded.
    with contextlib.suppress(gcloud.ExistsError):
      gcloud.call(*words)

  patiently(slice_, "not granted", create)


def _explain(slice_: Slice, found: dict[str, Any]) -> None:
  """Logs why a request failed; ends if it is not to be made again."""
  error = found["state"].get("failedData", {}).get("error", {})
  if message := error.get("message"):
    log(f"{slice_.name}: {message}")
    refused = gcloud.refusal(f"ERROR: {message}")
    if isinstance(refused, errors.UserError):
      raise refused
  if slice_.valid_for and found["state"]["state"] == "FAILED":
    delete(slice_)
    raise errors.UserError(
      f"{slice_.name} was not granted in {slice_.valid_for}: wait longer, or "
      "take another --type, --tier or --zone."
    )


def delete(slice_: Slice) -> None:
  """Deletes the request and its machines, and waits until they are gone.

  Raises:
    RefusedError: they are still there after many tries.
  """
  words = (*_REQUESTS, "delete", slice_.name, "--force")

  def gone():
    try:
      gcloud.call(*words, *slice_.place.flags())
    except gcloud.AbsentError:
      return
    if (left := state(slice_)) is not None:
      raise gcloud.RefusedError(f"it is still {left}")

  patiently(slice_, "not deleted yet", gone, tries=30)
  log(f"{slice_.name}: deleted.")


def bill(slice_: Slice) -> str:
  """What is left and costs money, in one line."""
  again = " ".join(["delete", slice_.name, *slice_.place.flags()])
  command = f"python -m scripts.tpu.main {again}"
  try:
    left = state(slice_)
  except (gcloud.RefusedError, errors.UserError):
    return (
      f"{slice_.name} MAY COST MONEY: its state cannot be seen. To delete it: "
      f"{command}"
    )
  if left is None:
    return f"{slice_.name} does not exist and costs nothing; buckets do."
  if left in ("FAILED", "SUSPENDED"):
    return f"{slice_.name} is {left}, costs nothing, and holds quota: {command}"
  return (
    f"{slice_.name} is {left} and COSTS MONEY UNTIL YOU DELETE IT: {command}"
  )
