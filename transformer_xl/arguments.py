"""Checks of the arguments that people pass to the functions of Python.

Python's own errors name the place in our code where a wrong value was used at
last. These name the argument, in one line.
"""

import contextlib
import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from transformer_xl import errors

if TYPE_CHECKING:
  import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
  """Makes a call with unknown, missing or too many arguments a UserError.

  So is one that a device has too little memory for. A function that returns an
  iterator has done nothing by then.
  """
  signature = inspect.signature(function)
  names = [name for name in signature.parameters if name != "self"]
  by_name = [
    name
    for name, parameter in signature.parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
  ]
  called = function.__qualname__.removesuffix(".__init__")

  @functools.wraps(function)
  def call(*args: P.args, **kwargs: P.kwargs) -> R:
    try:
      signature.bind(*args, **kwargs)
    except TypeError as error:
      unknown = [name for name in kwargs if name not in names]
      near = difflib.get_close_matches(unknown[0], names, 1) if unknown else []
      fix = (
        f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}."
      )
      if "too many positional" in str(error) and by_name:
        fix = f"give these by name, as in NAME=VALUE: {', '.join(by_name)}."
      raise errors.UserError(
        f"{called} cannot be called with these arguments ({error}); {fix}"
      ) from None
    with in_enough_memory(called):
      return function(*args, **kwargs)

  return call


@contextlib.contextmanager
def in_enough_memory(called: str) -> Iterator[None]:
  """Makes it a UserError if what is called needs more memory than there is."""
  try:
    yield
  except (RuntimeError, MemoryError) as error:
    if not errors.is_shortage(error):
      raise
    reason = " ".join(str(error).split())[:200]
    raise errors.UserError(
      f"{called}: a device has too little memory ({reason}); lower mem_len "
      "or segment_len, or give fewer or shorter texts at once."
    ) from error


@contextlib.contextmanager
def in_words_of_python(fields: Iterable[str]) -> Iterator[None]:
  """Lets errors about fields of the configuration speak of the arguments.

  Args:
    fields: names such as `score.mem_len`, for the argument `mem_len`.
  """
  try:
    yield
  except errors.UserError as error:
    message = str(error)
    for field in fields:
      name = field.rpartition(".")[2]
      message = message.replace(f"; set --config.{field}.", ".")
      message = message.replace(f"--config.{field}", name)
      message = message.replace(f"config.{field}", name)
      message = message.replace(field, name)
    raise errors.UserError(message) from None


def text(value: object, name: str) -> str:
  """A text.

  Raises:
    UserError: the argument of this name is no text.
  """
  if not isinstance(value, str):
    raise errors.UserError(
      f"{name} must be a text, which Python calls str: it is {_shown(value)}."
    )
  return value


def whole_number(value: object, name: str, *, least: int | None) -> int:
  """A whole number, of Python or of NumPy.

  Raises:
    UserError: the argument of this name is none, or is below `least`.
  """
  if isinstance(value, bool) or not hasattr(value, "__index__"):
    raise errors.UserError(
      f"{name} must be a whole number: it is {_shown(value)}."
    )
  number = operator.index(value)
  if least is not None and number < least:
    raise errors.UserError(f"{name}={number} must be at least {least}.")
  return number


def listed(value: object, name: str, *, example: str) -> list:
  """A list of the items of a list, a tuple or another iterable.

  Raises:
    UserError: the argument of this name cannot be iterated over, or is a
      single text or a mapping.
  """
  is_single = isinstance(value, str | bytes | Mapping)
  if is_single or not hasattr(value, "__iter__"):
    raise errors.UserError(
      f"{name} must be a list, as in {example}: it is {_shown(value)}."
    )
  return list(value)


def array(value: object, name: str) -> "np.ndarray":
  """An array of numbers or truth values.

  Raises:
    UserError: the argument of this name is none.
  """
  # Late: every command imports the package, and answers Ctrl-C before NumPy.
  import numpy as np

  try:
    result = np.asarray(value)
  except (ValueError, TypeError) as error:
    reason = " ".join(str(error).split())
    raise errors.UserError(f"{name} must be an array ({reason}).") from None
  if result.dtype.kind not in "biuf":
    raise errors.UserError(
      f"{name} must be an array of numbers: it is {_shown(value)}."
    )
  return result


def _shown(value: object) -> str:
  """A value in at most a few words, on one line."""
  shown = " ".join(repr(value).split())
  return shown if len(shown) <= 60 else f"{shown[:60]}..."
