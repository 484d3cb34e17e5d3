"""The validation loss during training."""

import math
from collections.abc import Callable
from typing import Any

import jax

from transformer_xl.config import schema
from transformer_xl.evaluation import evaluate
from transformer_xl.evaluation import memory_share
from transformer_xl.evaluation import units
from transformer_xl.training import divergence
from transformer_xl.workdir import run_state


class Validation:
  """Scores the validation split; compiles once."""

  def __init__(self, config: schema.ExperimentConfig, mesh: jax.sharding.Mesh):
    self._config = config
    self._mem_len = config.train.eval_mem_len
    self._evaluator = evaluate.Evaluator(
      config, mesh, split="valid", mem_len=self._mem_len
    )
    self._memory_use: Callable[..., dict[str, float]] = lambda params: {}
    if config.train.log_memory_use:
      self._memory_use = memory_share.Report(config, mesh)

  def record(
    self, state: run_state.TrainState, *, should_stop: Callable[[], bool]
  ) -> dict[str, Any] | None:
    """The line of `metrics.jsonl`; None if `should_stop` holds before its end.

    Raises:
      Diverged: the loss is not finite.
    """
    is_raw = self._config.eval.parameters == "raw"
    params = state.params if is_raw else state.average
    score = self._evaluator.score_until(params, should_stop=should_stop)
    if score is None:
      return None
    step, nll = int(state.step), score.nll / score.num_tokens
    if not math.isfinite(nll):
      raise divergence.Diverged("the validation loss is not finite", step)
    return {
      "step": step,
      "split": "valid",
      "nll": nll,
      "perplexity": units.perplexity(nll),
      "num_tokens": score.num_tokens,
      "mem_len": self._mem_len,
      **self._memory_use(params),
    }
