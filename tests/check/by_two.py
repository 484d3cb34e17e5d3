"""Two processes with a device each check together.

`python -m tests.check.by_two FOLDER` leaves `result.json` in FOLDER.
"""

import json
import pathlib
import sys

import jax
from jax.experimental import multihost_utils

from tests import processes
from transformer_xl.check import attention_numbers
from transformer_xl.check import check
from transformer_xl.check import finding
from transformer_xl.check import memory
from transformer_xl.check import on_mesh
from transformer_xl.check import small_run
from transformer_xl.check import softmax_numbers
from transformer_xl.config import load


def check_together(folder):
  meshes = check.make_meshes()[:2]
  findings = []
  for mesh in meshes:
    with jax.set_mesh(mesh), on_mesh.exact_products("float32"):
      findings += [
        attention_numbers.check_attention(
          mesh,
          "float32",
          "xla",
          attention_numbers.SMALL,
          "keys and biases",
          attention_numbers.RATE,
        ),
        attention_numbers.check_ring(
          mesh, "float32", "xla", attention_numbers.RING, "keys and biases"
        ),
        softmax_numbers.check_softmax(
          mesh, "float32", softmax_numbers.ROOM, True
        ),
      ]
  config = load.from_config_dict(load.default())
  findings += memory.run(config.model, short=True)
  findings += small_run.run(meshes[:1], str(folder))
  findings = finding.largest_of_processes(findings)
  error = 100.0 * jax.process_index()
  (seen,) = finding.largest_of_processes(
    [finding.Finding("x", "seen by the second alone", error, 1.0)]
  )
  seen_by_all = multihost_utils.process_allgather(jax.numpy.array(seen.passed))
  if jax.process_index() == 0:
    result = {
      "meshes": [on_mesh.describe(mesh) for mesh in meshes],
      "wrong": [str(found) for found in findings if not found.passed],
      "seen by the other": seen_by_all.tolist(),
    }
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
  processes.together(check_together, pathlib.Path(sys.argv[1]), 2)
