"""How a split is read: its stream, and the network with its settings."""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp

from transformer_xl.config import schema
from transformer_xl.data import streams
from transformer_xl.data import token_file
from transformer_xl.model import network
from transformer_xl.model import pattern
from transformer_xl.model import reader as reader_lib
from transformer_xl.model import ring
from transformer_xl.model.kernels import dispatch
from transformer_xl.model.mixers import mixer as mixer_lib

ReaderT = TypeVar("ReaderT", reader_lib.Reader, reader_lib.NetworkReader)


def open_stream(scoring: schema.Scoring, mem_len: int) -> streams.EvalStream:
  """The segments that an evaluation reads, including its warm-up."""
  evaluation = scoring.eval
  warmup = evaluation.warmup_len
  if warmup < 0:  # As many tokens as the memory holds, at least its length.
    warmup = mem_len
    for layer in pattern.places(scoring.model):
      held = layer.mixer.remembered_tokens(scoring.model, mem_len)
      warmup = max(warmup, held or 0)
  return streams.EvalStream(
    token_file.open_split(scoring.data.dataset_dir, evaluation.split),
    num_lanes=evaluation.batch_size,
    segment_len=evaluation.segment_len,
    warmup_len=warmup,
    resets=streams.reset_rule(scoring.data, scoring.model),
    context_len=evaluation.context_len,
    targets=scoring.data.targets,
  )


def make_reader(
  model: schema.ModelConfig, evaluation: schema.EvalConfig, mem_len: int
) -> reader_lib.Reader:
  """The reader of whole segments, with the first temperature of evaluation."""
  reader = _reader(reader_lib.Reader, model, evaluation, mem_len)
  return dataclasses.replace(reader, whole_steps=True)


def make_network_reader(
  model: schema.ModelConfig, evaluation: schema.EvalConfig, mem_len: int
) -> reader_lib.NetworkReader:
  """The network as a reader, with the first temperature of evaluation."""
  return _reader(reader_lib.NetworkReader, model, evaluation, mem_len)


def _reader(
  kind: type[ReaderT],
  model: schema.ModelConfig,
  evaluation: schema.EvalConfig,
  mem_len: int,
) -> ReaderT:
  """A reader of one kind, with the settings of evaluation."""
  return kind(
    model,
    mem_len=mem_len,
    segment_len=evaluation.read_len,
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
    temperature=evaluation.temperature[0],
  )


def make_network(
  model: schema.ModelConfig,
  evaluation: schema.EvalConfig,
  *,
  inspects: bool = False,
) -> network.Network:
  """The network with the attention and the first temperature of evaluation."""
  settings = mixer_lib.Settings(
    clamp_len=evaluation.clamp_len,
    same_length=evaluation.same_length,
    temperature=evaluation.temperature[0],
    inspects=inspects,
  )
  return network.Network(model, settings)


def caches_keys(
  model: schema.ModelConfig,
  evaluation: schema.EvalConfig,
  mesh: jax.sharding.Mesh,
  *,
  mem_len: int,
) -> bool:
  """Whether memory holds keys and values instead of hidden states.

  `eval.memory` says so; with "auto", a TPU takes keys and values where one
  kernel attends to the ring of each layer.
  """
  if evaluation.memory != "auto":
    return evaluation.memory == "key_value"
  device = mesh.devices.flat[0].device_kind
  if not device.startswith("TPU"):
    return True
  dtype = jnp.dtype(model.dtype)
  step_len = evaluation.read_len
  query = jax.ShapeDtypeStruct((1, 1, step_len, model.head_dim), dtype)
  for layer in pattern.places(model):
    if layer.mixer.streaming is None:
      continue
    num_slots = ring.num_slots(layer.mem_len(mem_len), step_len)
    keys = jax.ShapeDtypeStruct((1, model.head_dim, num_slots), dtype)
    if not dispatch.fuses_ring(model.attention, device, query, keys):
      return False
  return mesh.shape["tensor"] == 1  # Otherwise XLA attends.
