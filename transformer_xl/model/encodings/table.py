"""The encodings by name. A new one is a file and a line here.

Its name also goes into `ENCODINGS` of `config/model_fields.py`, which the
rules of a configuration need.
"""

from collections.abc import Mapping

from transformer_xl.config import schema
from transformer_xl.model.encodings import absolute
from transformer_xl.model.encodings import absolute_per_layer
from transformer_xl.model.encodings import alibi
from transformer_xl.model.encodings import encoding
from transformer_xl.model.encodings import none
from transformer_xl.model.encodings import relative
from transformer_xl.model.encodings import relative_tied
from transformer_xl.model.encodings import rope
from transformer_xl.model.encodings import shaw

ENCODINGS: Mapping[str, encoding.Encoding] = {
  "relative": relative.Relative(),
  "relative_tied": relative_tied.RelativeTied(),
  "shaw": shaw.Shaw(),
  "absolute": absolute.Absolute(),
  "absolute_per_layer": absolute_per_layer.AbsolutePerLayer(),
  "rope": rope.Rope(),
  "alibi": alibi.Alibi(),
  "none": none.WithoutDistances(),
}


def of(config: schema.ModelConfig) -> encoding.Encoding:
  """The encoding that a model has."""
  return ENCODINGS[config.encoding]
