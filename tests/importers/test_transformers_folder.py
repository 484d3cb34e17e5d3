"""The folder of an export is all that transformers and its users need."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import transformer_xl
from tests.importers import in_pytorch

torch = in_pytorch.torch
transformers = in_pytorch.transformers


@pytest.mark.parametrize("name", in_pytorch.MODELS)
def test_the_tokenizer_is_ours(exported, name, monkeypatch):
  monkeypatch.setattr(sys, "stdin", None)  # Nothing is asked.
  folder = exported(name)
  ours = transformer_xl.load(folder).vocabulary
  tokenizer = in_pytorch.tokenizer_of(folder)
  text = in_pytorch.text_for(transformer_xl.load(folder), 2)
  ids = tokenizer(text)["input_ids"]
  assert ids == ours.encode(text).tolist()
  assert tokenizer.decode(ids) == ours.decode(ids)
  assert len(tokenizer) == ours.size


# Of each kind of vocabulary one; the symbols of characters and of these bytes
# are by decreasing count.
@pytest.mark.parametrize(
  ("name", "end", "padding"),
  [
    ("defaults", "u", "u"),
    ("nothing tied", "u", "u"),
    ("pre-norm, clamp, zeros", "<eos>", "<unk>"),
    ("block of today", "\u0100", "\u0100"),  # How this kind writes NUL.
  ],
)
def test_ends_and_padding_are_symbols_like_others(
  exported, tmp_path, name, end, padding
):
  ours = transformer_xl.load(exported(name)).vocabulary
  saved = in_pytorch.tokenizer_of(exported(name))
  saved.save_pretrained(tmp_path)
  text = f"a{end} {end} {padding}{end} {end}"
  for tokenizer in (saved, in_pytorch.tokenizer_of(tmp_path)):
    found = tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token
    assert found == (end, end, padding)
    assert len(tokenizer) == ours.size
    ids = tokenizer(text)["input_ids"]
    assert ids == ours.encode(text).tolist()
    assert tokenizer.decode(ids) == ours.decode(ids)


@pytest.mark.parametrize(
  "name", ["defaults", "block of today", "pre-norm with a final layer norm"]
)
def test_a_pipeline_takes_a_batch(exported, name):
  model = in_pytorch.loaded(exported(name), **in_pytorch.LONG)
  model.config.transformer_xl["model"]["memory_start"] = "masked"
  tokenizer = in_pytorch.tokenizer_of(exported(name))
  generate = transformers.pipeline(
    "text-generation", model=model, tokenizer=tokenizer
  )
  texts = ["a mat", "on a mat on a mat a mat"]
  options = {"max_new_tokens": 6, "do_sample": False}
  together = generate(texts, batch_size=2, **options)
  assert together == [generate(text, **options) for text in texts]


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_weights_that_pytorch_spreads_over_files_come_back(
  exported, tmp_path, kind
):
  folder = tmp_path / "spread"
  shutil.copytree(exported(in_pytorch.ROTATING), folder)
  (folder / "model.safetensors").unlink()
  model = in_pytorch.loaded(exported(in_pytorch.ROTATING))
  if kind == "safetensors":
    model.save_pretrained(folder, max_shard_size="2KB")
  else:  # As transformers did up to version 4.
    places = {}
    for number, (name, values) in enumerate(model.state_dict().items()):
      file = f"pytorch_model-{number % 2}.bin"
      places.setdefault(file, {})[name] = values
    for file, tensors in places.items():
      torch.save(tensors, folder / file)
    index = {name: file for file, part in places.items() for name in part}
    path = folder / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": index}))
  assert len(list(folder.glob(f"*-*.{kind}"))) > 1
  ours = transformer_xl.load(folder)
  text = in_pytorch.text_for(ours, 12)
  expected = transformer_xl.load(exported(in_pytorch.ROTATING)).score([text])
  assert ours.score([text])[0].nll == expected[0].nll


def test_a_model_of_the_hub_is_loaded_by_its_name(exported, tmp_path):
  folder = exported("defaults")
  shutil.copytree(folder, tmp_path / "hub/me/tiny/main")
  done = subprocess.run(
    [
      *(sys.executable, "-m", "tests.importers.hub"),
      *(str(tmp_path / "hub"), str(tmp_path / "cache")),
    ],
    input=json.dumps(["transformers me/tiny"]),
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  (result,) = json.loads(done.stdout)
  ids = in_pytorch.tokenizer_of(folder)("abc", return_tensors="pt")
  expected = in_pytorch.loaded(folder).generate(
    **ids, max_new_tokens=5, do_sample=False
  )
  assert result["tokens"] == expected[0].tolist()


def test_the_folder_needs_nothing_of_this_package(exported):
  code = pathlib.Path(exported("defaults"), "modeling_transformer_xl.py")
  names = {
    line.split()[1].partition(".")[0]
    for line in code.read_text("utf-8").splitlines()
    if line.startswith(("import ", "from "))
  }
  assert names == {
    *("dataclasses", "itertools", "math", "typing", "torch", "transformers")
  }
