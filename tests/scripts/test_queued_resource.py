"""Requests for a slice: refused, failed, of another type, and deleted."""

import pytest

from tests.scripts import conftest
from tests.scripts.test_session import ASKED
from tests.scripts.test_session import said

REQUEST = {"state": "ACTIVE", "fails": False, "type": "v5litepod-16"}


@pytest.mark.rest
def test_a_request_that_fails_late_is_made_again_or_given_up(cloud):
  late = ["queued-resources create", "late"]
  with cloud.state() as state:
    state["faults"] = [late]
  lines = conftest.finish(conftest.start(cloud, "create", *ASKED))
  assert said(lines, "xl: FAILED.")
  assert said(lines, "xl: Insufficient capacity.")
  assert len(said(lines, "xl: asking for it.")) == 2
  conftest.finish(conftest.start(cloud, "delete"))
  with cloud.state() as state:
    state["faults"] = [late]
  process = conftest.start(cloud, "create", *ASKED, "--valid_for=6h")
  lines = conftest.finish(process, status=2)
  assert said(lines, "error: xl was not granted in 6h: wait longer")
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."


def test_a_request_is_deleted_when_the_cloud_allows_it(cloud):
  with cloud.state() as state:
    state["requests"]["xl"] = REQUEST | {"state": "PROVISIONING"}
  lines = conftest.finish(conftest.start(cloud, "delete"))
  assert said(lines, "not supported when state is PROVISIONING")
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."


def test_a_slice_of_another_type_is_not_taken_for_the_one_asked_for(cloud):
  with cloud.state() as state:
    state["requests"]["xl"] = dict(REQUEST)
  flags = ("--type=v6e-8", "--yes")
  lines = conftest.finish(conftest.start(cloud, "create", *flags), status=2)
  assert said(lines, "error: xl is there as v5litepod-16, and --type is v6e-8")
  assert cloud.calls("create") == []


def test_a_slice_that_failed_before_is_not_replaced_without_a_yes(cloud):
  with cloud.state() as state:
    state["requests"]["xl"] = REQUEST | {"state": "FAILED"}
  flags = ("--type=v5p-32", "--valid_for=6h")
  lines = conftest.finish(conftest.start(cloud, "create", *flags), status=2)
  assert said(lines, "not confirmed")
  assert said(lines, "16 chips x $4.2 a chip-hour")
  assert cloud.calls("create") == []
  lines = conftest.finish(conftest.start(cloud, "create", *flags, "--yes"))
  assert said(lines, "xl: ACTIVE.")


@pytest.mark.parametrize(
  ("fault", "fix"),
  [
    ("no quota", "the project has no quota for this type here"),
    ("permission", "your account may not do this in the project"),
  ],
)
def test_what_will_never_be_granted_ends_at_once(cloud, fault, fix):
  with cloud.state() as state:
    state["faults"] = [["queued-resources create", fault]]
  process = conftest.start(cloud, "create", *ASKED)
  lines = conftest.finish(process, status=2)
  assert said(lines, f": {fix}")
  assert lines[-1] == "xl does not exist and costs nothing; buckets do."
  assert len(cloud.calls("create")) == 1
