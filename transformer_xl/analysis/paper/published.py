"""What the paper published, item by item (arXiv 1901.02860).

docs/paper.md has the same numbers beside the measured ones, and a test holds
the two together.
"""

import difflib
from typing import Literal, NamedTuple

from transformer_xl import errors

PERPLEXITY = "PPL"
BITS = "bits a character"
_ABLATION = ("PPL init", "PPL best", "attention length")

# What finds the numbers of an item, beside those that were published:
# "study" trains variants and evaluates each as its experiment says,
# "ablation" also at several attention lengths, "recl" trains variants and
# measures their effective contexts, "speed" times evaluation, "attention"
# trains a model and draws its heads, and "sample" lets it write.
Method = Literal["study", "ablation", "recl", "speed", "attention", "sample"]


class Row(NamedTuple):
  """A row as published.

  Attributes:
    name: as the paper calls it.
    values: by column; None where nothing was published.
    variant: the name of the variant that is measured here; "" for none.
    group: rows that the paper compares with each other alone.
  """

  name: str
  values: tuple[float | None, ...]
  variant: str = ""
  group: str = ""


class Item(NamedTuple):
  """A table, a figure or an appendix of the paper."""

  title: str
  method: Method
  columns: tuple[str, ...] = ()
  rows: tuple[Row, ...] = ()


ITEMS: dict[str, Item] = {
  "table1": Item(
    "WikiText-103, test perplexity",
    "study",
    (PERPLEXITY,),
    (
      Row("LSTM (Grave et al. 2016)", (48.7,), "lstm"),
      Row("TCN (Bai et al. 2018)", (45.2,)),
      Row("GCNN-14 (Dauphin et al. 2016)", (37.2,)),
      Row("LSTM with neural cache (Grave et al. 2016)", (40.8,)),
      Row("QRNN, 151M (Merity et al. 2018)", (33.0,), "qrnn"),
      Row("Hebbian and cache (Rae et al. 2018)", (29.9,)),
      Row("Transformer-XL standard, 151M", (24.0,), "standard"),
      Row("adaptive input, 247M (Baevski and Auli 2018)", (20.5,), "vanilla"),
      Row("Transformer-XL large, 257M", (18.3,), "large"),
    ),
  ),
  "table2": Item(
    "enwik8, bits a character",
    "study",
    (BITS,),
    (
      Row("LN HyperNetworks, 27M", (1.34,)),
      Row("LN HM-LSTM, 35M", (1.32,)),
      Row("RHN, 46M", (1.27,)),
      Row("FS-LSTM-4, 47M", (1.25,)),
      Row("large mLSTM, 46M", (1.24,)),
      Row("12 layers, 44M (Al-Rfou et al. 2018)", (1.11,), "alrfou_12"),
      Row("64 layers, 235M (Al-Rfou et al. 2018)", (1.06,), "alrfou_64"),
      Row("Transformer-XL, 12 layers, 41M", (1.06,), "layers_12"),
      Row("Transformer-XL, 18 layers, 88M", (1.03,), "layers_18"),
      Row("Transformer-XL, 24 layers, 277M", (0.99,), "layers_24"),
    ),
  ),
  "table3": Item(
    "text8, bits a character",
    "study",
    (BITS,),
    (
      Row("BN-LSTM", (1.36,)),
      Row("LN HM-LSTM, 35M", (1.29,)),
      Row("RHN, 45M", (1.27,)),
      Row("large mLSTM, 45M", (1.27,)),
      Row("12 layers, 44M (Al-Rfou et al. 2018)", (1.18,), "alrfou_12"),
      Row("64 layers, 235M (Al-Rfou et al. 2018)", (1.13,), "alrfou_64"),
      Row("Transformer-XL, 24 layers, 277M", (1.08,), "layers_24"),
    ),
  ),
  "table4": Item(
    "One Billion Word, test perplexity",
    "study",
    (PERPLEXITY,),
    (
      Row("LSTM, 1.8B (Jozefowicz et al. 2016)", (30.6,), "lstm"),
      Row("LSTM with CNN input, 1.04B (Jozefowicz et al. 2016)", (30.0,)),
      Row("mixture of experts, about 5B (Shazeer et al. 2017)", (28.0,)),
      Row("Mesh TensorFlow, 4.9B (Shazeer et al. 2018)", (24.0,)),
      Row("adaptive input, 0.46B (Baevski and Auli 2018)", (24.1,)),
      Row("adaptive input, 1.0B (Baevski and Auli 2018)", (23.7,)),
      Row("Transformer-XL base, 0.46B", (23.5,), "transformer_xl"),
      Row("Transformer-XL large, 0.8B", (21.8,), "large"),
    ),
  ),
  "table5": Item(
    "Penn Treebank, test perplexity",
    "study",
    (PERPLEXITY,),
    (
      Row("AWD-LSTM, 24M", (58.8,), "long_lstm"),
      Row("efficient NAS, 24M", (58.6,)),
      Row("differentiable NAS, 23M", (56.1,)),
      Row("AWD-LSTM-MoS, 22M", (55.97,)),
      Row("Melis et al. 2018, 24M", (55.3,)),
      Row("Transformer-XL, 24M", (54.52,), "long_transformer_xl"),
      Row("MoS with fine-tuning in two steps, 22M", (54.44,)),
    ),
  ),
  "table6": Item(
    "Ablation on WikiText-103, segments of 128",
    "ablation",
    _ABLATION,
    (
      Row(
        "Transformer-XL, 128M", (27.02, 26.77, 500), "recurrent-relative-all"
      ),
      Row("Shaw's encoding", (27.94, 27.94, 256), "recurrent-shaw-all"),
      Row("half loss", (28.69, 28.33, 460), "recurrent-relative-recent_half"),
      Row("no recurrence", (29.59, 29.02, 260), "segment-relative-all"),
      Row(
        "no recurrence, half loss",
        (30.10, 30.10, 120),
        "segment-relative-recent_half",
      ),
      Row(
        "no recurrence, Shaw's encoding",
        (29.75, 29.75, 120),
        "segment-shaw-all",
      ),
      Row(
        "no recurrence, Shaw's encoding, half loss",
        (30.50, 30.50, 120),
        "segment-shaw-recent_half",
      ),
      Row(
        "no recurrence, Vaswani's encoding, half loss",
        (30.97, 30.97, 120),
        "segment-absolute-recent_half",
      ),
      Row(
        "Transformer, 128M: no recurrence, Al-Rfou's encoding, half loss",
        (31.16, 31.16, 120),
        "segment-absolute_per_layer-recent_half",
      ),
      Row("Transformer-XL, 151M", (23.43, 23.09, 640), "larger", "151M"),
    ),
  ),
  "table7": Item(
    "One Billion Word, a text without long dependencies",
    "study",
    (PERPLEXITY,),
    (
      Row("Transformer-XL", (25.2,), "transformer_xl"),
      Row("Shaw's encoding", (25.7,), "shaw"),
      Row("no recurrence", (27.1,), "no_recurrence"),
    ),
  ),
  "table8": Item(
    "Relative effective context length",
    "recl",
    ("r = 0.1", "r = 0.5", "r = 1.0"),
    (
      Row("Transformer-XL, 151M", (900, 800, 700), "larger", "151M"),
      Row("QRNN", (500, 400, 300), "qrnn", "151M"),
      Row("LSTM", (400, 300, 200), "lstm", "151M"),
      Row(
        "Transformer-XL, 128M",
        (700, 600, 500),
        "recurrent-relative-all",
        "128M",
      ),
      Row("Shaw's encoding", (400, 400, 300), "recurrent-shaw-all", "128M"),
      Row("no recurrence", (300, 300, 300), "segment-relative-all", "128M"),
      Row(
        "Transformer",
        (128, 128, 128),
        "segment-absolute_per_layer-recent_half",
        "128M",
      ),
    ),
  ),
  "table9": Item(
    "Times as long as Transformer-XL a vanilla model takes to evaluate",
    "speed",
    ("times",),
    (
      Row("attention length 800", (363,), "800"),
      Row("attention length 1,800", (773,), "1800"),
      Row("attention length 2,800", (1409,), "2800"),
      Row("attention length 3,800", (1874,), "3800"),
    ),
  ),
  "table10": Item(
    "Ablation at equal memory of the device in training",
    "ablation",
    _ABLATION,
    (
      Row("recurrent", (27.02, 26.77, 500), "recurrent-relative-all"),
      Row(
        "recurrent, half loss",
        (28.69, 28.33, 460),
        "recurrent-relative-recent_half",
      ),
      Row("no recurrence", (28.43, 27.98, 400), "segment-relative-all"),
      Row(
        "no recurrence, half loss",
        (28.83, 28.83, 120),
        "segment-relative-recent_half",
      ),
    ),
  ),
  "figure5": Item("Attention of each head by distance", "attention"),
  "figure6": Item("Attention of three heads to the memory", "attention"),
  "figure7": Item("Terms of the attention scores by distance", "attention"),
  "appendix_e": Item("A seed of test text, continued", "sample"),
}
# The figure draws what the table states.
SAME = {"figure3": "table8"}


def find(name: str) -> tuple[str, Item]:
  """The item of a name, and what it is called; `figure3` is `table8`.

  Raises:
    UserError: the paper has no such item, or there is nothing to measure.
  """
  name = SAME.get(name, name)
  if name not in ITEMS:
    known = [*ITEMS, *SAME]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise errors.UserError(
      f"analysis.paper={name!r} must be one of {', '.join(known)}{hint}"
    )
  return name, ITEMS[name]
