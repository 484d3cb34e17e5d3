"""Exported models in PyTorch, as transformers loads them.

Without PyTorch and transformers 5, tests that import this module are skipped.
"""

import numpy as np
import pytest

from tests import kinds

REASON = "needs PyTorch and transformers 5: make transformers-check"
torch = pytest.importorskip("torch", reason=REASON, exc_type=ImportError)
transformers = pytest.importorskip(
  "transformers", minversion="5", reason=REASON, exc_type=ImportError
)

TEXT = "the cat sat on\na mat "
LENGTHS = {
  "score.segment_len": 5,
  "score.mem_len": 7,
  "generate.segment_len": 5,
  "generate.mem_len": 7,
  "model.dropout_rate": 0.1,
}
ROTATING, SLOPING = kinds.encoding(rotates=True), kinds.sloping()
BLOCK_OF_TODAY = {
  "model.encoding": ROTATING,
  "model.pre_norm": True,
  "model.norm": "rms",
  "model.final_norm": True,
  "model.feed_forward": "swiglu",
  "model.qk_norm": True,
  "model.num_heads": 4,
  "model.num_kv_heads": 2,
}
# Random models, with every option in one of them.
MODELS = {
  "defaults": {"kind": "byte"},
  "pre-norm, clamp, zeros": {
    "kind": "word",
    "model.pre_norm": True,
    "model.untie_biases": True,
    "model.memory_start": "zeros",
    "eval.clamp_len": 3,
    "eval.same_length": True,
  },
  "narrower clusters, window of PyTorch": {
    "kind": "subword",
    "model.cutoffs": (50, 120),
    "model.div_val": 2,
    "model.embed_dim": 8,
    "eval.same_length": True,
    "model.same_length_window": "mem_len",
  },
  "nothing tied": {
    "kind": "character",
    "model.cutoffs": (3, 7),
    "model.tie_weights": False,
    "model.tie_projections": "none",
    "model.embed_dim": 6,
    "model.memory_start": "zeros",
  },
  "equal widths as TensorFlow has them": {
    "kind": "subword",
    "model.cutoffs": (50, 120),
    "model.div_val": 2,
    "model.project_equal_width": False,
    "model.tie_projections": "all",
  },
  ROTATING: {
    "kind": "byte",
    "model.encoding": ROTATING,
    f"model.{ROTATING}.position_scale": 0.5,
    "model.pre_norm": True,
  },
  "frequencies of Llama 3": {
    "kind": "byte",
    "model.encoding": ROTATING,
    f"model.{ROTATING}.base": 500.0,
    f"model.{ROTATING}.long_factor": 8.0,
    f"model.{ROTATING}.original_len": 40,
  },
  SLOPING: {"kind": "byte", "model.encoding": SLOPING, "model.num_heads": 3},
  "block of today": {"kind": "subword", **BLOCK_OF_TODAY},
  "block of today around relative attention": {
    "kind": "byte",
    "model.untie_biases": True,
    "model.memory_start": "zeros",
    "model.norm": "rms",
    "model.feed_forward": "geglu",
    "model.qk_norm": True,
    "model.num_heads": 6,
    "model.num_kv_heads": 3,
    "eval.clamp_len": 3,
  },
  "pre-norm with a final layer norm": {
    "kind": "word",
    "model.encoding": SLOPING,
    "model.pre_norm": True,
    "model.memory_start": "zeros",
    "model.final_norm": True,
    "model.feed_forward": "geglu",
    "model.num_kv_heads": 1,
  },
  "no memory": {
    "kind": "byte",
    "model.encoding": "none",
    "score.mem_len": 0,
    "generate.mem_len": 0,
  },
}
# The largest difference of these models is 6e-6; sums have another order.
TOLERANCE = 5e-5
# Memories that reach the start of a text are indifferent to segments, and so
# reading a text again is right for them.
LONG = {"mem_len": 64}
IDS = torch.arange(24).view(2, 12) % 7


def loaded(folder, **fields):
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, trust_remote_code=True, **fields
  ).eval()


def tokenizer_of(folder):
  return transformers.AutoTokenizer.from_pretrained(folder)


def text_for(model, copies):
  """A text of symbols that the vocabulary has."""
  text = TEXT * copies
  if model.vocabulary.unit in ("byte", "character"):
    text = "".join(c for c in text if c in model.vocabulary.symbols)
  return text


@torch.no_grad()
def log_probs(model, ids):
  """Log-probability of each token but the first, in one call, [tokens - 1]."""
  logits = model(ids).logits
  return logits[0, :-1].gather(-1, ids[0, 1:, None])[:, 0].numpy()


def difference(model, ours, text):
  """The largest between log-probabilities here and there."""
  ids = torch.tensor(ours.vocabulary.encode(text).tolist())[None]
  (score,) = ours.score([text], prefix="")
  expected = np.array(score.log_probs[1:])
  assert len(expected) == ids.shape[1] - 1
  return np.abs(log_probs(model, ids) - expected).max()
