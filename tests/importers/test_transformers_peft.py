"""PEFT loads exported adapters beside the model that they were trained on."""

import numpy as np
import pytest

import transformer_xl
from tests.importers import adapted_runs
from tests.importers import in_pytorch
from tests.importers import test_peft
from tests.importers import test_transformers_decoders as decoders

peft = pytest.importorskip(
  "peft", reason="needs peft: make transformers-check", exc_type=ImportError
)
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_peft_loads_adapters_beside_the_base(name, tmp_path):
  base = decoders.written(name, "small", tmp_path / "source")
  targets = ("query", "key", "value", "output", "in_kernel", "out_kernel")
  workdir = adapted_runs.write(tmp_path / "source", tmp_path, targets)
  test_peft.export(workdir, tmp_path / "adapters", "peft")
  test_peft.export(workdir, tmp_path / "merged", "transformers")
  tokens = np.random.default_rng(2).integers(0, 257, (2, decoders.LENGTH))
  before = decoders.theirs(base, tokens)
  model = peft.PeftModel.from_pretrained(base, tmp_path / "adapters").eval()
  found = decoders.theirs(model, tokens)
  assert np.abs(found - before).max() > 0.1
  mine = decoders.ours(transformer_xl.load(workdir), tokens)
  np.testing.assert_allclose(found, mine, atol=decoders.LIMIT, rtol=0)
  merged = in_pytorch.transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "merged"
  )
  np.testing.assert_allclose(
    decoders.theirs(merged.eval(), tokens), mine, atol=decoders.LIMIT, rtol=0
  )
