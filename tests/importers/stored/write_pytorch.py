"""Writes original/model.pt and original/state_dict.pt with PyTorch.

    python -m tests.importers.stored.write_pytorch

The first is a whole pickled module, whose classes have the names and attributes
of the original code's (docs/specification.md, 21.2) and no function; the second
its state dict in the format of PyTorch before 1.6. Weights are a function of
the names.
"""

import itertools
import pathlib
import sys
import types

import torch
from torch import nn

from tests.parity import weights

FOLDER = pathlib.Path(__file__).parent / "original"
SEED = 11
VOCAB_SIZE, CUTOFFS, DIV_VAL = 21, [6, 14], 2
NUM_LAYERS, MODEL_DIM, NUM_HEADS, HEAD_DIM, FF_DIM = 2, 8, 2, 4, 12
MODULES = {
  "mem_transformer": (
    "MemTransformerLM",
    "AdaptiveEmbedding",
    "PositionalEmbedding",
    "RelPartialLearnableDecoderLayer",
    "RelPartialLearnableMultiHeadAttn",
    "PositionwiseFF",
  ),
  "proj_adaptive_softmax": ("ProjectedAdaptiveLogSoftmax",),
}


def main() -> None:
  FOLDER.mkdir(exist_ok=True)
  model = make()
  torch.save(model, FOLDER / "model.pt")
  torch.save(
    model.state_dict(),
    FOLDER / "state_dict.pt",
    _use_new_zipfile_serialization=False,
  )


def make() -> nn.Module:
  """The module with its weights."""
  model = _make_model(_make_classes())
  for name, parameter in model.named_parameters():
    values = weights.draw(SEED, name, tuple(parameter.shape))
    parameter.data = torch.from_numpy(values)
  return model


def _make_classes() -> dict[str, type]:
  """Empty modules that pickle finds under the original names."""
  classes = {}
  for path, names in MODULES.items():
    sys.modules[path] = types.ModuleType(path)
    for name in names:
      kind = type(name, (nn.Module,), {"__module__": path})
      setattr(sys.modules[path], name, kind)
      classes[name] = kind
  return classes


def _make_model(classes: dict[str, type]) -> nn.Module:
  ends = [0, *CUTOFFS, VOCAB_SIZE]
  sizes = [end - start for start, end in itertools.pairwise(ends)]
  widths = [MODEL_DIM // DIV_VAL**index for index in range(len(sizes))]
  model = classes["MemTransformerLM"]()
  model.n_layer, model.tgt_len, model.mem_len = NUM_LAYERS, 5, 7
  model.clamp_len, model.same_length, model.attn_type = 3, True, 0
  model.word_emb = classes["AdaptiveEmbedding"]()
  model.word_emb.emb_layers = nn.ModuleList(
    nn.Embedding(size, width) for size, width in zip(sizes, widths, strict=True)
  )
  model.word_emb.emb_projs = nn.ParameterList(
    nn.Parameter(torch.zeros(MODEL_DIM, width)) for width in widths
  )
  model.drop = nn.Dropout(0.25)
  model.layers = nn.ModuleList(_make_layer(classes) for _ in range(NUM_LAYERS))
  model.crit = crit = classes["ProjectedAdaptiveLogSoftmax"]()
  crit.cutoffs, crit.div_val = ends[1:], DIV_VAL
  crit.cluster_weight = nn.Parameter(torch.zeros(len(CUTOFFS), MODEL_DIM))
  crit.cluster_bias = nn.Parameter(torch.zeros(len(CUTOFFS)))
  crit.out_layers = nn.ModuleList(
    nn.Linear(width, size) for size, width in zip(sizes, widths, strict=True)
  )
  own = nn.Parameter(torch.zeros(MODEL_DIM, widths[0]))
  crit.out_projs = nn.ParameterList([own, *model.word_emb.emb_projs[1:]])
  for ours, theirs in zip(
    crit.out_layers, model.word_emb.emb_layers, strict=True
  ):
    ours.weight = theirs.weight
  model.pos_emb = classes["PositionalEmbedding"]()
  model.pos_emb.register_buffer("inv_freq", torch.ones(MODEL_DIM // 2))
  model.r_w_bias = nn.Parameter(torch.zeros(NUM_HEADS, HEAD_DIM))
  model.r_r_bias = nn.Parameter(torch.zeros(NUM_HEADS, HEAD_DIM))
  return model


def _make_layer(classes: dict[str, type]) -> nn.Module:
  width = NUM_HEADS * HEAD_DIM
  layer = classes["RelPartialLearnableDecoderLayer"]()
  layer.dec_attn = attention = classes["RelPartialLearnableMultiHeadAttn"]()
  attention.pre_lnorm = False
  attention.qkv_net = nn.Linear(MODEL_DIM, 3 * width, bias=False)
  attention.drop, attention.dropatt = nn.Dropout(0.25), nn.Dropout(0.125)
  attention.o_net = nn.Linear(width, MODEL_DIM, bias=False)
  attention.layer_norm = nn.LayerNorm(MODEL_DIM)
  attention.r_net = nn.Linear(MODEL_DIM, width, bias=False)
  layer.pos_ff = classes["PositionwiseFF"]()
  layer.pos_ff.CoreNet = nn.Sequential(
    nn.Linear(MODEL_DIM, FF_DIM),
    nn.ReLU(),
    nn.Dropout(0.25),
    nn.Linear(FF_DIM, MODEL_DIM),
    nn.Dropout(0.25),
  )
  layer.pos_ff.layer_norm = nn.LayerNorm(MODEL_DIM)
  return layer


if __name__ == "__main__":
  main()
