"""The PyTorch sides of the speed benchmarks: HuggingFace and the original code.

Both run as in their own scripts: Adam with the gradient clipped at 0.25, and
`torch.no_grad` outside training. In bfloat16 they run under PyTorch's autocast,
with parameters in float32, as ours are. Needs the `parity` extra.
"""

import os
import sys
import types
import warnings
from typing import Any

from benchmarks import workload

with warnings.catch_warnings():
  # Transformers 4.35 registers tree nodes in a deprecated way.
  warnings.simplefilter("ignore")
  import torch
  from transformers.models.transfo_xl import configuration_transfo_xl
  from transformers.models.transfo_xl import modeling_transfo_xl


def make(work: workload.Workload, *, count: int, original: str | None) -> Any:
  """Creates a runner as in `ours`; `original` is the original code's folder."""
  model = _Original(work, original) if original else _HuggingFace(work)
  ids = torch.from_numpy(workload.tokens(work, count=count)).long()
  return _Runner(work, model, ids)


class _Runner:
  """Runs segments with either model."""

  def __init__(self, work, model, ids):
    self.compile_seconds, self.peak_bytes = 0.0, None
    self._work, self._model, self._ids = work, model, ids
    self._memory, self._token = model.full_memory(), ids[0, :, :1]
    model.module.train(work.task == "train")
    self._optimizer = torch.optim.Adam(model.module.parameters(), lr=2.5e-4)
    self()

  def __call__(self):
    is_fast = self._work.dtype == "bfloat16"
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_fast):
      return self._run()

  def _run(self):
    if self._work.task == "train":
      return [self._update(segment) for segment in self._ids][-1]
    with torch.no_grad():
      if self._work.task == "evaluate":
        return sum(map(self._score, self._ids)) / len(self._ids)
      for _ in self._ids:
        self._decode()
    return 0.0

  def _update(self, segment):
    self._model.module.zero_grad()
    loss, self._memory = self._model.loss(segment, self._memory)
    loss.backward()
    parameters = self._model.module.parameters()
    torch.nn.utils.clip_grad_norm_(parameters, 0.25)
    self._optimizer.step()
    return loss.item()

  def _score(self, segment):
    loss, self._memory = self._model.loss(segment, self._memory)
    return loss.item()

  def _decode(self):
    logits, self._memory = self._model.logits(self._token, self._memory)
    self._token = logits.argmax(-1)


class _HuggingFace:
  """`TransfoXLLMHeadModel` of transformers 4.35."""

  def __init__(self, work):
    self._work = work
    with warnings.catch_warnings():
      warnings.simplefilter("ignore", DeprecationWarning)
      self.module = modeling_transfo_xl.TransfoXLLMHeadModel(
        configuration_transfo_xl.TransfoXLConfig(
          **_sizes(work),
          d_embed=work.model_dim,
          vocab_size=work.vocab_size,
          cutoffs=[],
          div_val=1,
          untie_r=False,
        )
      )

  def full_memory(self):
    return self.module.init_mems(self._work.batch_size)

  def loss(self, segment, memory):
    output = self.module(segment[:, :-1], labels=segment[:, 1:], mems=memory)
    # The model shifts labels again, so one target per segment is lost.
    return output.losses.mean(), output.mems

  def logits(self, tokens, memory):
    output = self.module(tokens, mems=memory)
    return output.prediction_scores, output.mems


class _Original:
  """`MemTransformerLM` of github.com/kimiyoung/transformer-xl, pytorch/."""

  def __init__(self, work, folder):
    module = _original_module(folder)
    self._work = work
    self.module = module.MemTransformerLM(
      work.vocab_size,
      **_sizes(work),
      d_embed=work.model_dim,
      tgt_len=work.segment_len,
      ext_len=0,
      cutoffs=[],
    )
    for parameter in self.module.parameters():  # As in train.py.
      torch.nn.init.normal_(parameter, 0.0, 0.02)

  def full_memory(self):
    work = self._work
    shape = (work.mem_len, work.batch_size, work.model_dim)
    return tuple(torch.zeros(shape) for _ in range(work.num_layers + 1))

  def loss(self, segment, memory):
    inputs, targets = (
      ids.T.contiguous() for ids in (segment[:, :-1], segment[:, 1:])
    )
    loss, *memory = self.module(inputs, targets, *memory)
    return loss.mean(), memory

  def logits(self, tokens, memory):
    hidden, memory = self.module._forward(tokens.T, mems=memory)
    layer = self.module.crit.out_layers[0]
    logits = torch.nn.functional.linear(hidden, layer.weight, layer.bias)
    return logits.transpose(0, 1), memory


def _sizes(work) -> dict[str, Any]:
  """Settings that have the same names in both models."""
  return {
    "n_layer": work.num_layers,
    "n_head": work.num_heads,
    "d_model": work.model_dim,
    "d_head": work.model_dim // work.num_heads,
    "d_inner": work.ff_dim,
    "dropout": 0.0,
    "dropatt": 0.0,
    "mem_len": work.mem_len,
    "clamp_len": -1,
    "same_length": False,
  }


def _original_module(folder: str) -> types.ModuleType:
  """Loads the original model's source, adapted to PyTorch 2."""
  utils = os.path.join(folder, "pytorch", "utils")
  path = os.path.join(folder, "pytorch", "mem_transformer.py")
  with open(path, encoding="utf-8") as file:
    source = file.read().replace(".byte()", ".bool()")
  module = types.ModuleType("original")
  sys.path.insert(0, utils)
  # The import parses the CUDA version, which CPU builds lack.
  torch.version.cuda = torch.version.cuda or "12.0"
  exec(compile(source, path, "exec"), module.__dict__)
  return module
