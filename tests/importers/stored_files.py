"""Paths and contents of the stored checkpoints, and other people's files."""

import json
import pathlib
import shutil

import safetensors.numpy

FOLDER = pathlib.Path(__file__).parent / "stored"
TENSORFLOW = ("enwik8", "text8", "wt103", "lm1b")
ORIGINAL = FOLDER / "original"
STEP = 7  # Step and seed of the TensorFlow checkpoints.
SEED = 11  # Seed of the PyTorch weights.


def tensorflow(name: str) -> pathlib.Path:
  """The folder of one TensorFlow checkpoint."""
  return FOLDER / f"tf_{name}"


def as_published(name: str, folder: pathlib.Path) -> pathlib.Path:
  """A copy in the published layout, with `model` and `data`."""
  for path in tensorflow(name).iterdir():
    part = "data" if path.name in ("cache.pkl", "corpus-info.json") else "model"
    (folder / part).mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / part)
  return folder


def write_words(folder: pathlib.Path, count: int) -> str:
  """Writes a vocabulary, one word per line; returns its path."""
  path = folder / "vocab.txt"
  words = ["<eos>", *(f"w{number}" for number in range(count - 1))]
  path.write_text("".join(f"{word}\n" for word in words))
  return str(path)


def spread(path: pathlib.Path) -> pathlib.Path:
  """Spreads model.safetensors over two files, as transformers does with large
  ones; returns the path of their index.
  """
  tensors = safetensors.numpy.load_file(path)
  path.unlink()
  names = sorted(tensors)
  shards = {
    "a.safetensors": names[: len(names) // 3],
    "b.safetensors": names[len(names) // 3 :],
  }
  places = {}
  for file, held in shards.items():
    part = {name: tensors[name] for name in held}
    safetensors.numpy.save_file(part, path.with_name(file))
    places |= dict.fromkeys(held, file)
  index = path.with_name(f"{path.name}.index.json")
  listed = {"metadata": {"total_size": 1}, "weight_map": places}
  index.write_text(json.dumps(listed))
  return index
