"""No encoding of order: scores are products of query and key alone.

Only the causal mask tells a model the order of tokens (Haviv et al. 2022).
"""

from transformer_xl.config import registry
from transformer_xl.model.encodings import encoding


@registry.encodings.register("none")
class NoEncoding(encoding.Encoding):
  """Attention that depends on the contents of queries and keys alone."""
