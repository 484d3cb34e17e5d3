"""Every mistake in a configuration ends in one line that names the fix."""

import dataclasses
import json
import operator

import ml_collections
import pytest

from tests import tiny
from transformer_xl import errors
from transformer_xl.analysis import variants
from transformer_xl.config import config_flag
from transformer_xl.config import load
from transformer_xl.config import schema
from transformer_xl.experiments import base


def refusal(config: ml_collections.ConfigDict) -> str:
  """What loading it says."""
  with pytest.raises(errors.UserError) as caught:
    load.from_config_dict(config)
  message = str(caught.value)
  assert message
  assert "\n" not in message
  return message


def test_the_base_experiment_converts_field_by_field():
  config = base.get_config()
  frozen = load.from_config_dict(config)
  # Tuples come back as tuples, whatever the dictionary made of them.
  assert dataclasses.asdict(frozen) == config.to_dict()
  with pytest.raises(dataclasses.FrozenInstanceError):
    frozen.model.num_layers = 1


def test_a_tilde_is_the_home_of_the_user(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  config = base.get_config()
  config.data.dir = "~/data"
  config.train.init_from = "~/run"
  config.generate.prompt_file = "~/prompt"
  config.score.file = "~/texts"
  config.analysis.group = ("~/run", "other")
  config.report.runs = ("~/run",)
  frozen = load.from_config_dict(config)
  assert frozen.data.dir == f"{tmp_path}/data"
  assert frozen.train.init_from == f"{tmp_path}/run"
  assert frozen.generate.prompt_file == f"{tmp_path}/prompt"
  assert frozen.score.file == f"{tmp_path}/texts"
  assert frozen.analysis.group == (f"{tmp_path}/run", "other")
  assert frozen.report.runs == (f"{tmp_path}/run",)


def test_conversion_survives_a_round_trip():
  frozen = load.from_config_dict(tiny.config_dict())
  again = ml_collections.ConfigDict(dataclasses.asdict(frozen))
  assert load.from_config_dict(again) == frozen


def test_an_unknown_field_is_answered_with_the_nearest():
  values = base.get_config().to_dict()
  values["model"]["num_layer"] = 4
  message = refusal(ml_collections.ConfigDict(values))
  assert "config.model.num_layer;" in message
  assert "did you mean config.model.num_layers?" in message


def test_an_unknown_field_like_none_is_named():
  values = base.get_config().to_dict()
  values["xyzzy"] = 1
  message = refusal(ml_collections.ConfigDict(values))
  assert message == (
    "there is no field config.xyzzy; --help=all lists the fields."
  )


def test_a_field_that_does_not_exist_cannot_be_set():
  config = base.get_config()
  with pytest.raises(AttributeError, match='Key "lr" does not exist'):
    config.train.lr = 1e-3


@pytest.mark.parametrize("name", ["seed", "model.ff_dim", "eval"])
def test_a_missing_field_is_named(name):
  values = base.get_config().to_dict()
  *groups, field = name.split(".")
  group = values
  for part in groups:
    group = group[part]
  del group[field]
  assert field in refusal(ml_collections.ConfigDict(values))


@pytest.mark.parametrize(
  ("group", "said"),
  [
    ({"num_steps": 4}, "config.train lacks init_from, init_parameters, init_"),
    (None, "config.train must be a group of fields: it is None."),
  ],
)
def test_a_group_that_was_replaced_is_named(group, said):
  config = base.get_config()
  config.train = group
  assert refusal(config).startswith(said)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("seed", 0.5),
    ("seed", True),
    ("model.num_layers", "4"),
    ("model.tie_weights", 1),
    ("model.dropout_rate", "0.1"),
    ("model.dropout_rate", float("nan")),
    ("train.learning_rate", float("inf")),
    ("model.cutoffs", ("5",)),
    ("model.dtype", None),
  ],
)
def test_a_wrong_type_is_named_with_its_value(name, value):
  values = base.get_config().to_dict()
  *groups, field = name.split(".")
  group = values
  for part in groups:
    group = group[part]
  group[field] = value
  message = refusal(ml_collections.ConfigDict(values))
  assert f"config.{name} must be " in message
  assert (" or several" in message) == isinstance(value, tuple)
  (shown,) = value if isinstance(value, tuple) else (value,)
  assert f": it is {shown!r}." in message


@pytest.mark.parametrize(
  ("name", "value", "limit"),
  [
    ("seed", 2**32, 2**32),
    ("train.mem_len", 2**31, 2**31),
    ("eval.mem_len", (8, 10**400), 2**31),
    pytest.param("train.num_steps", 10**5000, 2**31, id="5000 digits"),
  ],
)
def test_a_number_that_arrays_cannot_hold_is_refused(name, value, limit):
  message = refusal(tiny.config_dict(**{name: value}))
  assert f"config.{name} must be below {limit}: it is" in message


def test_a_whole_number_that_no_float_holds_is_refused():
  values = base.get_config().to_dict()
  values["train"]["clip_norm"] = 10**400
  message = refusal(ml_collections.ConfigDict(values))
  assert "config.train.clip_norm must be a number: it is inf." in message


def test_integers_serve_as_floats_and_a_number_as_a_tuple():
  values = base.get_config().to_dict()
  values["train"]["clip_norm"] = 1
  values["eval"]["mem_len"] = 64
  config = load.from_config_dict(ml_collections.ConfigDict(values))
  assert isinstance(config.train.clip_norm, float)
  assert config.eval.mem_len == (64,)


def test_the_vocabulary_may_be_left_to_the_data():
  config = tiny.config_dict(**{"model.vocab_size": 0, "model.cutoffs": (5, 9)})
  assert load.from_config_dict(config).model.cutoffs == (5, 9)


@pytest.mark.parametrize(
  ("follower", "leader"),
  [
    ("model.embed_dim", "model.model_dim"),
    ("train.decay_steps", "train.num_steps"),
  ],
)
def test_a_default_follows_its_leader_and_not_the_reverse(follower, leader):
  config = base.get_config()
  config.update_from_flattened_dict({leader: 96})
  assert config.to_dict()[leader.split(".")[0]][follower.split(".")[1]] == 96
  config.update_from_flattened_dict({follower: 48})
  assert config.to_dict()[leader.split(".")[0]][leader.split(".")[1]] == 96


def test_a_saved_field_that_does_not_exist_is_named_with_its_file(tmp_path):
  content = {"config": {"model": {"xyzzy": 1}}}
  path = tmp_path / "config.json"
  path.write_text(json.dumps(content), "utf-8")
  with pytest.raises(errors.UserError, match=f"{path} has a field 'xyzzy'"):
    load.saved(str(tmp_path))


def test_saved_fields_that_follow_others_still_do(tmp_path):
  config = tiny.config_dict(**{"train.num_steps": 50})
  config.model.embed_dim = 9
  content = {"config": dataclasses.asdict(load.from_config_dict(config))}
  (tmp_path / "config.json").write_text(json.dumps(content))
  saved = load.saved(str(tmp_path))
  assert saved.to_dict() == config.to_dict()
  saved.train.num_steps = 20
  assert saved.train.decay_steps == 20
  saved.model.model_dim = 4
  assert saved.model.embed_dim == 9  # It was set by itself.


@pytest.mark.parametrize(
  ("words", "expected"),
  [
    (["--config.train.init_from=fb"], ("latest", "raw")),
    (["-config.train.init_from", "fb"], ("latest", "raw")),
    (
      ["--config.train.init_from=fb", "--config.train.init_parameters=ema"],
      ("latest", "ema"),
    ),
    (["--config.train.num_steps=3"], ("2", "ema")),
    ([], ("2", "ema")),
  ],
)
def test_a_run_that_starts_from_another_takes_its_newest(words, expected):
  config = load.default()
  config.train.init_from = "fa"
  config.train.init_checkpoint = "2"
  config.train.init_parameters = "ema"
  config_flag.forget_dependents(config, ["main", *words])
  found = (config.train.init_checkpoint, config.train.init_parameters)
  assert found == expected


@pytest.mark.parametrize(
  ("words", "expected"),
  [
    (["--config.generate.prompt=a"], ("", 0)),
    (["--config.generate.prompt_file=a"], ("", 0)),
    (["--config.generate.prompt_split=test"], ("valid", 0)),
    (["--config.generate.num_tokens=3"], ("valid", 7)),
  ],
)
def test_a_prompt_takes_the_place_of_a_saved_one(words, expected):
  """Flags have set their own values already."""
  config = load.default()
  config.generate.prompt_split = "valid"
  config.generate.prompt_start = 7
  config_flag.forget_dependents(config, ["main", *words])
  found = (config.generate.prompt_split, config.generate.prompt_start)
  assert found == expected


# Values of the fields that name code or files, by what they name.
NAMING = {
  "train.tracker": "my_trackers:Tracker",
  "generate.prompt_file": "/etc/passwd",
  "score.file": "/etc/passwd",
  "analysis.group": ("runs/private",),
  "report.runs": ("runs/private",),
}


def test_every_field_that_names_code_or_files_is_marked():
  marked = {name: field.names for name, field in schema.all_fields().items()}
  found = {name for name, what in marked.items() if what in ("code", "file")}
  assert found == {*NAMING}
  folders = {name for name, what in marked.items() if what == "folder"}
  assert folders == {"data.dir", "train.init_from"}


@pytest.mark.parametrize("name", NAMING)
def test_a_saved_configuration_names_no_code_and_no_files(
  name, tmp_path, caplog
):
  """The folder of a run may come from somebody else."""
  config = tiny.config_dict(**{name: NAMING[name]})
  frozen = dataclasses.asdict(load.from_config_dict(config))
  (tmp_path / "config.json").write_text(json.dumps({"config": frozen}))
  saved = load.from_config_dict(load.saved(str(tmp_path)))
  found = operator.attrgetter(name)(saved)
  assert found == schema.all_fields()[name].default
  (line,) = caplog.messages
  assert f"{name}=" in line
  assert f"set --config.{name} if you trust it." in line


def test_a_saved_configuration_names_what_is_registered(tmp_path, caplog):
  config = tiny.config_dict(**{"train.tracker": "wandb"})
  frozen = dataclasses.asdict(load.from_config_dict(config))
  (tmp_path / "config.json").write_text(json.dumps({"config": frozen}))
  assert load.saved(str(tmp_path)).train.tracker == "wandb"
  assert not caplog.messages


@pytest.mark.parametrize("name", ["train.tracker", "score.file"])
def test_a_variant_names_no_code_and_no_files(name):
  with pytest.raises(errors.UserError, match=f"but {name} changes nothing"):
    variants.parse(f"mine: {name}=my_trackers:Tracker")


def test_a_follower_goes_on_following_what_is_changed():
  config = load.from_config_dict(base.get_config())
  steps = config.train.num_steps
  longer = load.changed(config, {"train.num_steps": 2 * steps})
  assert longer.train.decay_steps == 2 * steps
  both = {"train.num_steps": 2 * steps, "train.decay_steps": steps}
  assert load.changed(config, both).train.decay_steps == steps
  # It does not follow any more once it was set apart.
  apart = load.changed(config, {"train.decay_steps": steps // 2})
  again = load.changed(apart, {"train.num_steps": 2 * steps})
  assert again.train.decay_steps == steps // 2
