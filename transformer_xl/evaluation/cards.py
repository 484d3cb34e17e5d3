"""Evaluation cards: results beside all settings that they depend on."""

import contextlib
import math
import os
from collections.abc import Sequence

import jax
from absl import logging

from transformer_xl import errors
from transformer_xl import storage
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluator
from transformer_xl.evaluation import settings
from transformer_xl.model import nats
from transformer_xl.model import network
from transformer_xl.processes import others
from transformer_xl.workdir import lease
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import trained_model

Card = metrics_log.Json
# What adapts to a split, and the fields of it that can be compared.
ADAPTED = {
  "dynamic": ("learning_rate", "decay"),
  "cache": ("flatness", "share"),
}
# Characters that words between white space have on average, at most, with one
# space. Prose has 5 to 9, source code 11.
_LONGEST_WORDS = 10
# Printed where they differ.
_USUAL = {
  "context_len": 0,
  "temperature": 1,
  "warmup_len": -1,
  "parameters": "raw",
  "reset_at_documents": False,
  "targets": "all",
}


def make(
  model: trained_model.TrainedModel,
  score: evaluator.Score,
  file: token_file.TokenFile,
  mem_len: int,
) -> Card:
  """The evaluation card: a score with all settings that it depends on.

  `bits_per_character` is null unless tokens are characters or bytes. Those of
  enwik8 are per byte, as published.
  `bits_per_byte` and `word_perplexity` use the size of the original text, so
  they compare models with different vocabularies; they are null for a text
  without. So is `word_perplexity` where what stands between white space is
  longer than words are, as in source code and in texts without spaces.
  `dataset_sha256` is that of the split's token file. What is not finite is
  null. `unknown_share` is that of the split's tokens that are unknown to the
  vocabulary; null for data of earlier versions, which do not state it.
  """
  config = model.config
  meta = file.meta
  dataset = token_file.read_meta(config.data.dataset_dir)
  unit = dataset["unit"]
  nll = score.nll / score.num_tokens
  bits_per_byte = None
  word_perplexity = None
  bits_per_character = None
  unknown_share = None
  if "num_unknown" in meta:
    unknown_share = meta["num_unknown"] / meta["num_tokens"]
  # The answers alone are no text.
  scores_text = config.data.targets == "all"
  if scores_text and meta["num_bytes"]:
    bits_per_byte = nats.bits(score.nll) / meta["num_bytes"]
  between_spaces = meta["num_words"] - meta.get("num_lines", 0)
  are_words = meta["num_characters"] <= _LONGEST_WORDS * between_spaces
  if scores_text and meta["num_words"] and are_words:
    word_perplexity = nats.perplexity(score.nll / meta["num_words"])
  if unit in ("byte", "character"):
    bits_per_character = nats.bits(nll)
    is_counted = scores_text and meta["num_characters"]
    if unit == "byte" and is_counted and dataset["dataset"] != "enwik8":
      bits_per_character *= meta["num_bytes"] / meta["num_characters"]
  return metrics_log.finite(
    {
      "dataset": config.data.name,
      "dataset_sha256": file.sha256,
      "split": config.eval.split,
      "num_tokens": score.num_tokens,
      "nll": nll,
      "perplexity": nats.perplexity(nll),
      "bits_per_character": bits_per_character,
      "bits_per_byte": bits_per_byte,
      "word_perplexity": word_perplexity,
      "unknown_share": unknown_share,
      **settings.of_evaluation(config.scoring, mem_len),
      "checkpoint_step": model.step,
      "initialised_from": model.initialised_from,
      "num_parameters": network.num_parameters(model.params),
      "seconds": score.seconds,
      "tokens_per_second": score.num_tokens / score.seconds,
    }
  )


def is_static(card: Card) -> bool:
  """Whether nothing adapted to the split, so that protocols are alike."""
  return not any(card.get(kind) for kind in ADAPTED)


def keep(workdir: str, name: str, result: metrics_log.Json) -> None:
  """Writes `results/<name>.json`; adds its cards to `results/cards.jsonl`.

  It waits for other evaluations that add theirs: a file in a bucket is written
  as a whole, so one would take away another's cards.

  Raises:
    UserError: the bucket refuses.
    OSError: the files cannot be written.
  """
  with contextlib.ExitStack() as held:
    if jax.process_index() == 0:
      path = lease.path_in(os.path.join(workdir, "results"), ".cards.lock")
      with errors.of_bucket("write to", workdir):
        held.enter_context(lease.Leases().wait(path, until="added its cards"))
    storage.refresh(workdir, "results/cards.jsonl")
    metrics_log.append_lines(workdir, "results/cards.jsonl", result["cards"])
    metrics_log.write_json(workdir, f"results/{name}.json", result)
    storage.publish(workdir)  # Else the next `refresh` takes them away again.
  # Process 0 may wait for longer than devices wait for one another.
  others.gather("the cards are kept")


def log(card: Card) -> None:
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
  usual = settings.usual_encoding_fields(card["encoding"])
  for name, value in card["encoding_fields"].items():
    if value != usual[name]:
      unusual += f", {name} {value}"
  for one in card["extensions"]:
    unusual += f", {one['file'] or one['name']} {one['sha256'][:8]}"
  if card["same_length"]:
    unusual += f", window {card['same_length_window']}"
  split = card["split"]
  for name in ADAPTED:  # So that such a result never looks static.
    if card.get(name):
      values = (f"{key} {value}" for key, value in card[name].items())
      split += f", {name} ({', '.join(values)})"
  logging.info(
    "%s",
    text.format(
      **card | {"split": split},
      loss=loss,
      bits=bits,
      unusual=unusual,
      memory=settings.memory_text(card),
    ),
  )


def log_best(cards: Sequence[Card]) -> None:
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
