"""Continues a text through the memory that training uses; `--mode=generate`.

The prompt is read in segments, then one compiled loop draws a token at a time.
"""

import functools
import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping as jt
import numpy as np
from absl import logging

from transformer_xl import config as config_lib
from transformer_xl import data
from transformer_xl import errors
from transformer_xl import evaluate
from transformer_xl import memory as memory_lib
from transformer_xl import model as model_lib
from transformer_xl import provenance
from transformer_xl import shapes
from transformer_xl import sharding
from transformer_xl import vocabulary as vocabulary_lib
from transformer_xl import writer


def read_prompt(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  prompt: np.ndarray,
  *,
  model: model_lib.TransformerXL,
  segment_len: int,
) -> tuple[memory_lib.Memory, jt.Float[shapes.Array, "V"]]:
  """Reads [P] tokens, P > 0, in segments.

  Returns:
    The memory behind them, and the log-probabilities of the next token.
  """
  read = jax.jit(functools.partial(model.apply, method="log_probs"))
  for start in range(0, len(prompt), segment_len):
    tokens = jnp.asarray(prompt[None, start : start + segment_len], jnp.int32)
    log_probs, memory = read({"params": params}, tokens, memory)
  return memory, log_probs[0, -1]


def sample(
  log_probs: jt.Float[shapes.Array, "V"],
  key: jax.Array,
  *,
  temperature: float,
  top_k: int,
) -> jt.Int[shapes.Array, ""]:
  """Draws one token; a temperature of 0 takes the likeliest.

  With `top_k` > 0 only the k likeliest are drawn from, as in the paper's
  appendix E.
  """
  if temperature == 0:
    return jnp.argmax(log_probs).astype(jnp.int32)
  if 0 < top_k < log_probs.shape[0]:
    lowest = jax.lax.top_k(log_probs, top_k)[0][-1]
    log_probs = jnp.where(log_probs < lowest, -jnp.inf, log_probs)
  return jax.random.categorical(key, log_probs / temperature).astype(jnp.int32)


def decode(
  params: shapes.PyTree,
  memory: memory_lib.Memory,
  log_probs: jt.Float[shapes.Array, "V"],
  key: jax.Array,
  *,
  model: model_lib.TransformerXL,
  config: config_lib.GenerateConfig,
) -> jt.Int[shapes.Array, "L"]:
  """Draws `config.num_tokens` tokens one after the other."""

  def body(carry, key):
    memory, log_probs = carry
    token = sample(
      log_probs, key, temperature=config.temperature, top_k=config.top_k
    )
    log_probs, memory = model.apply(
      {"params": params}, token[None, None], memory, method="log_probs"
    )
    return (memory, log_probs[0, 0]), token

  keys = jax.random.split(key, config.num_tokens)
  _, tokens = jax.lax.scan(body, (memory, log_probs), keys)
  return tokens


def run(config: config_lib.ExperimentConfig, workdir: str) -> dict[str, Any]:
  """Continues `config.generate.prompt` and writes `results/generate.json`."""
  options = config.generate
  folder = os.path.join(workdir, provenance.VOCABULARY)
  vocabulary = vocabulary_lib.load(folder)
  config = data.with_vocab_size(config, data.read_meta(folder))
  prompt = vocabulary.encode(options.prompt)
  if len(prompt) == 0:
    raise errors.UserError(
      "the prompt is empty; set --config.generate.prompt='...'"
    )
  model = model_lib.TransformerXL(
    config.model, clamp_len=config.eval.clamp_len, same_length=False
  )
  mesh = sharding.make_mesh(config.mesh, lanes=())
  with jax.set_mesh(mesh):
    params, _ = evaluate.load_params(config, workdir, mesh)
    memory = model_lib.empty_memory(
      config.model, batch_size=1, mem_len=options.mem_len
    )
    memory, log_probs = read_prompt(
      params, memory, prompt, model=model, segment_len=options.segment_len
    )
    key = jax.random.fold_in(jax.random.key(config.seed), 2)
    compiled = (
      jax.jit(functools.partial(decode, model=model, config=options))
      .lower(params, memory, log_probs, key)
      .compile()
    )
    start = time.perf_counter()
    tokens = np.asarray(compiled(params, memory, log_probs, key))
    seconds = time.perf_counter() - start
  result = {
    "prompt": options.prompt,
    "text": vocabulary.decode(tokens),
    "num_tokens": options.num_tokens,
    "tokens_per_second": options.num_tokens / seconds,
    "seed": config.seed,
    "temperature": options.temperature,
    "top_k": options.top_k,
    "mem_len": options.mem_len,
  }
  logging.info("Sample:\n%s%s", options.prompt, result["text"])
  writer.write_json(os.path.join(workdir, "results", "generate.json"), result)
  return result
