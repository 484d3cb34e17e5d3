"""Projected sinusoids of distances, with biases u and v (Dai et al. 2019)."""

from tests.oracles import cases
from tests.oracles import heads


def distance_key(config, own, distance, clamp_len):
  row = heads.sinusoids(distance, config.model_dim, clamp_len)
  return heads.split(config, row @ own["position"])


def biases(config, own, params, clamp_len):
  del clamp_len
  found = own if config.untie_biases else params
  return found["content_bias"], found["position_bias"]


# With each window rule, and clamps within, at and beyond the context.
CASES = (
  cases.Case(3, 7, 2, "mem_len", {"pre_norm": True}),
  cases.Case(3, 7, 9, "mem_len_plus_one", cases.ZEROS | {"untie_biases": True}),
)
REST = (cases.Case(3, 4, 1, None, cases.MASKED),)
PARAMETERS = (
  "content_bias",
  "position_bias",
  "layers/0/attention/position",
)
