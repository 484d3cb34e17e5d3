"""A field that somebody looks for under another name is found."""

import pytest

from transformer_xl.config import schema
from transformer_xl.config import suggestions


@pytest.mark.parametrize(
  ("path", "fields"),
  [
    ("train.lr", ["train.learning_rate"]),
    ("lr", ["train.learning_rate"]),
    ("train.bs", ["train.batch_size"]),
    ("model.n_layer", ["model.num_layers"]),
    ("model.dropout", ["model.dropout_rate"]),
    ("train.epochs", ["train.num_steps"]),
    ("train.learning-rate", ["train.learning_rate"]),
    ("eval.dynamic.lr", ["eval.dynamic.learning_rate"]),
    ("eval.dynamic.learning_rat", ["eval.dynamic.learning_rate"]),
    (
      "model.batch_size",
      [f"{x}.batch_size" for x in ("train", "eval", "score")],
    ),
    ("eval.batch_sise", ["eval.batch_size"]),
    ("modle", ["model"]),
    ("xyzzy", []),
  ],
)
def test_a_wrong_name_stands_for_the_nearest_fields(path, fields):
  assert suggestions.meant(path) == fields


def test_a_name_of_another_program_comes_with_what_the_field_means():
  assert suggestions.hint("train.epochs") == (
    "; did you mean config.train.num_steps? "
    + schema.all_fields()["train.num_steps"].remark
  )


def test_every_suggestion_is_a_field():
  assert {*suggestions.OTHER_NAMES.values()} <= schema.all_fields().keys()
