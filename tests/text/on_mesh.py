"""The modes for text on four devices: do their kernels lower for a TPU?

The devices are CPUs. What a mode is about to compile is lowered for a TPU, too,
as on a chip that has the kernels; JAX refuses a kernel that nothing splits over
the devices.
"""

import json
import os
import pathlib
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax

from tests import saved_runs
from tests import scored
from transformer_xl import hardware
from transformer_xl.config import load
from transformer_xl.text import decoding
from transformer_xl.text import generate
from transformer_xl.text import score

LOWERED: dict[str, bool] = {}


def spy(module, name):
  """Lowers a compiled function for a TPU before its first call."""
  function = getattr(module, name)

  def call(*args, **kwargs):
    if name in LOWERED:
      return function(*args, **kwargs)
    device_kind = hardware.device_kind
    hardware.device_kind = lambda: "TPU v5 lite"
    jax.clear_caches()  # What is traced for a CPU has no kernels.
    try:
      traced = function.trace(*args, **kwargs)
      text = traced.lower(lowering_platforms=("tpu",)).as_text()
    finally:
      hardware.device_kind = device_kind
      jax.clear_caches()
    LOWERED[name] = "tpu_custom_call" in text
    return function(*args, **kwargs)

  setattr(module, name, call)


def main(folder: pathlib.Path) -> None:
  fields = {
    "model.head_dim": 64,
    "model.model_dim": 128,
    "score.mem_len": 128,
    "score.segment_len": 128,
    "generate.mem_len": 256,
    "generate.segment_len": 128,
    "generate.num_tokens": 3,
    "generate.prompt": "abc",
  }
  texts = folder / "texts"
  texts.write_text("abc\nbca\n")
  workdir = saved_runs.write(folder / "run", **fields)
  saved = load.from_config_dict(load.saved(workdir))
  # A saved run names no files to be read.
  config = load.replaced(saved, {"score.file": str(texts)})
  spy(score, "_read_segment")
  spy(decoding, "_read_part")
  scores = scored.run(config, workdir)
  drawn = generate.run(config, workdir)
  result = {
    "devices": jax.device_count(),
    "lowered": LOWERED,
    "texts": len(scores),
    "tokens": drawn["num_tokens"],
  }
  (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
