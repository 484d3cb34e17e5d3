"""Classes that people add, by kind and name, each in a file of its own.

    @registry.mixers.register("delta")
    class Delta(mixer.Mixer): ...

Nothing else in the package knows the name: the rules, the help, the cards, the
mesh and the tests ask the registry. The files of the package are listed here
and are imported when they are first needed; the list of a kind can be read
without importing any of them. A file of somebody else registers what it defines
when it is imported (`extensions.py`).
"""

import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from transformer_xl import errors
from transformer_xl.config import fields

T = TypeVar("T")
KindT = TypeVar("KindT")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Registered(Protocol):
  """A registered class, which may have fields of its own.

  Attributes:
    registered_name: its name.
    Fields: the configuration fields that it alone has, a `fields.Group`; None
      if there are none.
  """

  registered_name: ClassVar[str]
  Fields: ClassVar[type[fields.Group] | None]


class Mixer(Registered, Protocol):
  """A mixer, as rules, help and cards use it; see `model/mixers/mixer.py`."""

  attends: ClassVar[bool]
  takes_limit: ClassVar[bool]
  attends_zeros: ClassVar[bool]
  writes_segments: ClassVar[bool]
  keys_are_tokens: ClassVar[bool]

  @staticmethod
  def check(config: Any) -> None:
    """Raises a UserError for a model, `config.model`, that it cannot serve."""


class Encoding(Registered, Protocol):
  """An encoding, as rules use it; see `model/encodings/encoding.py`."""

  clamps: ClassVar[bool]
  rotates: ClassVar[bool]
  has_table: ClassVar[bool]
  counts_from_segment: ClassVar[bool]

  @staticmethod
  def check(config: Any) -> None:
    """Raises a UserError for a model, `config.model`, that it cannot serve."""


class Optimizer(Registered, Protocol):
  """An optimizer in training; see `training/optimizers/optimizer.py`."""

  uses: ClassVar[tuple[str, ...]]

  @staticmethod
  def make(config: Any) -> Any:
    """The optax transformation for the settings `config.train`."""


class Schedule(Registered, Protocol):
  """A schedule in training; see `training/schedules/schedule.py`."""

  uses: ClassVar[tuple[str, ...]]

  @staticmethod
  def rate(config: Any, update: Any) -> Any:
    """The learning rate of an update after warm-up."""


class Option(Protocol):
  """A number that the text of a task depends on."""

  @property
  def default(self) -> int: ...


class Task(Protocol):
  """A task, as experiments use it; see `data_prep/synthetic/task.py`."""

  options: ClassVar[Mapping[str, Option]]
  has_documents: ClassVar[bool]
  suite_updates: ClassVar[int]


class Tracker(Protocol):
  """A tracker's class, as training uses it; see `workdir/tracker.py`."""

  @staticmethod
  def require_installed() -> None:
    """Raises a UserError if a package that it needs is missing."""


class Registry(Mapping[str, type[KindT]]):
  """The things of one kind, by name. Each is a class."""

  def __init__(
    self,
    kind: str,
    built_in: Mapping[str, str],
    *,
    reserved: Mapping[str, str] | None = None,
  ):
    """Lists what the package has.

    Args:
      kind: what each is called in errors, such as "mixer".
      built_in: the module that registers each name.
      reserved: names that nothing can have, and what has them.
    """
    self.kind = kind
    self._built_in = dict(built_in)
    self._reserved = reserved or {}
    self._found: dict[str, type[KindT]] = {}

  def register(self, name: str) -> Callable[[type[T]], type[T]]:
    """A decorator that registers a class under a name.

    A class that is defined again, as in a notebook, replaces the former.

    Raises:
      UserError: the name is no lower-case identifier, or it is taken.
    """
    if not _NAME.fullmatch(name):
      raise errors.UserError(
        f"a {self.kind} cannot be called {name!r}: a name has lower-case "
        "letters, digits and underscores, and starts with a letter."
      )

    if name in self._reserved:
      raise errors.UserError(
        f"a {self.kind} cannot be called {name!r}, as {self._reserved[name]} "
        "is; register it under another name."
      )

    def add(added: type[T]) -> type[T]:
      there = self._found.get(name)
      module = there.__module__ if there else self._built_in.get(name)
      place = there.__qualname__ if there else added.__qualname__
      is_again = (module, place) == (added.__module__, added.__qualname__)
      # A file that has changed may call its class otherwise.
      is_again = is_again or (there is not None and _is_gone(there))
      if module is not None and not is_again:
        raise errors.UserError(
          f"there is a {self.kind} {name!r} already, {place} of {module}; "
          f"register {added.__qualname__} of {added.__module__} under another "
          "name."
        )
      _check_fields(added)
      found: Any = added
      found.registered_name = name
      self._found[name] = found
      _versions.append(name)
      return added

    return add

  def __getitem__(self, name: str) -> type[KindT]:
    if name not in self._found and name in self._built_in:
      importlib.import_module(self._built_in[name])
    return self._found[name]

  def __iter__(self) -> Iterator[str]:
    """All names: those of the package, then those of others."""
    yield from self._built_in
    yield from (name for name in self._found if name not in self._built_in)

  def __len__(self) -> int:
    return len(self._built_in.keys() | self._found.keys())

  def __contains__(self, name: object) -> bool:
    return name in self._built_in or name in self._found

  def is_foreign(self, name: str) -> bool:
    """Whether something has registered the name from outside of the package."""
    return name in self._found and name not in self._built_in

  def rule(self) -> fields.Rule:
    """The rule that a value is one of the names."""
    return fields.one_of(tuple(self))

  def groups(self) -> dict[str, type[fields.Group]]:
    """The groups of fields that single ones have, by name.

    A class without fields of its own that inherits from another one reads the
    fields of that one.
    """
    return {
      name: found.__dict__["Fields"]
      for name, found in self.items()
      if found.__dict__.get("Fields") is not None
    }


def _is_gone(found: type) -> bool:
  """Whether the module of a class at its top was loaded again without it."""
  module = sys.modules.get(found.__module__)
  is_at_top = found.__name__ == found.__qualname__
  if not is_at_top or found.__module__ == "__main__":
    return False
  return getattr(module, found.__name__, None) is not found


def _check_fields(added: type) -> None:
  """Raises a UserError if a class declares its own fields in a wrong way."""
  own = added.__dict__.get("Fields")
  if own is None:
    return
  where = f"{added.__qualname__}.Fields of {added.__module__}"
  if not fields.is_group(own):
    raise errors.UserError(
      f"{where} is no group of fields: let it inherit from extend.Fields."
    )
  for field in dataclasses.fields(own):
    if "rule" not in field.metadata:
      raise errors.UserError(
        f"{where} declares {field.name} without a rule: write {field.name}: "
        f"TYPE = extend.field(DEFAULT, RULE), with its remark below."
      )


_versions: list[str] = []  # What was registered, in order.


def version() -> int:
  """A number that grows whenever something is registered."""
  return len(_versions)


def _in_package(package: str, *names: str) -> dict[str, str]:
  """Modules of the names in a package, each called as what it registers."""
  return {name: f"transformer_xl.{package}.{name}" for name in names}


mixers = Registry[Mixer](
  "mixer",
  _in_package(
    "model.mixers",
    "attention",
    "block_recurrent",
    "compressive",
    "delta",
    "lstm",
    "mamba2",
    "memorizing",
    "qrnn",
    "same_layer",
    "titans",
  ),
  # What else a layer has (`model/block.py`).
  reserved=dict.fromkeys(
    (
      *("mixer_norm", "mixer_gate", "positions"),
      *("feed_forward", "feed_forward_norm", "feed_forward_gate"),
    ),
    "another part of a layer",
  ),
)
encodings = Registry[Encoding](
  "encoding",
  _in_package(
    "model.encodings",
    "relative",
    "relative_tied",
    "shaw",
    "absolute",
    "absolute_per_layer",
    "rope",
    "alibi",
    "none",
  ),
)
Optimizers = Registry[Optimizer]
Schedules = Registry[Schedule]
optimizers = Optimizers(
  "optimizer",
  _in_package("training.optimizers", "adam", "adamw", "lamb", "muon", "sgd"),
)
schedules = Schedules(
  "schedule",
  _in_package(
    "training.schedules",
    "cosine",
    "linear",
    "wsd",
    "inverse_sqrt",
    "constant",
  ),
)
trackers = Registry[Tracker](
  "tracker", {"wandb": "transformer_xl.workdir.wandb_run"}
)
# Published corpora, and tasks whose answers are known. These classes are of
# data_prep, which knows their interfaces. `--dataset` takes both, and the forms
# of a user's own text.
_CORPORA = (
  "enwik8",
  "lm1b",
  "pg19",
  "ptb",
  "python_stdlib",
  "text8",
  "wikitext103",
  "wikitext2",
)
_TASKS = (
  "compression",
  "copy",
  "excerpt",
  "fuzzy_recall",
  "listops",
  "memorization",
  "mqar",
  "noisy_recall",
  "overwrite",
  "parity",
  "passkey",
  "permutation",
  "recall",
  "selective_copying",
  "stories",
)
_OWN_TEXT = dict.fromkeys(("text", "tfds"), "a user's own text")
datasets = Registry[object](
  "dataset",
  {
    name: f"transformer_xl.data_prep.{name}.{name}_dataset_builder"
    for name in _CORPORA
  },
  reserved=_OWN_TEXT | dict.fromkeys(_TASKS, "a task"),
)
tasks = Registry[Task](
  "task",
  _in_package("data_prep.synthetic", *_TASKS),
  reserved=_OWN_TEXT | dict.fromkeys(_CORPORA, "a published dataset"),
)


def tracker_rule() -> fields.Rule:
  """The rule that a value is a tracker's name, or a class by its path."""
  names = ", ".join(("none", *trackers))
  return fields.Rule(f"{names} or MODULE:CLASS", _is_tracker)


def _is_tracker(text: str) -> bool:
  if text == "none" or text in trackers:
    return True
  module, _, name = text.partition(":")
  parts = [*module.split("."), name]
  return all(part.isidentifier() for part in parts)
