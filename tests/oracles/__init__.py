"""What tests know of single mixers and encodings, a file for each name.

Equations are in float64 NumPy; `tests/oracle.py` calls what a file has.

A mixer that hands on a state, each seeing one lane:

    start(config) -> the state before the first token
    read(config, own, rows, state) -> outputs and the next state

A mixer that attends:

    slots(config) -> how many keys stand for several tokens
    waiting(config, num_read) -> how many states wait for another slot
    remembered(config, own, past, layer) -> the rows behind the segment [m, D]
    near(config) -> the largest distance that it attends to
    mix(config, own, near, query, key, value, window=) -> values [T, H, Dh]
    Beside(config, own, past, normalise, norm) -> what it reads besides

An encoding:

    embedded(config, place) -> what is added to an embedding [D]
    added(params, place) -> what is added to the input of a layer [D]
    distance_key(config, own, distance, clamp_len) -> a key [H, Dh]
    biases(config, own, params, clamp_len) -> u and v [H, Dh]
    placed(config, rows) -> rows [R, H, Dh] at the places 0 to R - 1
    slopes(config) -> how much a score falls for each token, H of them

What `tests/model/test_flops.py` counts besides matrices and pairs of query and
key:

    watched(masks) -> a context in which a layer notes in `masks` what is seen
    ONCE_A_SEGMENT: the names in it of what happens only where a segment starts
    work(config, reading, pairs) -> multiply-adds a token, and how often each
      matrix multiplies, by its name

`own` are the parameters of the mixer, `params` those of the layer or the model,
and `rows` [T, D] are normalised. What tests of all names take from a file:

    CASES, REST: models that are compared with the oracle, of `cases.Case`;
      those of REST are left out unless asked for
    PARAMETERS: paths of those that an encoding has
    VALUES: for each field of its own two values, neither the default nor what
      tiny models have
    TRANSFER: how free each field of its own is where parameters are taken over
    NO_MATRICES: arrays of a layer with two axes that are none
    NO_SIZES: fields of its own that tiny models keep as they are
    SPLITS: how a mesh splits some of a mixer's parameters
    WHOLE_SLOTS: a configuration whose slots segments of 5 tokens fill
    DRAWN: for fields of its own, values that random models have
    BLOCKS: sizes of blocks that random models are computed in, by the name of
      the module's constant
"""

import functools
import importlib
import importlib.util
from types import ModuleType
from typing import Any


@functools.cache
def of(name: str) -> ModuleType | None:
  """The file of a mixer or an encoding; None if it has none."""
  path = f"{__name__}.{name}"
  if importlib.util.find_spec(path) is None:
    return None
  return importlib.import_module(path)


def get(name: str, what: str, default: Any = None) -> Any:
  """What the file of a mixer or an encoding has under a name."""
  return getattr(of(name), what, default)
