"""Runs of mixers with large states: resuming, scoring what was evaluated."""

import jax
import numpy as np
import pytest

import transformer_xl
from tests import corpus
from tests import kinds
from tests.training import test_resume
from transformer_xl.data import token_file
from transformer_xl.evaluation import evaluate

# With one lane and equal windows, the text is read in the same way.
RUN = {
  "train.eval_every_steps": 6,
  "eval.split": "valid",
  "eval.batch_size": 1,
  "eval.warmup_len": 0,
  "eval.same_length": True,
}


@pytest.mark.rest
@pytest.mark.parametrize(
  "own",
  [
    {
      "model.layers": (
        kinds.mixer(has_gradient_to_memory=False),
        kinds.mixer(attends=False),
      )
    },
    {"model.layers": kinds.mixers(writes_segments=True)},
    {"model.num_memory_tokens": 2, "train.gradient_segments": 2},
  ],
  ids=["several", "writing", "memory tokens"],
)
def test_a_run_in_parts_is_the_run_in_one_and_scores_what_it_evaluated(
  own, data_dir, tmp_path
):
  fields = RUN | own
  resetting = fields | {"data.reset_at_documents": True}
  config = corpus.config(data_dir, **resetting)
  whole = test_resume.assert_same_in_parts(config, tmp_path, 6)
  memory = test_resume.newest(whole, config).memory
  remembered = memory.layers, memory.memory_tokens
  assert all(np.any(array) for array in jax.tree.leaves(remembered))

  (card,) = evaluate.run(corpus.config(data_dir, **fields), whole)
  lengths = {name: card[name] for name in ("mem_len", "segment_len")}
  model = transformer_xl.load(whole, **lengths)
  valid = token_file.open_split(config.data.dataset_dir, "valid").tokens
  (scored,) = model.score([model.vocabulary.decode(valid)], prefix="")
  assert scored.num_tokens == card["num_tokens"]
  # Float32 sums in another order.
  assert scored.nll / scored.num_tokens == pytest.approx(card["nll"], rel=1e-6)
