"""The PyTorch sides of the speed benchmarks: published models and training.

HuggingFace's model and the original one run as in their own scripts: Adam with
the gradient clipped at 0.25, and `torch.no_grad` outside training. nanoGPT is a
Transformer without memory, which reads as many tokens in segments as long: what
training costs without one. In bfloat16 all run under PyTorch's autocast, with
parameters in float32, as ours are. HuggingFace's needs the `parity` extra.
"""

import contextlib
import os
import sys
import time
import types
import warnings
from typing import Any

import torch

from benchmarks import workload


def make(
  who: str,
  work: workload.Workload,
  *,
  count: int,
  folder: str | None,
  device: str,
  is_compiled: bool,
) -> Any:
  """Creates a runner as in `ours`.

  Args:
    who: "huggingface", "original" or "nanogpt".
    work: what is run.
    count: segments of a call.
    folder: checkout of the original code or of nanoGPT.
    device: "cpu" or "cuda".
    is_compiled: whether `torch.compile` compiles the model.
  """
  if device == "cuda":  # Allows TF32, as JAX does there.
    torch.set_float32_matmul_precision("high")
  model: Any
  if who == "huggingface":
    model = _HuggingFace(work)
  elif who == "original":
    model = _Original(work, folder)
  else:
    model = _NanoGpt(work, folder)
  model.module.to(device)
  if is_compiled:
    model.compile()
  ids = torch.from_numpy(workload.tokens(work, count=count)).long()
  return _Runner(work, model, ids.to(device), device)


def device_bytes() -> int:
  """The most that a GPU has held; 0 on a CPU."""
  return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


class _Runner:
  """Runs segments with one of the models."""

  def __init__(self, work, model, ids, device):
    self.peak_bytes = None
    self._device = device
    self._work = work
    self._model = model
    self._ids = ids
    self._memory = model.full_memory()
    self._token = ids[0, :, :1]
    model.module.train(work.task == "train")
    self._optimizer = torch.optim.Adam(
      model.module.parameters(), lr=2.5e-4, fused=device == "cuda"
    )
    start = time.perf_counter()
    self()
    self.compile_seconds = time.perf_counter() - start

  def __call__(self):
    is_fast = self._work.dtype == "bfloat16"
    with torch.autocast(self._device, dtype=torch.bfloat16, enabled=is_fast):
      loss = self._run()
    if self._device == "cuda":
      torch.cuda.synchronize()
    return loss

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


class _Model:
  """What the models have in common."""

  module: torch.nn.Module

  def compile(self):
    self.module.compile()


class _HuggingFace(_Model):
  """`TransfoXLLMHeadModel` of transformers 4.35."""

  def __init__(self, work):
    self._work = work
    with warnings.catch_warnings():
      # Transformers 4.35 registers tree nodes in a deprecated way.
      warnings.simplefilter("ignore")
      from transformers.models.transfo_xl import configuration_transfo_xl
      from transformers.models.transfo_xl import modeling_transfo_xl

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
    self.module.crit.forward = self._in_float32(self.module.crit.forward)

  def _in_float32(self, softmax):
    """Its softmax, which fails under autocast on a CPU: it mixes types."""

    def call(hidden, *rest):
      with torch.autocast(hidden.device.type, enabled=False):
        return softmax(hidden.float(), *rest)

    return call

  def full_memory(self):
    return self.module.init_mems(self._work.batch_size)

  def loss(self, segment, memory):
    output = self.module(segment[:, :-1], labels=segment[:, 1:], mems=memory)
    # The model shifts labels again, so one target per segment is lost.
    return output.losses.mean(), output.mems

  def logits(self, tokens, memory):
    output = self.module(tokens, mems=memory)
    return output.prediction_scores, output.mems


class _Original(_Model):
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

  def compile(self):
    self.module._forward = torch.compile(self.module._forward)
    self.module.crit.compile()

  def full_memory(self):
    work = self._work
    device = next(self.module.parameters()).device
    shape = (work.mem_len, work.batch_size, work.model_dim)
    return tuple(
      torch.zeros(shape, device=device) for _ in range(work.num_layers + 1)
    )

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


class _NanoGpt(_Model):
  """`GPT` of github.com/karpathy/nanoGPT, model.py; it can only train."""

  def __init__(self, work, folder):
    if work.ff_dim != 4 * work.model_dim:
      raise ValueError("nanoGPT has a feed-forward layer of 4 times the width.")
    path = os.path.join(folder, "model.py")
    module = _module("nanogpt", path)
    config = module.GPTConfig(
      block_size=work.segment_len,
      vocab_size=work.vocab_size,
      n_layer=work.num_layers,
      n_head=work.num_heads,
      n_embd=work.model_dim,
      dropout=0.0,
      bias=True,
    )
    with contextlib.redirect_stdout(sys.stderr):  # It prints its size.
      self.module = module.GPT(config)

  def full_memory(self):
    """It has none."""

  def loss(self, segment, memory):
    # As contiguous as the batches of its train.py.
    inputs = segment[:, :-1].contiguous()
    targets = segment[:, 1:].contiguous()
    _, loss = self.module(inputs, targets)
    return loss, memory


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
  sys.path.insert(0, os.path.join(folder, "pytorch", "utils"))
  # The import parses the CUDA version, which CPU builds lack.
  torch.version.cuda = torch.version.cuda or "12.0"
  path = os.path.join(folder, "pytorch", "mem_transformer.py")
  return _module("original", path, {".byte()": ".bool()"})


def _module(
  name: str, path: str, replaced: dict[str, str] | None = None
) -> types.ModuleType:
  """Loads a file as a module, with other text in some places."""
  with open(path, encoding="utf-8") as file:
    source = file.read()
  for old, new in (replaced or {}).items():
    source = source.replace(old, new)
  module = types.ModuleType(name)
  sys.modules[name] = module  # Data classes look their module up.
  exec(compile(source, path, "exec"), module.__dict__)
  return module
