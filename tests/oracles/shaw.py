"""Learned keys of distances; large ones share the last (Shaw et al. 2018)."""

from tests.oracles import cases


def distance_key(config, own, distance, clamp_len):
  del clamp_len
  row = own["distances"][min(distance, config.num_positions - 1)]
  return row.reshape(config.num_heads, config.head_dim)


# With a table that is shorter than the context, and a longer one.
CASES = (cases.Case(3, 7, 0, None, {"encoding": "shaw", "num_positions": 4}),)
REST = (
  cases.Case(4, 2, 0, "mem_len", cases.ZEROS | {"encoding": "shaw"}),
  cases.Case(
    *(2, 5, 0, "mem_len_plus_one"),
    {
      "encoding": "shaw",
      "num_layers": 3,
      "layers": cases.FEW,
      "pre_norm": True,
    },
  ),
)
PARAMETERS = ("layers/0/attention/distances",)
NO_MATRICES = ("distances",)
