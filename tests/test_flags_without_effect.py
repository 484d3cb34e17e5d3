"""A flag that the mode does not read is named in a warning."""

import pytest

from tests import kinds
from transformer_xl import main

CARRYING, ROTATING = kinds.recurrent(), kinds.encoding(rotates=True)


@pytest.mark.parametrize(
  ("words", "mode", "named"),
  [
    ("--mode=check", "check", []),
    ("--mode=check --config=quickstart", "check", ["--config"]),
    ("--mode=check --config.model.num_layers=3", "check", ["--config"]),
    (f"--mode=check --config.model.encoding={ROTATING}", "check", []),
    (f"--mode=check --config.model.layers ('{CARRYING}',)", "check", []),
    ("--config quickstart --target=x", "train", ["--target"]),
    (
      "--config=saved:run --mode=eval --format=stablehlo --topology=v5e:4x4",
      "eval",
      ["--topology", "--format"],
    ),
    ("--config=saved:run --mode=export --target=x", "export", []),
    ("--config=base --mode=plan --topology=v5e:4x4", "plan", []),
  ],
)
def test_flags_that_a_mode_does_not_read_are_named(words, mode, named):
  argv = ["transformer-xl", *words.split()]
  warnings = main.flags_without_effect(argv, mode)
  assert [each for each in named if each in " ".join(warnings)] == named
  assert len(warnings) == len(named)
