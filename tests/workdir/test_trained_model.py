"""The parameters of a run are read by name, step or rank."""

import pytest

from tests import tiny
from tests.workdir.test_checkpoint import assert_same
from tests.workdir.test_checkpoint import make_state
from tests.workdir.test_checkpoint import save
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.workdir import checkpoint_items
from transformer_xl.workdir import trained_model


def test_parameters_of_the_average_are_read_by_name(tmp_path):
  state = make_state(3, average=True)
  save(tmp_path, [state])
  target = make_state(0).params
  params, _ = trained_model.restore_params(
    str(tmp_path), which="latest", average=True, target=target
  )
  assert_same(params, state.average)
  save(tmp_path / "without", [make_state(3)])
  with pytest.raises(errors.UserError, match="no average of the"):
    trained_model.restore_params(
      str(tmp_path / "without"), which="latest", average=True, target=target
    )


def test_parameters_alone_are_a_checkpoint_that_evaluation_reads(tmp_path):
  params = make_state(9).params
  trained_model.save_params(str(tmp_path), params, step=9)
  restored, step = trained_model.restore_params(
    str(tmp_path), which="latest", average=False, target=make_state(0).params
  )
  assert step == 9
  assert_same(restored, params)


@pytest.mark.parametrize(
  ("fields", "lengths", "warning"),
  [
    ({}, (12, 0), ""),
    ({}, (13, 0), "beyond the 12 of training; set a segment_len of 12 or less"),
    ({}, (12, 4), "trained without one"),
    ({"train.segment_lens": (6, 10)}, (15, 0), "beyond the 14 of training"),
    ({"model.encoding": "relative"}, (99, 99), ""),
  ],
)
def test_positions_that_training_did_not_have_are_warned_of(
  fields, lengths, warning, caplog
):
  values = {
    "model.encoding": "absolute",
    "train.segment_len": 8,
    "train.context_len": 4,
    "train.mem_len": 0,
  }
  config = load.from_config_dict(tiny.config_dict(**values | fields))
  segment_len, mem_len = lengths
  trained_model.warn_of_untrained_positions(
    config, segment_len=segment_len, mem_len=mem_len
  )
  assert len(caplog.messages) == bool(warning)
  assert warning in caplog.text


@pytest.mark.parametrize("which", ["best", "5", "newest"])
def test_a_checkpoint_that_is_not_there_is_named(tmp_path, which):
  save(tmp_path, [make_state(3)])
  with pytest.raises(errors.UserError, match=r"has the steps \[3\]"):
    trained_model.restore_params(
      str(tmp_path), which=which, average=False, target=make_state(0).params
    )


def test_a_run_that_saved_nothing_yet_is_told_to_train(tmp_path):
  (tmp_path / checkpoint_items.DIRECTORY).mkdir()
  with pytest.raises(errors.UserError, match="there are no checkpoints in"):
    trained_model.restore_params(
      str(tmp_path), which="latest", average=False, target=make_state(0).params
    )


def test_a_bucket_that_refuses_is_not_one_without_checkpoints(bucket, faulty):
  with (
    faulty.failing("answer", status=403),
    pytest.raises(errors.UserError, match=r"roles/storage\.objectUser"),
  ):
    trained_model.restore_params(
      f"{bucket}/run",
      which="latest",
      average=False,
      target=make_state(0).params,
    )
