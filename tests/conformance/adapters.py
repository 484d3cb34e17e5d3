"""The package's network for the public kit: what is tried, and in which models.

Mixers and encodings are those of the registry. Nothing here knows the name of
one, so a new one is tried without a change.
"""

import functools
from typing import Any

from tests import kinds
from tests import tiny
from transformer_xl.config import load
from transformer_xl.config import registry
from transformer_xl.config import schema
from transformer_xl.conformance import registered

USUAL = load.default().model.layers[0]
# With so many heads, one of a layer whose state decays still knows the first
# token at the end of the text, far above rounding.
MANY = 6
_LENGTHS = ("mem_len", "same_length", "clamp_len", "gradient")


class Package(registered.Model):
  """The package's network; `model` are fields of its configuration."""

  def __init__(
    self,
    config: schema.ModelConfig | None = None,
    *,
    mem_len: int,
    same_length: bool,
    clamp_len: int = 0,
    gradient: str = "stops",
    **model: Any,
  ):
    super().__init__(
      config or tiny.model_config(**model),
      mem_len=mem_len,
      same_length=same_length,
      clamp_len=clamp_len,
      gradient=gradient,
    )

  @property
  def memory(self) -> str:
    """What the table of combinations calls this kind of memory."""
    words = [", ".join(self.config.layers)]
    for name in sorted(self.config.mixers):
      group = getattr(self.config, name, None)
      chosen = [getattr(group, field) for field in choices(name)]
      words += [f"({value})" for value in chosen]
    if self.gradient == "flows":
      words.append("with `gradient_segments`")
    return " ".join(words)

  def init(self, seed: int) -> Any:
    """Parameters that the oracle reads as well."""
    return tiny.params(self.config, seed=seed)


class FrozenPackage(registered.FrozenModel, Package):
  """The same memory, read with fixed parameters."""

  def __init__(self, config: schema.ModelConfig | None = None, **options: Any):
    lengths = {name: options.pop(name) for name in _LENGTHS if name in options}
    super().__init__(config or tiny.model_config(**options), **lengths)

  @property
  def memory(self) -> str:
    return f"{super().memory}, reader"


def choices(name: str) -> dict[str, tuple[str, ...]]:
  """Fields of a mixer that have a list of values, with these."""
  prefix = f"model.{name}."
  found = {
    path.removeprefix(prefix): schema.choices(path)
    for path in schema.all_fields()
    if path.startswith(prefix)
  }
  return {field: values for field, values in found.items() if values}


def each_choice(name: str) -> list[dict[str, object]]:
  """Small fields of a mixer, once for each of its choices."""
  small = kinds.own_fields(name)
  return [
    small | {f"{name}.{field}": value}
    for field, values in choices(name).items()
    for value in values
  ] or [small]


def package(kind: type[Package] = Package, /, **options: Any):
  """Builds each adapter once, so that checks share its compiled steps."""

  @functools.cache
  def build(*, mem_len: int, same_length: bool) -> Package:
    layers = options.get("layers", (USUAL,))
    own_len, sizes = registered.trial(layers, mem_len)
    return kind(mem_len=own_len, same_length=same_length, **sizes | options)

  return build


KINDS = {"": Package, "_read": FrozenPackage}
ATTENDING = [name for name, kind in registry.mixers.items() if kind.attends]
CARRYING = [name for name in registry.mixers if name not in ATTENDING]
# Options are crossed rather than multiplied: each value appears, with each
# window rule, in some variant.
OPTIONS = {
  "plain": {},
  "untied_prenorm_clamped": {
    "untie_biases": True,
    "pre_norm": True,
    "clamp_len": 3,
    "same_length_window": "mem_len",
  },
  "adaptive": {"cutoffs": (5, 11), "div_val": 2, "embed_dim": 12},
  "attended_zeros": {
    "memory_start": "zeros",
    "layers": (f"{USUAL}:4", USUAL),
    "untie_biases": True,
    "layer_norm_epsilon": 1e-12,
    "cutoffs": (6,),
    "tie_projections": "none",
    "embed_dim": 6,
  },
  "gradient_segments": {"gradient": "flows", "untie_biases": True},
}


def _of_encodings():
  """Each encoding, with options of its own kind."""
  for name, kind in registry.encodings.items():
    table = {"num_positions": 4} if kind.has_table else {}
    if kind.counts_from_segment:  # A table has a row for each position.
      table = {"num_positions": 16}
    yield (
      name,
      package(
        encoding=name, same_length_window="mem_len", num_heads=3, **table
      ),
    )
    yield (
      f"{name}_zeros",
      package(
        encoding=name,
        memory_start="zeros",
        pre_norm=True,
        head_dim=6,
        **table,
      ),
    )


def _of_mixers():
  """Each mixer by itself and beside usual layers, with and without a limit."""
  for name, kind in registry.mixers.items():
    if name == USUAL:
      continue
    own = {} if name in ATTENDING else {"num_heads": MANY, "pre_norm": True}
    limit = "" if kind.writes_segments else ":4"
    yield name, package(layers=(name,), **own)
    yield (
      f"{name}_hybrid_read",
      package(FrozenPackage, layers=(name, USUAL + limit), **own),
    )
    yield f"{name}_above", package(layers=(USUAL, name), pre_norm=True)
    if kind.takes_limit:
      limited = {"layers": (name, f"{name}:1")}
      yield f"{name}_limited_read", package(FrozenPackage, **limited)
  # Two that carry states of different kinds, and two that attend.
  for pair in zip(CARRYING, CARRYING[1:] + ATTENDING[1:], strict=False):
    yield "_".join(pair), package(layers=pair, pre_norm=True)


IMPLEMENTATIONS = {
  **{name: package(**options) for name, options in OPTIONS.items()},
  **dict(_of_encodings()),
  **dict(_of_mixers()),
}


def _memories():
  """What is crossed with every encoding: kinds of memory that attend."""
  patterns = [((f"{USUAL}:4", USUAL), {}), ((CARRYING[0], USUAL), {})]
  for name in ATTENDING:
    fields = choices(name)
    patterns += [
      ((name,), {f"{name}.{field}": value})
      for field, values in fields.items()
      for value in values
    ] or [((name,), {})]
    if len(patterns[-1][0]) == 1 and not fields:
      yield Package, {"layers": (name,), "gradient": "flows"}
  for layers, fields in patterns:
    for kind in KINDS.values():
      yield kind, {"layers": layers, **fields}


COMBINATIONS = [
  *(
    package(kind, encoding=name, **options)
    for kind, options in _memories()
    for name in registry.encodings
  ),
  *(
    package(kind, layers=(name,), pre_norm=True, num_heads=MANY, **options)
    for name in CARRYING
    for kind, options in (
      *((kind, {}) for kind in KINDS.values()),
      (Package, {"gradient": "flows"}),
    )
  ),
]
