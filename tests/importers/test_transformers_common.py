"""The tests that transformers has for all of its models, on what is exported.

They come with its source distribution, which `make transformers-check` fetches.
It leaves out those of `generate` and of exporters, which have stand-ins here.
REFUSED says which tests an export does not pass, and why. Others are skipped by
transformers, most for want of a device, a library or a feature.
"""

import contextlib
import copy
import importlib
import json
import pathlib
import sys
import types
import unittest
from unittest import mock

import pytest

from tests import kinds
from tests import tiny
from tests.importers import in_pytorch
from transformer_xl.config import load
from transformer_xl.importers import huggingface
from transformer_xl.importers import mapping

torch, transformers = in_pytorch.torch, in_pytorch.transformers
FOLDER = pathlib.Path(
  sys.prefix, "tests", f"transformers-{transformers.__version__}", "tests"
)
if not FOLDER.exists():
  pytest.skip(
    f"needs {FOLDER}: make transformers-check", allow_module_level=True
  )

from transformers.models.auto import modeling_auto  # noqa: E402

from transformer_xl.importers import modeling_transformer_xl  # noqa: E402

# Their warnings are not ours.
pytestmark = pytest.mark.filterwarnings("default")

# Tests that an export fails, and why.
_TABLES = "the embedding has a table for each cluster of words, of a fixed size"
REFUSED = {
  "test_causal_lm_loss_honors_shift_labels": (
    "shift_labels are for texts that are cut over devices, which a memory "
    "cannot be; a ValueError says to give labels"
  ),
  "test_model_base_model_prefix": "there is no model without the softmax",
  "test_model_get_set_embeddings": _TABLES,
  "test_resize_tokens_embeddings": _TABLES,
}
# Those that fail where a text has several segments.
REFUSED_OF_SEGMENTS = {
  "test_retain_grad_hidden_states_attentions": (
    "states of several segments are joined for the caller alone"
  ),
}
# Each option of the block in one of them; the first has a single segment.
ONE_SEGMENT = "Defaults"
MODELS = {
  ONE_SEGMENT: {"score.segment_len": 128},
  "Zeros": {
    "model.pre_norm": True,
    "model.untie_biases": True,
    "model.memory_start": "zeros",
    "eval.same_length": True,
    "eval.clamp_len": 3,
  },
  "NarrowClusters": {
    "model.cutoffs": (7, 15),
    "model.div_val": 2,
    "model.embed_dim": 8,
    "eval.same_length": True,
    "model.same_length_window": "mem_len",
  },
  "NothingTied": {
    "model.cutoffs": (3, 7),
    "model.tie_weights": False,
    "model.tie_projections": "none",
    "model.embed_dim": 6,
  },
  "BlockOfToday": in_pytorch.BLOCK_OF_TODAY,
  "Alibi": {
    "model.encoding": kinds.sloping(),
    "model.num_heads": 3,
    "model.feed_forward": "geglu",
  },
}
LENGTHS = {"score.segment_len": 5, "score.mem_len": 7}


def module(name, *, path=(), **contents):
  """Makes a module of their package, in place of one that did not come."""
  made = types.ModuleType(f"tests_of_transformers{name}")
  made.__path__ = [str(one) for one in path]
  vars(made).update(contents)
  sys.modules[made.__name__] = made


module("", path=[FOLDER])
module(".exporters")
module(".exporters.test_export", ExportTesterMixin=type("Export", (), {}))
module(".generation")
module(".generation.test_utils", GenerationTesterMixin=type("Gen", (), {}))
module(".utils")
module(
  ".utils.test_configuration_utils",
  config_common_kwargs={
    "return_dict": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "use_cache": False,
    "dtype": "float16",
  },
)
common = importlib.import_module("tests_of_transformers.test_modeling_common")
# It would look for transformers in the folder above the tests.
with mock.patch(
  "transformers.utils.direct_transformers_import", return_value=transformers
):
  configuration = importlib.import_module(
    "tests_of_transformers.test_configuration_common"
  )


class Exported:
  """What their tests ask of a model's own."""

  batch_size = 3
  seq_length = 12
  is_training = True

  def __init__(self, **options):
    config = load.from_config_dict(tiny.config_dict(**LENGTHS | options))
    lengths = mapping.lengths_of(config.score, config.eval)
    fields = huggingface.config_fields(config.model, lengths)
    fields[huggingface.OWN] = huggingface.own_fields(config)
    self.fields = json.loads(json.dumps(fields))  # As config.json has them.
    self.hidden_size = config.model.model_dim
    self.num_attention_heads = config.model.num_heads
    self.num_hidden_layers = config.model.num_layers
    starts_with_zeros = config.model.memory_start == "zeros"
    num_zeros = lengths.mem_len if starts_with_zeros else 0
    self.key_length = num_zeros + self.seq_length
    self.has_mask = True

  def get_config(self):
    return modeling_transformer_xl.TransformerXLConfig(
      **copy.deepcopy(self.fields)
    )

  def prepare_config_and_inputs_for_common(self):
    config = self.get_config()
    ids = torch.randint(config.vocab_size, (self.batch_size, self.seq_length))
    inputs = {"input_ids": ids}
    if self.has_mask:
      inputs["attention_mask"] = torch.ones_like(ids)
    return config, inputs


class Common(common.ModelTesterMixin, common.GenerationTesterMixin):
  """Their tests, on one export."""

  all_model_classes = (modeling_transformer_xl.TransformerXLForCausalLM,)
  options: dict[str, object]

  def setUp(self):
    self.model_tester = Exported(**self.options)
    # They find there that there are labels.
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    (model,) = self.all_model_classes
    patch = mock.patch.dict(names, {huggingface.MODEL_TYPE: model.__name__})
    patch.start()
    self.addCleanup(patch.stop)

  def subTest(self, *_, **__):  # noqa: N802
    """Nothing of its own, so that a part that fails is the test's failure."""
    return contextlib.nullcontext()

  def test_model_outputs_equivalence(self):
    # A memory then has a mask, and they subtract all that there is.
    self.model_tester.has_mask = False
    super().test_model_outputs_equivalence()

  def test_config(self):
    configuration.ConfigTester(
      self,
      modeling_transformer_xl.TransformerXLConfig,
      **self.model_tester.fields,
    ).run_common_tests(can_init_without_params=False)


def class_of(name):
  """A class of their tests, with those marked that are refused."""
  members = {"options": MODELS[name], "__module__": __name__}
  made = type(name, (Common, unittest.TestCase), members)
  refused = REFUSED if name == ONE_SEGMENT else REFUSED | REFUSED_OF_SEGMENTS
  for test, reason in refused.items():
    mark = pytest.mark.xfail(reason=reason, strict=True)
    setattr(made, test, mark(getattr(made, test)))
  return made


globals().update({name: class_of(name) for name in MODELS})
