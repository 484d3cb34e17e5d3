"""The stages in which runs are hurt are functions that there are."""

import pytest

from tests.faults import command


@pytest.mark.parametrize("stage", command.STAGES)
def test_a_stage_is_a_function_of_the_package(stage):
  owner, name = command.STAGES[stage]
  assert callable(getattr(owner, name, None)), f"{owner} has no {name}"
