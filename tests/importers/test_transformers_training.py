"""An export is trained in PyTorch as it would be here, and comes back."""

import shutil

import pytest

import transformer_xl
from tests.importers import in_pytorch

torch = in_pytorch.torch
transformers = in_pytorch.transformers


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_training_reads_the_same_memory(exported, name):
  """There it holds what layers take in, so that W_k and W_v learn from it."""
  model = in_pytorch.loaded(exported(name))
  ids = torch.arange(40)[None] % 8
  with torch.no_grad():
    expected = model(ids, labels=ids)
  for module in model.modules():
    if isinstance(module, torch.nn.Dropout):
      module.p = 0.0
  model.train()
  found = model(ids, labels=ids)
  torch.testing.assert_close(
    found.logits, expected.logits, atol=in_pytorch.TOLERANCE, rtol=0
  )
  picked = expected.logits[0, :-1].gather(-1, ids[0, 1:, None])
  torch.testing.assert_close(found.loss, -picked.mean(), atol=1e-5, rtol=0)
  found.loss.backward()
  assert all(p.grad is not None for p in model.parameters())
  if expected.mems is not None:
    with pytest.raises(ValueError, match="read again after"):
      model(ids, mems=expected.mems)


def test_the_trainer_counts_every_token_once(exported, tmp_path):
  """An update over two batches has the loss of one batch of all texts."""
  texts = [{"input_ids": torch.arange(9) * n % 8} for n in (1, 3, 5, 7)]
  for text in texts:
    text["labels"] = text["input_ids"]
  logs = []
  for batch, parts in ((4, 1), (2, 2)):
    model = in_pytorch.loaded(exported("nothing tied"))
    for module in model.modules():
      if isinstance(module, torch.nn.Dropout):
        module.p = 0.0
    options = transformers.TrainingArguments(
      output_dir=str(tmp_path / str(batch)),
      per_device_train_batch_size=batch,
      gradient_accumulation_steps=parts,
      max_steps=1,
      logging_steps=1,
      report_to=[],
      use_cpu=True,
    )
    trainer = transformers.Trainer(
      model, options, train_dataset=texts, eval_dataset=texts
    )
    trainer.train()
    evaluated = trainer.evaluate()
    assert 0 < evaluated["eval_loss"] < 10
    logs.append(trainer.state.log_history[0])
  for name in ("loss", "grad_norm"):
    assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-4)


def test_one_token_has_no_loss(exported):
  model = in_pytorch.loaded(exported("nothing tied"))
  ids = torch.zeros((2, 1), dtype=torch.long)
  assert model(ids, labels=ids).loss.isnan()  # A mean over no token.


def test_what_is_tuned_in_pytorch_comes_back(exported, tmp_path):
  model = in_pytorch.loaded(exported(in_pytorch.ROTATING))
  with torch.no_grad():
    for values in model.parameters():
      values.mul_(0.9)
  folder = tmp_path / "tuned"
  model.save_pretrained(folder)
  shutil.copytree(
    exported(in_pytorch.ROTATING) / "vocabulary", folder / "vocabulary"
  )
  assert {"modeling_transformer_xl.py"} < {one.name for one in folder.iterdir()}
  ours = transformer_xl.load(folder)
  text = in_pytorch.text_for(ours, 12)
  assert (
    in_pytorch.difference(in_pytorch.loaded(folder), ours, text)
    < in_pytorch.TOLERANCE
  )
  old = transformer_xl.load(exported(in_pytorch.ROTATING))
  assert in_pytorch.difference(model, old, text) > 100 * in_pytorch.TOLERANCE
