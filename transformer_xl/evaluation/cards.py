"""Evaluation cards: results beside all settings that they depend on.

`evaluate.Subject.card` makes them.
"""

import math
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from absl import logging

from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.workdir import metrics_log

# What adapts to a split, and the fields of it that can be compared.
ADAPTED = {
  "dynamic": ("learning_rate", "decay"),
  "cache": ("flatness", "share"),
}
# Printed where they differ.
_USUAL = {
  **{"context_len": 0, "position_scale": 1, "temperature": 1},
  **{"warmup_len": -1, "parameters": "raw"},
}


def is_static(card: Mapping[str, Any]) -> bool:
  """Whether nothing adapted to the split, so that protocols are alike."""
  return not any(card.get(kind) for kind in ADAPTED)


def keep(workdir: str, name: str, result: dict[str, Any]) -> None:
  """Writes `results/<name>.json`; adds its cards to `results/cards.jsonl`."""
  storage.refresh(workdir, "results/cards.jsonl")
  metrics_log.append_lines(workdir, "results/cards.jsonl", result["cards"])
  metrics_log.write_json(workdir, f"results/{name}.json", result)
  storage.publish(workdir)  # Else the next `refresh` takes them away again.


def compressed(config: schema.ExperimentConfig, mem_len: int) -> dict[str, Any]:
  """What a card says of a compressed memory, if there is one."""
  if not mem_len or not config.eval.compressed_len:
    return {}
  return {
    "compression": config.model.compression,
    "compression_rate": config.model.compression_rate,
    "compressed_len": config.eval.compressed_len,
  }


def memory_text(record: Mapping[str, Any]) -> str:
  """The memory behind a loss, for people."""
  text = "{mem_len}"
  if "compressed_len" in record:
    text += " and {compressed_len} slots of {compression_rate} ({compression})"
  return text.format(**record)


def log(card: Mapping[str, Any]) -> None:
  """Prints a result with the settings that it depends on."""
  bpc = card["bits_per_character"]
  loss = "diverged"
  if card["perplexity"] is not None:
    loss = f"nll {card['nll']:.4f}  perplexity {card['perplexity']:.3f}"
  bits = "" if bpc is None else f"  bits per character {bpc:.4f}"
  text = (
    "{dataset} {split}: {loss}{bits} over {num_tokens} tokens  [segment "
    "{segment_len}, memory {memory}, clamp {clamp_len}, same_length "
    "{same_length}, start {memory_start}, batch {batch_size}, {dtype}, step "
    "{checkpoint_step}{unusual}]"
  )
  unusual = "".join(
    f", {name} {card[name]}"
    for name, usual in _USUAL.items()
    if card[name] != usual
  )
  if card["memory_lens"]:
    unusual += f", memory_lens {card['memory_lens']}"
  if card["same_length"]:
    unusual += f", window {card['same_length_window']}"
  logging.info(
    "%s",
    text.format(
      **card, loss=loss, bits=bits, unusual=unusual, memory=memory_text(card)
    ),
  )


def log_best(cards: Sequence[Mapping[str, Any]]) -> None:
  """Logs the flags of the settings with the lowest loss."""
  best = min(cards, key=lambda card: card["nll"] or math.inf)
  flags = [
    f"--config.eval.{name}={best[name]}" for name in ("mem_len", "temperature")
  ]
  flags += [
    f"--config.eval.{kind}.{name}={best[kind][name]}"
    for kind, names in ADAPTED.items()
    for name in names
    if best.get(kind)
  ]
  logging.info("lowest perplexity of %d: %s", len(cards), " ".join(flags))
