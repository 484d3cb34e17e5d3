"""Random models of transformers, and what both sides say of the same tokens.

Without PyTorch and transformers 5, tests that import this module are skipped.
"""

import numpy as np

from tests.importers import decoders_by_hand
from tests.importers import in_pytorch

torch, transformers = in_pytorch.torch, in_pytorch.transformers

# Layers, width, heads, heads of keys and values.
SIZES = {"small": (2, 24, 4, 2), "wide": (3, 96, 6, 3), "deep": (6, 48, 4, 1)}
LENGTH = 160
# Where the text is cut into parts: nowhere, and at these tokens.
STOPS = ((), (64, 100, 101, 102))
# Number formats of the file; both sides compute in float32.
FORMATS = ("float32", "float16", "bfloat16")
LIMIT = 1e-4  # Log-probabilities may differ by as many nats.


def fields(name, size):
  layers, width, heads, of_keys = SIZES[size]
  own = decoders_by_hand.KINDS[name]
  return decoders_by_hand.SHAPE | {
    **{"num_hidden_layers": layers, "hidden_size": width},
    **{"num_attention_heads": heads, "intermediate_size": 2 * width},
    **{"num_key_value_heads": of_keys, "max_position_embeddings": 256},
    **own,
  }


def written(name, size, folder, dtype="float32"):
  """A random model of theirs, from the folder that it writes."""
  config = transformers.AutoConfig.for_model(**fields(name, size))
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.ndim == 1:
        parameter.add_(0.3 * torch.randn_like(parameter))
      else:  # Drawn so narrow that all tokens would be as likely.
        parameter.mul_(5)
  model.to(getattr(torch, dtype)).save_pretrained(folder)
  decoders_by_hand.write_tokenizer(folder)
  # Read again: `to` has rounded its frequencies, which no file has.
  return transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.float32
  )


def tokens_of(num_lanes):
  return np.random.default_rng(0).integers(0, 257, (num_lanes, LENGTH))


def theirs(model, tokens):
  with torch.no_grad():
    logits = model(torch.tensor(tokens)).logits
  widest = torch.promote_types(logits.dtype, torch.float32)
  return torch.log_softmax(logits.to(widest), dim=-1).numpy()


def ours(model, tokens, stops=()):
  state = model.init_state(len(tokens))
  parts = []
  for part in np.split(tokens, stops, axis=1):
    state, found = model.step(state, part)
    parts.append(np.asarray(found))
  return np.concatenate(parts, axis=1)
