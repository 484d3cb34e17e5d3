"""PEFT loads exported adapters beside the model that they were trained on."""

import numpy as np
import pytest

import transformer_xl
from tests.importers import adapted_runs
from tests.importers import beside_transformers
from tests.importers import in_pytorch
from tests.importers import test_peft

peft = pytest.importorskip(
  "peft", reason="needs peft: make transformers-check", exc_type=ImportError
)
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_peft_loads_adapters_beside_the_base(name, tmp_path):
  base = beside_transformers.written(name, "small", tmp_path / "source")
  targets = ("query", "key", "value", "output", "in_kernel", "out_kernel")
  workdir = adapted_runs.write(tmp_path / "source", tmp_path, targets)
  test_peft.export(workdir, tmp_path / "adapters", "peft")
  test_peft.export(workdir, tmp_path / "merged", "transformers")
  tokens = np.random.default_rng(2).integers(
    0, 257, (2, beside_transformers.LENGTH)
  )
  before = beside_transformers.theirs(base, tokens)
  model = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
  found = beside_transformers.theirs(model, tokens)
  assert np.abs(found - before).max() > 0.1
  mine = beside_transformers.ours(transformer_xl.load(workdir), tokens)
  np.testing.assert_allclose(
    found, mine, atol=beside_transformers.LIMIT, rtol=0
  )
  merged = in_pytorch.transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "merged"
  )
  np.testing.assert_allclose(
    beside_transformers.theirs(merged.eval(), tokens),
    mine,
    atol=beside_transformers.LIMIT,
    rtol=0,
  )
