"""What a command cannot do with its configuration is refused in one line."""

import pytest

from tests import kinds
from tests import tiny
from transformer_xl import errors
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import rules
from transformer_xl.experiments import base

WITHOUT_ATTENTION = {"model.layers": (kinds.recurrent(),)}
RETRIEVING = kinds.mixer(has_gradient_to_memory=False)
IDLE = kinds.all_own_fields()[0]


def command_error(mode="train", **updates):
  config = load.from_config_dict(tiny.config_dict(**updates))
  with pytest.raises(errors.UserError) as caught:
    rules.check_command(config, mode)
  message = str(caught.value)
  assert "\n" not in message
  return message


@pytest.mark.parametrize("mode", ["ablation", "attention", "recl", "study"])
def test_analyses_are_at_temperature_1(mode):
  message = command_error(mode, **{"eval.temperature": (1.08,)})
  assert "set --config.eval.temperature=1.0" in message
  config = tiny.config_dict(**{"eval.temperature": (1.08,)})
  rules.check_command(load.from_config_dict(config), "eval")


def test_one_prompt_is_continued():
  both = {"generate.prompt_file": "a.txt", "generate.prompt_split": "test"}
  message = command_error("generate", **both)
  assert (
    "prompt_file is a.txt beside generate.prompt_split=test; set" in message
  )


@pytest.mark.parametrize("mode", ["ablation", "recall", "recl", "study"])
@pytest.mark.parametrize(
  "adapts", [{"eval.dynamic.kind": "sgd"}, {"eval.cache.size": 9}]
)
def test_what_is_evaluated_with_fixed_parameters_adapts_to_nothing(
  mode, adapts
):
  ((name, value),) = adapts.items()
  message = command_error(mode, **adapts)
  assert f"fixed parameters, and {name} is {value}; set --config.{name}=" in (
    message
  )


@pytest.mark.parametrize(
  ("later", "updates"),
  [
    ("recl", {"eval.temperature": (3.0,)}),
    ("recall", {"eval.cache.size": 9}),
    ("attention", WITHOUT_ATTENTION),
    ("ablation", {"model.layers": (kinds.compressing(),)}),
    ("eval_speed", {"model.layers": ("attention:4",)}),
  ],
)
def test_training_is_refused_what_a_mode_after_it_would_be(later, updates):
  finish = {"train.finish_with": ("eval", later)}
  message = command_error("train", **updates, **finish)
  assert message.startswith(f"{later} in train.finish_with ")
  config = load.from_config_dict(tiny.config_dict(**updates, **finish))
  rules.check_command(config, "eval")  # Which runs nothing afterwards.


def test_the_best_checkpoint_that_a_later_mode_reads_must_be_made():
  asked = {
    "train.eval_every_steps": 0,
    "train.finish_with": ("eval",),
    "eval.checkpoint": "best",
  }
  message = command_error(**asked)
  assert "set --config.eval.checkpoint=latest, or" in message
  for name, value in [
    ("train.eval_every_steps", 5),
    ("train.finish_with", ()),
    ("eval.checkpoint", "latest"),
  ]:
    config = load.from_config_dict(tiny.config_dict(**asked | {name: value}))
    rules.check_command(config, "train")


@pytest.mark.parametrize("mode", ["train", "ablation", "study"])
def test_validations_that_read_text_again_have_no_memory(mode):
  updates = {"eval.context_len": 4, "eval.mem_len": (0,), "train.mem_len": 8}
  message = command_error(mode, **updates)
  assert message.startswith("eval.context_len=4 is for models without memory")


@pytest.mark.parametrize("mode", ["train", "study"])
@pytest.mark.parametrize(
  ("updates", "needed"),
  [({"train.mem_len": 0}, "a memory"), (WITHOUT_ATTENTION, "attention")],
)
def test_the_use_of_memory_is_that_of_attention_to_one(mode, updates, needed):
  logged = {"train.log_memory_use": True, "train.eval_every_steps": 2}
  message = command_error(mode, **updates, **logged)
  assert message.startswith(f"train.log_memory_use needs {needed}")


# A setting without effect, and the one that gives it an effect.
NEEDED = [
  ({"train.init_parameters": "ema"}, {"train.init_from": "run"}),
  ({"train.init_checkpoint": "best"}, {"train.init_from": "run"}),
  ({"train.weight_decay": 0.1}, {"train.optimizer": "adamw"}),
  ({"train.sgd.momentum": 0.9}, {"train.optimizer": "sgd"}),
  (
    {"train.adam_epsilon": 0.1, "train.optimizer": "sgd"},
    {"train.optimizer": "adam"},
  ),
  *(
    (
      {"train.adam_b2": 0.5, "train.optimizer": "sgd"},
      {"train.optimizer": name},
    )
    for name, optimizer in registry.optimizers.items()
    if "adam_b2" in optimizer.uses
  ),
  (
    {"train.min_learning_rate_ratio": 0.1, "train.schedule": "constant"},
    {"train.schedule": "cosine"},
  ),
  (
    {"train.log_memory_use": True, "train.eval_every_steps": 0},
    {"train.eval_every_steps": 100},
  ),
  (
    {"train.decay_steps": 2000, "train.schedule": "constant"},
    {"train.schedule": "cosine"},
  ),
  ({"train.average_rate_factor": 0.5}, {"train.asgd_start_step": 5}),
  (
    {"train.asgd_start_step": 50, "train.num_steps": 50},
    {"train.num_steps": 5000},
  ),
  (
    {"model.auxiliary.target_weight": 0.1},
    {"model.auxiliary.num_targets": 2},
  ),
  (
    {"model.auxiliary.layers": "own", "model.num_layers": 1},
    {"model.num_layers": 2},
  ),
  ({"train.mem_len_low": 4, "train.mem_len": 0}, {"train.mem_len": 8}),
  ({"model.num_positions": 9}, {"model.encoding": kinds.learned()}),
  (
    {"model.attention_dropout_rate": 0.1, **WITHOUT_ATTENTION},
    {"model.layers": (kinds.recurrent(), "attention")},
  ),
  (
    {
      "train.same_length": True,
      "model.layers": (kinds.mixer(attends=False),),
    },
    {"model.layers": (RETRIEVING,)},
  ),
  ({"eval.dynamic.lanes": "shared"}, {"eval.dynamic.kind": "sgd"}),
  ({"eval.dynamic.learning_rate": (1.0,)}, {"eval.dynamic.kind": "sgd"}),
  ({"eval.dynamic.decay": (1.0,)}, {"eval.dynamic.kind": "rms"}),
  ({"eval.cache.flatness": (1.0,)}, {"eval.cache.size": 10}),
  ({"eval.cache.share": (0.5,)}, {"eval.cache.size": 10}),
  ({"generate.prompt_start": 5}, {"generate.prompt_split": "test"}),
  ({"generate.prompt_len": 5}, {"generate.prompt_split": "test"}),
  (
    {"generate.top_k": 5, "generate.temperature": 0.0},
    {"generate.temperature": 0.5},
  ),
  (
    {"generate.top_p": 0.5, "generate.temperature": 0.0},
    {"generate.temperature": 0.5},
  ),
  *(
    ({field.path: field.values[0]}, field.model)
    for field in kinds.all_own_fields()
  ),
]


@pytest.mark.parametrize(("useless", "remedy"), NEEDED, ids=str)
def test_a_setting_without_effect_is_a_warning(useless, remedy, caplog):
  """A sweep over optimizers may fix a field that only one of them has."""
  rules.check_command(changed(useless), "train")
  (message,) = caplog.messages
  name, value = next(iter(useless.items()))
  assert message.startswith(f"{name}={value} has no effect without ")
  needed = next(iter(remedy))
  assert needed in message or needed.rpartition(".")[2] in message
  caplog.clear()
  rules.check_command(changed(useless | remedy), "train")
  assert not caplog.messages


@pytest.mark.parametrize(
  "schedule",
  [
    name
    for name, schedule in registry.schedules.items()
    if "decay_steps" in schedule.uses
  ],
)
def test_updates_without_a_learning_rate_are_a_warning(schedule, caplog):
  fields = {
    "train.schedule": schedule,
    "train.num_steps": 30,
    "train.decay_steps": 20,
  }
  rules.check_command(changed(fields), "train")
  (message,) = caplog.messages
  assert message.startswith("The learning rate of the last 10 updates is 0")
  caplog.clear()
  for kept in (
    {"train.decay_steps": 30},
    {"train.min_learning_rate_ratio": 0.1},
  ):
    rules.check_command(changed(fields | kept), "train")
  assert not caplog.messages


def test_variants_may_have_other_layers_and_encodings(caplog):
  config = changed(
    {
      **WITHOUT_ATTENTION,
      "model.qk_norm": True,
      "model.num_positions": 9,
      IDLE.path: IDLE.values[0],
    }
  )
  rules.check_command(config, "train")
  assert len(caplog.messages) == 3
  caplog.clear()
  rules.check_command(config, "study")
  assert not caplog.messages


def changed(fields):
  """The base experiment with other values of these fields."""
  config = base.get_config()
  config.update_from_flattened_dict(fields)
  return load.from_config_dict(config)


@pytest.mark.parametrize("mode", ["train", "ablation", "study"])
@pytest.mark.parametrize(
  ("kind", "keeps"),
  [("ema", "train.ema_decay"), ("asgd", "train.asgd_start_step")],
)
def test_training_keeps_the_average_that_it_evaluates(mode, kind, keeps):
  message = command_error(mode, **{"eval.parameters": kind})
  assert f"eval.parameters={kind}, but training keeps no average" in message
  assert f"--config.{keeps}" in message
  assert "or --config.eval.parameters=raw" in message


def test_evaluation_may_know_nothing_of_the_average_that_training_kept():
  config = load.from_config_dict(tiny.config_dict(**{"eval.parameters": "ema"}))
  rules.check_command(config, "eval")


@pytest.mark.parametrize("mode", ["recl", "ablation"])
def test_all_tokens_are_measured_where_all_count(mode):
  message = command_error(mode, **{"data.targets": "answers"})
  assert message.startswith(f"--mode={mode} measures the loss of all tokens")
  assert message.endswith("set --config.data.targets=all.")


@pytest.mark.parametrize("mode", ["attention", "eval_speed", "ablation"])
def test_modes_that_need_attention_are_refused(mode):
  message = command_error(mode, **WITHOUT_ATTENTION)
  assert message.startswith(f"--mode={mode} needs attention")
  rules.check_command(
    load.from_config_dict(tiny.config_dict(**WITHOUT_ATTENTION)), "recl"
  )
