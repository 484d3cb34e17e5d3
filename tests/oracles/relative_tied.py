"""Sinusoids of distances, projected as text is; u and v are queries of 0."""

from tests.oracles import cases
from tests.oracles import heads


def distance_key(config, own, distance, clamp_len):
  row = heads.sinusoids(distance, config.model_dim, clamp_len)
  return heads.split(config, row @ own["key"])


def biases(config, own, params, clamp_len):
  del params
  row = heads.sinusoids(0, config.model_dim, clamp_len)
  query = heads.split(config, row @ own["query"])
  return query, query


CASES = (cases.Case(3, 7, 2, None, {"encoding": "relative_tied"}),)
REST = (
  cases.Case(
    *(3, 4, 0, None),
    {"qk_norm": True, "num_kv_heads": 1, "encoding": "relative_tied"},
  ),
  cases.Case(4, 2, 0, "mem_len", cases.ZEROS | {"encoding": "relative_tied"}),
)
