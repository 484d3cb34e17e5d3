"""The README.md of an exported model, with the metadata that the Hub reads."""

import os
from typing import NamedTuple

import huggingface_hub

from transformer_xl import storage
from transformer_xl.config import schema
from transformer_xl.evaluation import cards as cards_lib
from transformer_xl.workdir import metrics_log
from transformer_xl.workdir import run_history
from transformer_xl.workdir import run_record

# Columns of the table of evaluations, by fields of an evaluation card.
_COLUMNS = {
  "dataset": "data",
  "split": "split",
  "num_tokens": "tokens",
  "perplexity": "perplexity",
  "bits_per_character": "bits per character",
  "segment_len": "segment",
  "mem_len": "memory",
  "context_len": "context read again",
  "temperature": "temperature",
  "warmup_len": "warm-up",
  "reset_at_documents": "reset at documents",
  "targets": "targets",
  "clamp_len": "clamp",
  "same_length": "same length",
  "memory_start": "start",
  "batch_size": "lanes",
  "dtype": "type",
}
_METRICS = {
  "perplexity": "Perplexity",
  "bits_per_character": "Bits per character",
}
# Fields of a card that the Hub shows beside its metrics.
_SETTINGS = (
  "segment_len",
  "mem_len",
  "context_len",
  "warmup_len",
  "reset_at_documents",
  "targets",
  "temperature",
  "clamp_len",
  "same_length",
  "batch_size",
)
_LIBRARY = "transformer_xl"


def evaluations(
  workdir: str, *, step: int, parameters: str
) -> list[cards_lib.Card]:
  """The static cards of `results/cards.jsonl` of these parameters.

  Damaged cards are left out.
  """
  path = os.path.join(storage.local(workdir), "results", "cards.jsonl")
  wanted = (step, parameters)
  return [
    card
    for card in metrics_log.read_lines(path)
    if (card.get("checkpoint_step"), card.get("parameters")) == wanted
    and cards_lib.is_static(card)
    and {"dataset", "split", "mem_len"} <= card.keys()
    and all(isinstance(card.get(metric), float | None) for metric in _METRICS)
  ]


def origin(workdir: str, *, dataset: str, step: int) -> str:
  """Where the parameters of a run's checkpoint are from."""
  imported = run_history.result(workdir, "import")
  if imported is not None:
    return f"imported from a checkpoint in {imported.get('format')}'s format"
  text = f"after {step:,} updates on {dataset}"
  source = run_record.initialised_from(workdir)
  if source is not None:
    name = os.path.basename(str(source.get("workdir")))
    text += f" from step {source.get('checkpoint_step')} of {name}"
  return text


class Subject(NamedTuple):
  """The model that a card is of.

  Attributes:
    name: what it is called.
    config: its configuration.
    origin: where its parameters are from.
    num_parameters: the number of them.
    unit: what a token is.
    model_type: the type of transformers that it is, such as llama; None if the
      folder has the model's file.
  """

  name: str
  config: schema.ModelConfig
  origin: str
  num_parameters: int
  unit: str
  model_type: str | None


def render(subject: Subject, cards: list[cards_lib.Card]) -> str:
  """The text of README.md: metadata, sizes, how to load, evaluations."""
  model = subject.config
  model_type = subject.model_type
  kind = "Transformer-XL language model (Dai et al. 2019)"
  how = ", which runs the model's file in this folder"
  trust = ", trust_remote_code=True"
  tags = ["transformer-xl", "transfo-xl", "jax"]
  if model_type is not None:
    kind = f"language model of the type `{model_type}`"
    how = ""
    trust = ""
    tags = [model_type, "jax"]
  metadata = huggingface_hub.ModelCardData(
    model_name=subject.name,
    library_name=_LIBRARY,
    pipeline_tag="text-generation",
    tags=tags,
    eval_results=[result for card in cards for result in _results(card)],
  )
  return f"""---
{metadata.to_yaml()}
---

# {_escape(subject.name)}

A {kind} with {subject.num_parameters:,}
parameters, {_escape(subject.origin)}: {model.num_layers} layers of width
{model.model_dim} with {model.num_heads} heads, and a vocabulary of
{model.vocab_size:,} {subject.unit}s.

```python
import transformer_xl

model = transformer_xl.load("PATH")  # This folder, or hf://OWNER/NAME.
print(model.generate("PROMPT").text)
```

In PyTorch, with transformers{how}:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH"{trust})
model = AutoModelForCausalLM.from_pretrained("PATH"{trust})
ids = tokenizer("PROMPT", return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=200)[0]))
```

{_table(cards)}
"""


def _results(card: cards_lib.Card) -> list[huggingface_hub.EvalResult]:
  settings = {name: card[name] for name in _SETTINGS if name in card}
  return [
    huggingface_hub.EvalResult(
      task_type="text-generation",
      dataset_type=card["dataset"],
      dataset_name=card["dataset"],
      dataset_split=card["split"],
      dataset_args=settings,
      metric_type=metric,
      metric_name=f"{title}, memory {card['mem_len']}",
      metric_value=round(card[metric], 4),
      metric_args=settings,
    )
    for metric, title in _METRICS.items()
    if card.get(metric) is not None
  ]


def _table(cards: list[cards_lib.Card]) -> str:
  if not cards:
    return "It was not evaluated."
  rows = [list(_COLUMNS.values()), ["---"] * len(_COLUMNS)]
  rows += [[_cell(card.get(name)) for name in _COLUMNS] for card in cards]
  return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(value: object) -> str:
  if value is None:
    return "-"
  return f"{value:.3f}" if isinstance(value, float) else _escape(f"{value}")


def _escape(text: str) -> str:
  """Text that is no Markdown and no HTML, in one line."""
  return "".join(
    f"&#{ord(character)};" if character in "&<>|`[]*\\" else character
    for character in " ".join(text.split())
  )
