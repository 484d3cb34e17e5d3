"""Which tests cover a module, the cheapest first.

A name is the beginning of a test's identifier. They are not all tests of a
module, but so many that a mistake in it should make one fail.
"""

import pathlib
from collections.abc import Iterable

from transformer_xl.config import registry

_ORACLE = "tests/conformance/test_oracle.py::test_"
_SEGMENTS = _ORACLE + "segments_of_the_network_equal_the_oracle"
_READER = _ORACLE + "steps_of_the_reader_equal_the_oracle"
_CONFORMS = "tests/conformance/test_implementations.py::test_conforms"
_FLOPS = "tests/training/test_log_window.py::test_"
_COUNTS = (
  "tests/model/test_flops.py::test_a_mixer_counts_the_keys_that_its_masks_show"
)
_STEP = "tests/training/test_step.py::test_"
_WEIGHTS = (
  "tests/evaluation/test_attention_use.py::test_weights_are_those_of_the_oracle"
)
_RATES = (
  "tests/training/test_published_training.py::"
  "test_both_rates_end_where_the_cosine_of_the_others_ends"
)
_EVALUATOR = "tests/evaluation/test_evaluator.py"
_TESTS = pathlib.Path(__file__).parents[1]
# The mixer of most other tests. A configuration would import what is mutated.
USUAL = "attention"


def _cases(test: str, names: Iterable[str]) -> list[str]:
  """A test with the cases that the files of mixers or encodings have."""
  return [
    f"{test}[{name}-"
    for name in names
    if (_TESTS / f"oracles/{name}.py").is_file()
  ]


def _of_mixer(name: str) -> tuple[str, ...]:
  """The tests that a mixer has by its name, without a list of them."""
  own = f"model/test_{name}.py"
  return (
    *_cases(_SEGMENTS, [name]),
    _ORACLE + "a_mixer_says",
    *([f"tests/{own}"] if (_TESTS / own).is_file() else []),
    *_cases(_READER, [name]),
    _COUNTS + f"[{name}-",
    _CONFORMS + f"[{name}",
    f"{_WEIGHTS}[{name}]",
  )


def _users_of(module: str) -> list[str]:
  """The mixers whose files import another module of their folder."""
  folder = _TESTS.parent / "transformer_xl/model/mixers"
  line = f"from transformer_xl.model.mixers import {module}\n"
  return [
    name
    for name in registry.mixers
    if line in (folder / f"{name}.py").read_text("utf-8")
  ]


TESTS = {
  "conformance/equations/attention": (
    "tests/conformance/test_equations.py",
    "tests/check/test_numbers.py::test_another_hash_of_dropout_is_found",
  ),
  "conformance/equations/softmax": ("tests/conformance/test_equations.py",),
  "data/segment": (
    "tests/data/test_streams.py",
    "tests/data/test_segment_lengths.py",
  ),
  "data/segment_lengths": ("tests/data/test_segment_lengths.py",),
  "data/streams": (
    "tests/data/test_streams.py",
    "tests/data/test_segment_lengths.py",
  ),
  "evaluation/protocol": (
    _EVALUATOR,
    "tests/evaluation/test_evaluate.py::test_context_is_read",
    "tests/evaluation/test_evaluate.py::test_the_temperature",
  ),
  "evaluation/evaluator": (
    _EVALUATOR,
    "tests/evaluation/test_evaluate.py::test_context_is_read",
    "tests/evaluation/test_evaluate.py::test_the_temperature",
    "tests/evaluation/test_evaluate.py::test_the_batch_does_not_matter",
    "tests/analysis/test_recall.py::test_guesses_are_those",
  ),
  "model/nats": (
    _EVALUATOR + "::test_segments_past_the_end",
    "tests/training/test_log_window.py::test_units",
  ),
  "model/adaptive_softmax": (
    "tests/model/test_adaptive_softmax.py",
    "tests/model/test_initialisation.py::test_parameter_count",
    "tests/evaluation/test_evaluate.py::test_the_temperature",
    "tests/model/test_adaptive_softmax.py::"
    "test_clusters_of_full_width_can_be_a_full_softmax",
  ),
  "model/kernels/xla_attention": (
    "tests/model/kernels/test_xla_attention.py",
    "tests/model/kernels/test_forms.py",
  ),
  "model/encodings/distances": (
    "tests/model/test_rope.py",
    "tests/model/kernels/test_xla_attention.py::test_",
    *_cases(_SEGMENTS, registry.encodings),
  ),
  "model/kernels/xla_ring": (
    _READER + "[3-7-0-None-relative]",
    _READER + "[1-1-0",
    _READER + "[4-0-0-mem_len_plus_one",
    *_cases(_READER, registry.encodings),
    _READER + "[2-1-0-None-relative-memory_start",
    "tests/model/kernels/test_fused_ring.py::test_the_kernel_attends",
    "tests/model/kernels/test_xla_ring.py",
  ),
  "model/memory_tokens": (
    "tests/model/test_memory_tokens.py",
    _SEGMENTS + "[3-7-4-None-relative-num_memory_tokens",
  ),
  "model/lanes": (
    "tests/model/test_lanes.py",
    "tests/model/test_memory_tokens.py::test_lanes",
    _STEP + "accumulation",
    _STEP + "empty_lanes",
    "tests/training/test_accumulated_dropout.py::"
    "test_a_lane_drops_the_same_in_every_part_of_an_update[relative",
  ),
  "model/mixers/attention": (
    _SEGMENTS + "[3-7-0-None-relative]",
    *_cases(_SEGMENTS, registry.encodings),
    _READER + "[5-2-0-None-relative]",
    _CONFORMS + "[plain-no_gradient",
    "tests/training/test_gradient_segments.py::test_memory_carries",
    "tests/model/test_network.py::test_memory_that_is_constant",
    "tests/model/test_dropout.py::test_dropout_is_in_each",
    _FLOPS + "the_work",
    _WEIGHTS + "[relative]",
  ),
  **{
    f"model/mixers/{name}": _of_mixer(name)
    for name in registry.mixers
    if name != USUAL
  },
  "model/mixers/mixer": (
    _SEGMENTS + "[3-7-4",
    _ORACLE + "a_mixer_says",
    _COUNTS,
    "tests/config/test_rules.py::test_fields_that_contradict",
    *_cases(_READER, registry.mixers),
  ),
  "model/mixers/recurrent": tuple(
    test for name in _users_of("recurrent") for test in _of_mixer(name)
  ),
  "model/network": (
    _SEGMENTS + "[3-7-0-None-relative]",
    _SEGMENTS + "[3-7-4",
    _SEGMENTS + "[3-7-2-None-relative-norm",
    _SEGMENTS + "[absolute-4-0-0-None",
    "tests/model/test_network.py",
    "tests/model/test_initialisation.py",
    "tests/model/test_dropout.py::test_dropout_is_in_each",
    "tests/model/test_dropout.py::test_embedding_dropout",
    "tests/model/test_dropout.py::test_dropout_rates_are",
    "tests/model/test_compressive.py::test_all_places",
    _FLOPS + "the_work",
    "tests/model/test_flops.py::test_a_model_counts_its_shortlist",
    _STEP + "penalties",
    _STEP + "no_gradient",
  ),
  "model/ring": (
    _READER + "[3-7-0-None-relative]",
    _READER + "[4-0-0-mem_len_plus_one",
    *_cases(_READER, registry.encodings),
    _READER + "[4-6-0",
    _READER + "[2-1-0-None-relative-memory_start",
    "tests/model/test_ring.py",
  ),
  "model/scores": (
    "tests/model/kernels/test_forms.py::test_values_and_gradients",
    "tests/model/kernels/test_dispatch.py",
  ),
  "model/visibility": (
    _SEGMENTS + "[3-7-0-None-relative]",
    _SEGMENTS + "[relative-3-7-9-mem_len_plus_one",
    _SEGMENTS + "[1-1-0",
    _SEGMENTS + "[4-0-0-mem_len_plus_one",
  ),
  "training/averaging": ("tests/training/test_averaging.py",),
  "training/optimizer": (
    "tests/training/test_optimizer.py",
    "tests/training/test_rate_factors.py::test_each",
    "tests/training/test_rate_factors.py::test_what_is_frozen_stays",
    _RATES,
  ),
  "training/rate_factors": (
    "tests/training/test_rate_factors.py",
    "tests/training/test_rate_factors.py::"
    "test_a_run_goes_on_with_the_same_parameters_frozen",
    "tests/training/test_optimizer.py::test_weight_decay",
  ),
  "training/loss": (
    _STEP + "sgd_follows",
    _STEP + "penalties",
    _STEP + "a_loss_of_mixers",
    _STEP + "accumulation",
    _STEP + "dropout_is",
    "tests/training/test_gradient_segments.py::test_the_gradient_is",
    "tests/training/test_gradient_segments.py::test_memory_carries",
  ),
  "training/step": (
    _STEP + "sgd_follows",
    _STEP + "the_recent_half_of_a_segment_is_learned",
    _STEP + "penalties",
    _STEP + "a_loss_of_mixers",
    _STEP + "norms_are_those",
    _STEP + "accumulation",
    _STEP + "empty_lanes",
    _STEP + "dropout_is",
    _STEP + "no_gradient",
    _STEP + "a_segment_without",
    "tests/training/test_averaging.py::test_the_moving",
    "tests/training/test_averaging.py::"
    "test_the_mean_of_the_parameters_begins_after_its_first_step",
    _RATES,
    "tests/training/test_published_training.py::test_the_rate_falls",
    "tests/training/test_published_training.py::"
    "test_a_padded_update_is_that_of_the_drawn_length",
    "tests/training/test_published_training.py::"
    "test_the_rate_is_in_proportion_to_the_lengths_of_all_segments",
    "tests/training/test_gradient_segments.py::test_the_gradient_is",
    "tests/training/test_gradient_segments.py::test_memory_carries",
    "tests/training/test_gradient_segment_runs.py::"
    "test_updates_of_several_segments_read_the_text_in_order",
    "tests/training/test_gradient_segments.py::"
    "test_a_chunk_is_a_loop_of_updates",
  ),
}
