"""Registries: names without imports, and what cannot be registered."""

import subprocess
import sys

import pytest

from tests import registering
from transformer_xl import errors
from transformer_xl.config import fields
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema

KINDS = (
  *(registry.mixers, registry.encodings, registry.optimizers),
  *(registry.schedules, registry.tasks),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_what_is_listed_registers_itself_under_its_name(kind):
  for name, found in kind.items():
    assert found.registered_name == name
    assert not kind.is_foreign(name)
  assert len(kind) == len([*kind]) > 3


def test_names_are_known_without_importing_what_has_them():
  program = (
    "import sys; from transformer_xl.config import registry, schema; "
    "names = [*registry.mixers, *registry.datasets]; "
    "[*schema.common_fields()]; "
    "sys.exit('jax' in sys.modules or len(names) < 10)"
  )
  finished = subprocess.run([sys.executable, "-c", program])
  assert finished.returncode == 0


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.kind)
def test_own_fields_are_a_group_of_the_name(kind):
  section = "model" if kind in KINDS[:2] else "train"
  for name, group in kind.groups().items():
    paths = [f"{section}.{name}.{field.name}" for field in fields.walk(group)]
    assert {*paths} <= {*schema.all_fields()}


class Parent:
  """Has fields of its own."""

  class Fields(fields.Group):
    size: int = fields.field(3, "at least 1")
    """How large it is."""


class Child(Parent):
  """Reads those of its parent."""


class Other(Parent):
  """Has fields of its own, too."""

  class Fields(fields.Group):
    width: int = fields.field(3, "at least 1")
    """How wide it is."""


def test_a_run_saves_the_fields_of_others_that_its_own_parts_read():
  classes = {"parent": Parent, "child": Child, "other": Other}
  with registering.temporarily(registry.schedules, classes):
    config = load.from_config_dict(load.default())
    for used, saved in (
      ("child", {"parent"}),
      ("parent", {"parent"}),
      ("other", {"other"}),
      ("constant", set()),
    ):
      changed = load.replaced(config, {"train.schedule": used})
      assert classes.keys() & changed.as_saved()["train"].keys() == saved


class Plain:
  """Nothing."""


class WithoutRule:
  """Declares a field as dataclasses do."""

  class Fields(fields.Group):
    size: int = 3


class WithoutGroup:
  """Declares fields in a class of its own kind."""

  class Fields:
    size = 3


@pytest.mark.parametrize(
  ("name", "added", "said"),
  [
    ("Ema", Plain, "cannot be called 'Ema': a name has lower-case letters"),
    ("2d", Plain, "cannot be called '2d'"),
    ("mixer_norm", Plain, "as another part of a layer is"),
    ("attention", Plain, "there is a mixer 'attention' already"),
    ("mine", WithoutRule, "declares size without a rule: write size: TYPE ="),
    (
      "mine",
      WithoutGroup,
      "is no group of fields: let it inherit from",
    ),
  ],
)
def test_a_wrong_registration_is_one_line(name, added, said):
  before = [*registry.mixers]
  with pytest.raises(errors.UserError, match=said.replace(".", r"\.")):
    registry.mixers.register(name)(added)
  assert [*registry.mixers] == before


def test_a_class_that_is_defined_again_replaces_the_former():
  def defined():
    class Mine(Plain):
      """Defined twice, as in a notebook."""

    return Mine

  first = defined()
  again = defined()
  before = registry.version(), [*registry.mixers]
  with registering.temporarily(registry.mixers, {"mine": first}):
    assert registry.mixers["mine"] is first
    registry.mixers.register("mine")(again)
    assert registry.mixers["mine"] is again
    assert [*registry.mixers] == [*before[1], "mine"]
    assert registry.version() == before[0] + 2


def test_a_copy_that_keeps_the_name_of_what_it_copies_replaces_nothing():
  class Copy(Plain):
    """Its decorator was copied, too."""

  with registering.temporarily(registry.mixers, {"mine": Plain}):
    said = r"already, Plain of .*; register .*Copy of .* under another name"
    with pytest.raises(errors.UserError, match=said):
      registry.mixers.register("mine")(Copy)
    assert registry.mixers["mine"] is Plain


@pytest.mark.parametrize(
  ("kind", "name", "what"),
  [
    (registry.tasks, "wikitext103", "a published dataset"),
    (registry.tasks, "text", "a user's own text"),
    (registry.datasets, "mqar", "a task"),
    (registry.datasets, "tfds", "a user's own text"),
  ],
)
def test_what_dataset_takes_has_one_meaning(kind, name, what):
  with pytest.raises(errors.UserError, match=f"as {what} is"):
    kind.register(name)(Plain)
