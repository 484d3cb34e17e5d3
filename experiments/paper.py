"""The paper's tables, figures and appendix E, one command each; `--mode=paper`.

`paper:table6` is at the scale of the paper, `paper:table6:small` for two cores:
small models on Penn Treebank, WikiText-2 and Python's standard library. Sizes
that the paper does not give are ours, at either scale.
Paper: docs/paper.md has all published numbers.
Measured: small, docs/paper.md.
Cost: 6 to 80 minutes of two shared x86-64 cores for a small item; jax 0.10.2,
29 November 2026. The others: the compiler's estimates in
docs/measurements/tpu.md.
Data: python -m data_prep.main --dataset=ptb --data_dir=data
Run: python -m transformer_xl.main --mode=paper --workdir=/tmp/paper \
  --config=experiments/paper.py:table6:small
"""

import types
from collections.abc import Callable
from typing import Any

import ml_collections
from flax import traverse_util

from transformer_xl import errors
from transformer_xl.analysis import vanilla
from transformer_xl.analysis.paper import published
from transformer_xl.config import load
from transformer_xl.experiments import ablation_ptb
from transformer_xl.experiments import enwik8_alrfou
from transformer_xl.experiments import enwik8_base
from transformer_xl.experiments import enwik8_large
from transformer_xl.experiments import enwik8_medium
from transformer_xl.experiments import lm1b_base
from transformer_xl.experiments import lm1b_large
from transformer_xl.experiments import ptb_published
from transformer_xl.experiments import text8_large
from transformer_xl.experiments import wt103_base
from transformer_xl.experiments import wt103_large

Changes = dict[str, Any]
_SMALL = "small"
_ATTENTION_ROWS = tuple(
  row.variant
  for row in published.ITEMS["table6"].rows
  if row.variant != "larger"
)
_NO_MEMORY: Changes = {
  "train.mem_len": 0,
  "train.clamp_len": 0,
  "train.same_length": False,
  "eval.mem_len": (0,),
  "eval.clamp_len": 0,
  "eval.same_length": False,
}


def _recurrent(layer: str, **changes: Any) -> Changes:
  """A model of recurrent layers, which hands on one state."""
  return {
    **_NO_MEMORY,
    "model.layers": (layer,),
    "train.mem_len": 1,
    "eval.mem_len": (1,),
    **changes,
  }


def _without_memory(config: ml_collections.ConfigDict) -> Changes:
  """The vanilla model: as many parameters, read in segments of training."""
  model = load.from_config_dict(config).model
  changes = {f"model.{k}": v for k, v in vanilla.changes(model).items()}
  return {**changes, **_NO_MEMORY, "eval.segment_len": config.train.segment_len}


def _difference(
  config: ml_collections.ConfigDict, other: ml_collections.ConfigDict
) -> Changes:
  """The values that turn an experiment into another one on the same text."""
  changes: Changes = {}
  for group in ("model", "train", "eval"):
    before = traverse_util.flatten_dict(config[group].to_dict(), sep=".")
    after = traverse_util.flatten_dict(other[group].to_dict(), sep=".")
    for name, value in after.items():
      path = f"{group}.{name}"
      if value != before[name] and path != "model.vocab_size":  # Of the data.
        changes[path] = value
  return changes


def _set_variants(
  config: ml_collections.ConfigDict, changes: dict[str, Changes]
) -> None:
  config.analysis.variants = tuple(
    f"{name}: " + "; ".join(f"{path}={value}" for path, value in each.items())
    for name, each in changes.items()
  )


# Small scale: three layers of 128 read segments of 32.


def _small_words() -> ml_collections.ConfigDict:
  config = ablation_ptb.get_config()
  config.model.dtype = "auto"
  config.train.eval_every_steps = 0
  config.checkpoint.every_steps = 800
  config.analysis.seeds = (0, 1)
  config.analysis.rows = ()
  return config


_SMALL_LARGER: Changes = {
  "model.num_layers": 4,
  "model.model_dim": 192,
  "model.num_heads": 6,
  "model.ff_dim": 768,
}
# Their default width, model_dim, gives them about as many parameters.
_SMALL_LSTM = _recurrent("lstm")
_SMALL_QRNN = _recurrent("qrnn")


def _small_characters(name: str, vocab_size: int) -> ml_collections.ConfigDict:
  """Bytes or letters: two layers, a fifth of the paper's twelve, of 128."""
  config = _small_words()
  config.data.name = name
  config.model.update(
    {
      "vocab_size": vocab_size,
      "num_layers": 2,
      "cutoffs": (),
      "cluster_capacities": (),
      "div_val": 1,
      "num_positions": 64,
    }
  )
  config.train.update({"segment_len": 64, "mem_len": 64, "num_steps": 2400})
  config.eval.update({"segment_len": 64, "mem_len": (64, 256)})
  return config


_AUXILIARY: Changes = {
  "model.auxiliary.layers": "own",
  "model.auxiliary.num_targets": 2,
}
_ALRFOU: Changes = {
  **_NO_MEMORY,
  **_AUXILIARY,
  "model.encoding": "absolute_per_layer",
}
_SMALL_DEEP: Changes = {"model.num_layers": 13}
_SMALL_24: Changes = {
  "model.num_layers": 5,
  "model.model_dim": 256,
  "model.num_heads": 8,
  "model.ff_dim": 1024,
  "train.learning_rate": 2e-3,
}


def _small_table1() -> ml_collections.ConfigDict:
  config = _small_words()
  config.data.name = "wikitext2"
  config.model.update(
    {
      "vocab_size": 33_278,
      "cutoffs": (1_000, 8_000),
      "cluster_capacities": (0.35, 0.25),
    }
  )
  config.train.num_steps = 2400
  config.eval.mem_len = (32, 128)
  larger = _small_words()
  larger.model.update(
    {name.removeprefix("model."): x for name, x in _SMALL_LARGER.items()}
  )
  _set_variants(
    config,
    {
      "lstm": _SMALL_LSTM,
      "qrnn": _SMALL_QRNN,
      "standard": {},
      "vanilla": _SMALL_LARGER | _without_memory(larger),
      "large": _SMALL_LARGER,
    },
  )
  return config


def _small_table2() -> ml_collections.ConfigDict:
  config = _small_characters("python_stdlib", 256)
  _set_variants(
    config,
    {
      "alrfou_12": _ALRFOU,
      "alrfou_64": _ALRFOU | _SMALL_DEEP,
      "layers_12": {},
      "layers_18": {"model.num_layers": 4},
      "layers_24": _SMALL_24,
    },
  )
  return config


def _small_table3() -> ml_collections.ConfigDict:
  config = _small_characters("ptb_letters", 27)
  _set_variants(
    config,
    {
      "alrfou_12": _ALRFOU,
      "alrfou_64": _ALRFOU | _SMALL_DEEP,
      "layers_24": _SMALL_24,
    },
  )
  return config


def _small_table4() -> ml_collections.ConfigDict:
  config = _small_words()
  config.data.name = "ptb_shuffled"
  _set_variants(
    config,
    {"lstm": _SMALL_LSTM, "transformer_xl": {}, "large": _SMALL_LARGER},
  )
  return config


def _small_table5() -> ml_collections.ConfigDict:
  config = _small_words()
  config.model.update({"dropout_rate": 0.15})
  config.train.update({"num_steps": 8000, "warmup_steps": 200})
  config.eval.mem_len = (32, 128)
  lstm = {**_SMALL_LSTM, "eval.mem_len": (1,)}
  _set_variants(config, {"long_lstm": lstm, "long_transformer_xl": {}})
  return config


def _small_table6() -> ml_collections.ConfigDict:
  config = _small_words()
  config.analysis.rows = _ATTENTION_ROWS
  config.analysis.attention_lens = (16, 32, 64, 96, 128)
  _set_variants(config, {"larger": _SMALL_LARGER})
  return config


def _small_table7() -> ml_collections.ConfigDict:
  config = _small_words()
  config.data.name = "ptb_shuffled"
  _set_variants(
    config,
    {
      "transformer_xl": {},
      "shaw": {"model.encoding": "shaw"},
      "no_recurrence": _NO_MEMORY,
    },
  )
  return config


def _small_table8() -> ml_collections.ConfigDict:
  config = _small_words()
  config.analysis.rows = _in_table8()
  config.analysis.contexts = (8, 128, 8)
  config.analysis.num_tokens = 2000
  _set_variants(
    config,
    {"larger": _SMALL_LARGER, "qrnn": _SMALL_QRNN, "lstm": _SMALL_LSTM},
  )
  return config


def _small_table9() -> ml_collections.ConfigDict:
  config = _small_words()
  config.model.update(
    {"num_layers": 6, "model_dim": 256, "num_heads": 8, "ff_dim": 1024}
  )
  config.model.dtype = "float32"
  config.eval.segment_len = 128
  return config


def _small_table10() -> ml_collections.ConfigDict:
  config = _small_table6()
  config.analysis.rows = _in_table10()
  config.analysis.equal_memory = True
  config.analysis.variants = ()
  return config


def _small_figure() -> ml_collections.ConfigDict:
  config = _small_words()
  config.analysis.rows = ("recurrent-relative-all",)
  config.analysis.num_tokens = 4000
  config.eval.mem_len = (128,)
  return config


def _small_appendix_e() -> ml_collections.ConfigDict:
  config = _small_figure()
  config.generate.update(
    {
      "prompt_split": "test",
      "prompt_len": 128,
      "num_tokens": 100,
      "top_k": 40,
      "mem_len": 128,
    }
  )
  return config


# The scale of the paper.


def _full(experiment: types.ModuleType) -> ml_collections.ConfigDict:
  """An experiment, in which nothing is compared yet."""
  config = experiment.get_config()
  config.analysis.rows = ()
  return config


def _table1() -> ml_collections.ConfigDict:
  config = _full(wt103_base)
  large = wt103_large.get_config()
  to_large = _difference(config, large)
  _set_variants(
    config,
    {
      "lstm": _recurrent("lstm"),
      "qrnn": _recurrent("qrnn"),
      "standard": {},
      "vanilla": to_large | _without_memory(large),
      "large": to_large,
    },
  )
  return config


def _table2() -> ml_collections.ConfigDict:
  config = _full(enwik8_base)
  _set_variants(
    config,
    {
      "alrfou_12": _difference(config, enwik8_alrfou.get_config("12")),
      "alrfou_64": _difference(config, enwik8_alrfou.get_config()),
      "layers_12": {},
      "layers_18": _difference(config, enwik8_medium.get_config()),
      "layers_24": _difference(config, enwik8_large.get_config()),
    },
  )
  return config


def _table3() -> ml_collections.ConfigDict:
  config = _table2()
  config.data.name = "text8"
  config.model.vocab_size = 27
  _set_variants(
    config,
    {
      "alrfou_12": _difference(config, enwik8_alrfou.get_config("12")),
      "alrfou_64": _difference(config, enwik8_alrfou.get_config()),
      "layers_24": _difference(config, text8_large.get_config()),
    },
  )
  return config


def _table4() -> ml_collections.ConfigDict:
  config = _full(lm1b_base)
  # The sizes that the paper's number belongs to.
  config.model.update({"num_layers": 20, "ff_dim": 6144})
  _set_variants(
    config,
    {
      "lstm": _recurrent("lstm"),
      "transformer_xl": {},
      "large": _difference(config, lm1b_large.get_config()),
    },
  )
  return config


def _table5() -> ml_collections.ConfigDict:
  config = _full(ptb_published)
  _set_variants(config, {"long_transformer_xl": {}})
  return config


def _table6() -> ml_collections.ConfigDict:
  """128M parameters, by ten layers in the place of sixteen."""
  config = _full(wt103_base)
  config.model.update({"num_layers": 10, "ff_dim": 1200, "num_positions": 640})
  config.train.update({"segment_len": 128, "mem_len": 128})
  config.analysis.rows = _ATTENTION_ROWS
  config.analysis.attention_lens = (
    *(80, 120, 180, 256, 260, 320, 400, 460, 500, 560, 640),
  )
  _set_variants(
    config, {"larger": {"model.num_layers": 16, "model.ff_dim": 2100}}
  )
  return config


def _table7() -> ml_collections.ConfigDict:
  """20 layers, and about 0.3B parameters."""
  config = _full(lm1b_base)
  config.model.update({"num_layers": 20, "ff_dim": 2048})
  _set_variants(
    config,
    {
      "transformer_xl": {},
      "shaw": {"model.encoding": "shaw"},
      "no_recurrence": _NO_MEMORY,
    },
  )
  return config


def _table8() -> ml_collections.ConfigDict:
  config = _table6()
  config.analysis.rows = _in_table8()
  config.analysis.contexts = (100, 1000, 100)
  _set_variants(
    config,
    {
      "larger": {"model.num_layers": 16, "model.ff_dim": 2100},
      "qrnn": _recurrent("qrnn"),
      "lstm": _recurrent("lstm"),
    },
  )
  return config


def _table9() -> ml_collections.ConfigDict:
  return _full(enwik8_base)


def _table10() -> ml_collections.ConfigDict:
  config = _table6()
  config.analysis.rows = _in_table10()
  config.analysis.equal_memory = True
  config.analysis.variants = ()
  return config


def _figure() -> ml_collections.ConfigDict:
  config = _full(wt103_base)
  config.analysis.num_tokens = 20_000
  _set_variants(config, {"standard": {}})
  return config


def _appendix_e() -> ml_collections.ConfigDict:
  config = _full(wt103_large)
  config.generate.update(
    {
      "prompt_split": "test",
      "prompt_len": 512,
      "num_tokens": 512,
      "top_k": 40,
      "mem_len": 1600,
    }
  )
  _set_variants(config, {"large": {}})
  return config


def _in_table8() -> tuple[str, ...]:
  """The rows of the ablation whose effective context is measured."""
  measured = {row.variant for row in published.ITEMS["table8"].rows}
  return tuple(row for row in _ATTENTION_ROWS if row in measured)


def _in_table10() -> tuple[str, ...]:
  return tuple(row.variant for row in published.ITEMS["table10"].rows)


_FULL: dict[str, Callable[[], ml_collections.ConfigDict]] = {
  "table1": _table1,
  "table2": _table2,
  "table3": _table3,
  "table4": _table4,
  "table5": _table5,
  "table6": _table6,
  "table7": _table7,
  "table8": _table8,
  "table9": _table9,
  "table10": _table10,
  "figure5": _figure,
  "figure6": _figure,
  "figure7": _figure,
  "appendix_e": _appendix_e,
}
_SMALLER: dict[str, Callable[[], ml_collections.ConfigDict]] = {
  "table1": _small_table1,
  "table2": _small_table2,
  "table3": _small_table3,
  "table4": _small_table4,
  "table5": _small_table5,
  "table6": _small_table6,
  "table7": _small_table7,
  "table8": _small_table8,
  "table9": _small_table9,
  "table10": _small_table10,
  "figure5": _small_figure,
  "figure6": _small_figure,
  "figure7": _small_figure,
  "appendix_e": _small_appendix_e,
}


def get_config(item: str = "") -> ml_collections.ConfigDict:
  """Settings of an item of the paper, as `table6` or `table6:small`."""
  name, colon, scale = item.partition(":")
  if not name:
    raise errors.UserError(
      "name an item of the paper, as in --config=paper:table6:small; there are "
      f"{', '.join(published.ITEMS)} and {', '.join(published.SAME)}."
    )
  if colon and scale != _SMALL:
    raise errors.UserError(
      f"paper:{item} ends in {scale!r}, but only 'small' may follow the name: "
      f"--config=paper:{name}:{_SMALL}"
    )
  name, _ = published.find(name)
  config = (_SMALLER if scale else _FULL)[name]()
  config.analysis.paper = name
  config.analysis.split = "test"
  return config
