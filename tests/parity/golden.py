"""HuggingFace's results on characteristic models, for runs without PyTorch.

    python -m tests.parity.golden

writes them. They are a reference's numbers and not this package's: there is a
reason to write them again only where `configurations.py` draws other models.
"""

import pathlib

import numpy as np

from tests.parity import configurations
from tests.parity import ours

PATH = pathlib.Path(__file__).parent / "stored" / "huggingface.npz"


def summary(run: ours.Run) -> dict[str, np.ndarray]:
  """What is kept: the end of a run, which all before has a part in."""
  names = sorted(run.gradients)
  norms = [np.linalg.norm(run.gradients[name]) for name in names]
  return {
    "loss": np.array(run.loss),
    "log_probs": run.log_probs[-1],
    "memory": run.memories[-1][-1],  # The last layer's.
    "gradient_norms": np.array(norms),
  }


def read(index: int) -> dict[str, np.ndarray]:
  """The summary of HuggingFace's run of one drawn model."""
  with np.load(PATH) as file:
    return {
      name.partition("/")[2]: file[name]
      for name in file.files
      if name.startswith(f"{index}/")
    }


def main() -> None:
  from tests.parity import theirs

  arrays = {}
  for index in configurations.CHARACTERISTIC:
    drawn = configurations.draw(index)
    kept = summary(theirs.run(drawn, theirs.make(drawn)))
    for name, values in kept.items():
      arrays[f"{index}/{name}"] = values.astype(np.float32)
  np.savez_compressed(PATH, **arrays)


if __name__ == "__main__":
  main()
