"""Relative sinusoidal encodings projected by the kernels of the text.

The attention of the published Penn Treebank model (docs/specification.md,
section 4): keys of distances are projected by the kernel of the text's keys,
and the biases u and v are the query of distance 0. The encoding has no
parameters of its own.
"""

import flax.linen as nn

from transformer_xl import shapes
from transformer_xl.config import registry
from transformer_xl.model import parameters
from transformer_xl.model import scores
from transformer_xl.model.encodings import relative


@registry.encodings.register("relative_tied")
class RelativeTied(relative.Sinusoidal):
  """W_kR = W_kE and u = v = W_q R_0, in the paper's names."""

  def distance_terms(
    self,
    module: nn.Module,
    project: parameters.Projections,
    positions: shapes.Positions | None,
    num_keys: int,
    biases: shapes.BiasPair | None,
  ) -> scores.DistanceTerms:
    """Sinusoids projected as if they were hidden states."""
    del module, num_keys, biases
    assert positions is not None
    bias = project("query", positions[-1:])[0]
    return scores.DistanceTerms(project("key", positions), (bias, bias))
