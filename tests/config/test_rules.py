"""Values that break a rule are named in one line, alone or together."""

import typing

import pytest

from tests import kinds
from tests import tiny
from tests.config.test_load import refusal
from transformer_xl.config import fields
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema

RECURRENT = kinds.recurrent()
WRONG = {
  "at least 1": [0],
  "-1 or at least 1": [0, -2],
  "0 or more": [-1],
  "above 0": [0.0],
  "in [0, 1)": [-0.5, 1.0],
  "in (0, 1)": [0.0, 1.0],
  "in (0, 1]": [0.0, 1.5],
  "-1 or more": [-2, -7],
  "PATTERN=FACTOR": ["no such"],
  "in [0, 256]": [-1, 257],
  "none, wandb or MODULE:CLASS": ["tensorboard", "module:", ":Class", "a b:C"],
  "MIXER or MIXER:LIMIT": ["no such", "attention:0", "attention:-1", ":4", ""],
}


def wrong_values(field):
  """Values of the field's type that its rule forbids."""
  if typing.get_origin(field.type) is not tuple:
    return WRONG.get(field.rule.text, ["no such"])
  wrong = WRONG.get(_rule_of_one(field))
  if wrong is None or typing.get_args(field.type)[0] is float:
    wrong = [{float: -0.5, str: "no such"}[typing.get_args(field.type)[0]]]
  return [values for one in wrong for values in ((one,), (*field.default, one))]


def _rule_of_one(field):
  """The rule of each element, if the field is a tuple."""
  text = field.rule.text.removesuffix(" each")
  return text.removesuffix(", one or several")


RULES = [
  (name, value)
  for name, field in schema.all_fields().items()
  if field.rule is not None
  for value in wrong_values(field)
]


def test_every_rule_is_broken_by_some_value():
  used = {
    _rule_of_one(field) for field in schema.all_fields().values() if field.rule
  }
  # A rule that no field of the package has is for extensions.
  assert used | {"in (0, 1)"} >= set(WRONG)
  assert set(WRONG) == {*fields.RULES, registry.tracker_rule().text}
  assert len(RULES) > 80


def test_the_name_of_a_mixer_may_have_digits():
  rule = fields.RULES["MIXER or MIXER:LIMIT"]
  assert all(map(rule, ("attention", "mamba2", "s4:128", "gla_16")))


@pytest.mark.parametrize("text", fields.RULES)
def test_a_rule_holds_for_no_value_that_breaks_it(text):
  assert not any(map(fields.RULES[text], WRONG[text]))


@pytest.mark.parametrize(("name", "value"), RULES)
def test_a_value_out_of_range_is_named_with_its_field(name, value):
  message = refusal(tiny.config_dict(**{name: value}))
  assert message.startswith(f"{name} must be ")
  assert f"set --config.{name}." in message


@pytest.mark.parametrize(
  ("updates", "said"),
  [
    ({"model.model_dim": 7}, "model.model_dim must be even"),
    ({"model.cutoffs": (9, 5)}, "model.cutoffs must rise"),
    (
      {"eval.cache.share": ()},
      "eval.cache.share must be in [0, 1), one or",
    ),
    (
      {"model.layers": ("attention:64", RECURRENT, "attention")},
      "has 3 entries, which must divide model.num_layers=2",
    ),
    (
      {"model.layers": ("attention", "mamba")},
      f"names 'mamba'; the mixers are {', '.join(registry.mixers)}: set "
      "--config.model.layers",
    ),
    (
      {"model.layers": (f"{RECURRENT}:4",)},
      f"limits the memory of '{RECURRENT}', which takes no limit; set "
      f"--config.model.layers with '{RECURRENT}' alone",
    ),
    ({"model.layers": ()}, "must be MIXER or MIXER:LIMIT, one or several"),
    ({"model.cutoffs": (5, 23)}, "model.vocab_size=23"),
    ({"model.cutoffs": (0, 5)}, "model.cutoffs must rise"),
    ({"model.cutoffs": (5, 9), "model.div_val": 4}, "leaves no width"),
    ({"eval.mem_len": (4, -1)}, "eval.mem_len must be 0 or more"),
    ({"eval.mem_len": ()}, "must be 0 or more, one or several: it is ()"),
    (
      {"train.batch_size": 6, "train.accumulation_steps": 4},
      "--config.train.batch_size=8",
    ),
    (
      {"train.ema_decay": 0.9, "train.asgd_start_step": 5},
      "not train.ema_decay=0.9 and train.asgd_start_step=5",
    ),
    (
      {"train.ema_decay": 0.9, "eval.parameters": "asgd"},
      "set --config.eval.parameters=ema or raw",
    ),
    *(
      (
        {"model.layers": (name,), "model.memory_start": "zeros"},
        f"a layer with {name} has no zeros to attend to, but "
        "model.memory_start=zeros; set --config.model.memory_start=masked",
      )
      for name in kinds.mixers(attends_zeros=False)
    ),
    (
      {"train.context_len": 3},
      "but train.mem_len is 128; set --config.train.mem_len=0",
    ),
    ({"train.segment_len_std": 2.0}, "or --config.train.segment_len_std=0"),
    ({"eval.context_len": 3}, "set --config.eval.mem_len=0 or"),
    (
      {
        **{"eval.context_len": 3, "eval.mem_len": (0,)},
        **{"train.mem_len": 0, "model.memory_start": "zeros"},
      },
      "set --config.model.memory_start=masked",
    ),
    (
      {
        **{"train.segment_len_std": 2.0, "train.mem_len": 0},
        "train.loss_on": "recent_half",
      },
      "--config.train.loss_on=all",
    ),
    (
      {"eval.temperature": (1.0, 1.1), "eval.split": "test"},
      "2 settings of eval.temperature",
    ),
    (
      {"train.warmup_steps": 9, "train.decay_steps": 9},
      "train.decay_steps=9",
    ),
    (
      {"train.warmup_steps": 1000},
      "must be below train.num_steps=1000 and train.decay_steps=1000; set "
      "--config.train.warmup_steps=100.",
    ),
    (
      {"data.reset_at_documents": True, "model.memory_start": "zeros"},
      "--config.model.memory_start=masked",
    ),
    (
      {"train.segment_len": 2, "model.auxiliary.num_targets": 3},
      "must be at most train.segment_len=2",
    ),
    (
      {"train.mem_len": 4, "train.mem_len_low": 5},
      "must be at most train.mem_len=4",
    ),
    (
      {"train.mem_len_low": 0, "model.memory_start": "zeros"},
      "all of it is seen; set --config.model.memory_start=masked",
    ),
    (
      {"train.mem_len_low": 0, "model.layers": (kinds.compressing(),)},
      "remembers several tokens in one vector",
    ),
  ],
  ids=str,
)
def test_fields_that_contradict_each_other_are_named(updates, said):
  assert said in refusal(tiny.config_dict(**updates))


@pytest.mark.parametrize(
  ("axis", "parts", "says"),
  [
    ("fsdp", 3, "must divide model.model_dim=8; the nearest that do are 2 and"),
    ("tensor", 4, "num_heads=2 and model.ff_dim=12; the nearest that do are 1"),
  ],
)
def test_a_mesh_that_would_leave_matrices_whole_names_the_nearest(
  axis, parts, says
):
  config = tiny.config_dict(**{f"mesh.{axis}": parts})
  assert says in refusal(config)


def test_what_divides_a_large_model_is_found_at_once():
  config = tiny.config_dict(**{"model.model_dim": 2**30, "mesh.fsdp": 3})
  assert "the nearest that do are 2 and 4" in refusal(config)


@pytest.mark.parametrize("modes", [("",), ("evaluate",), ("eval", "plan")])
def test_training_ends_with_modes_that_exist(modes):
  message = refusal(tiny.config_dict(**{"train.finish_with": modes}))
  assert f"'study') each: it is {modes}" in message


@pytest.mark.parametrize(
  ("intervals", "expected"),
  [
    ((50, 500, 500), 10),
    ((1, 500, 500), 1),
    ((50, 0, 75), 5),  # Without validations.
    ((6, 9, 2**31 - 2), 3),
    ((7, 14, 21), 7),
    ((1000, 1000, 4000), 10),
  ],
)
def test_a_call_of_training_divides_all_intervals(intervals, expected):
  names = ("train.log_every_steps", "train.eval_every_steps")
  names = (*names, "checkpoint.every_steps")
  fields = dict(zip(names, intervals, strict=True))
  config = load.from_config_dict(tiny.config_dict(**fields))
  assert config.train.segments_per_call == 10
  assert config.updates_per_call == expected
