r"""This package beside an older version of it, or beside PyTorch.

    python -m benchmarks.side_by_side --before=HEAD~10

compares the checkout with a commit, tag or branch of its repository, both in
float32. Without --before, it is compared with HuggingFace's model and, if a
checkout of https://github.com/kimiyoung/transformer-xl is given, with the
original PyTorch code. That needs the `parity` extra:

    .venv-parity/bin/python -m benchmarks.side_by_side \
      --original=transformer-xl --table=side_by_side.md

Then every side is measured in every form: in float32 and, where the processor
multiplies it, in bfloat16; with one thread on one core, two on two, and so on.
More threads can be slower, so with two cores the better of one and two counts.

On an NVIDIA GPU, with PyTorch for CUDA and, for nanoGPT, a checkout of
https://github.com/karpathy/nanoGPT:

    python -m benchmarks.side_by_side --platform=cuda \
      --original=transformer-xl --nanogpt=nanoGPT --table=side_by_side.md

Shapes like the published ones are trained there, and the faster of PyTorch as
it is and under `torch.compile` counts.

Each form is a process of its own, and they take turns: A B, B A, A B.
Wall and CPU times are medians over the rounds. Ratios are taken in each round;
their median is given, and the quartiles, between which half of the rounds lie.
"""

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags

from benchmarks import workload
from transformer_xl import command_line
from transformer_xl import errors
from transformer_xl import hardware

ROOT = pathlib.Path(__file__).parents[1]
TRAIN = workload.TASKS["train"]
EVALUATE = workload.TASKS["evaluate"]
GENERATE = workload.TASKS["generate"]
_change = dataclasses.replace
# Each workload, and its segments in a turn.
CASES = {
  "train_small": (TRAIN, 2),
  "train_large": (_change(TRAIN, batch_size=4, **workload.LARGE), 1),
  "eval_small": (_change(EVALUATE, mem_len=128), 4),
  "eval_small_1600_b1": (_change(EVALUATE, batch_size=1), 4),
  "eval_small_1600_b8": (EVALUATE, 1),
  "eval_large": (
    _change(EVALUATE, mem_len=128, batch_size=4, **workload.LARGE),
    2,
  ),
  "eval_large_1600_b1": (_change(EVALUATE, batch_size=1, **workload.LARGE), 1),
  "generate_small": (GENERATE, 64),
  "generate_large": (_change(GENERATE, **workload.LARGE), 16),
}
_ENWIK8_BASE = {
  "num_layers": 12,
  "model_dim": 512,
  "ff_dim": 2048,
  "batch_size": 22,
  "segment_len": 512,
  "mem_len": 512,
}
_ENWIK8_LARGE = {
  "num_layers": 24,
  "model_dim": 1024,
  "ff_dim": 4096,  # Published: 3072, which nanoGPT cannot have.
  "batch_size": 4,  # All sides at a time have to fit into the GPU.
  "segment_len": 768,
  "mem_len": 768,
}
# With --platform=cuda.
GPU_CASES = {
  "gpu_train_base": (_change(TRAIN, **_ENWIK8_BASE), 8),
  "gpu_train_large": (_change(TRAIN, **_ENWIK8_LARGE), 4),
  "gpu_eval_large": (
    _change(EVALUATE, **_ENWIK8_LARGE | {"segment_len": 128, "mem_len": 3800}),
    16,
  ),
  "gpu_generate_large": (
    _change(
      GENERATE,
      **_ENWIK8_LARGE | {"segment_len": 1, "mem_len": 3800, "batch_size": 1},
    ),
    64,
  ),
}
KINDS = ("seconds", "cpu_seconds")
PEERS = ("original", "nanogpt")  # By a checkout of their code.


class Form(NamedTuple):
  """How a side computes."""

  who: str
  dtype: str
  threads: int  # Each on a core of its own.
  is_compiled: bool = False  # By PyTorch; ours always is.


Turns = dict[Form, dict[str, Any]]  # What each form took in one round.


def define_flags() -> None:
  """Defines the flags of `main`."""
  flags.DEFINE_string("original", None, "Checkout of the original.")
  flags.DEFINE_string("nanogpt", None, "Checkout of nanoGPT.")
  flags.DEFINE_enum("platform", "cpu", ["cpu", "cuda"], "What to run on.")
  flags.DEFINE_string("before", None, "Commit, tag or branch to compare with.")
  flags.DEFINE_bool(
    "torch_compile", True, "On a GPU, also measure PyTorch compiled."
  )
  flags.DEFINE_integer("rounds", 7, "Number of rounds.", lower_bound=2)
  flags.DEFINE_list("cores", ["0", "1"], "Cores to run on.")
  flags.DEFINE_string(
    "dtype",
    None,
    "Number format of all sides; by default float32 and, against PyTorch, what "
    "model.dtype=auto takes here.",
  )
  flags.DEFINE_string("table", None, "Markdown file to write.")
  cases = [*CASES, *GPU_CASES]
  flags.DEFINE_multi_enum("case", [], cases, "To compare; by default all.")


def main(argv: list[str]) -> None:
  del argv
  chosen = flags.FLAGS
  with tempfile.TemporaryDirectory() as folder:
    if chosen.before:
      check_out(chosen.before, folder)
      folders = {"ours": str(ROOT), "before": folder}
    else:
      folders = dict.fromkeys(_sides(), str(ROOT))

    results = []
    on_gpu = chosen.platform == "cuda"
    for name in chosen.case or (GPU_CASES if on_gpu else CASES):
      results.append(compare(name, folders))
      print(json.dumps(results[-1]), flush=True)
      if chosen.table:  # After every case, in case the run is stopped.
        pathlib.Path(chosen.table).write_text(table(results), "utf-8")


def _sides() -> list[str]:
  """Ours, and the peers that were named."""
  chosen = flags.FLAGS
  names = ["ours"]
  if chosen.platform == "cpu":
    names.append("huggingface")
  names += [name for name in PEERS if chosen[name].value]
  return names


def check_out(revision: str, folder: str) -> None:
  """Writes the files of a revision into a folder.

  Raises:
    UserError: the repository has no such revision.
  """
  command = ["git", "-C", str(ROOT), "archive", "--format=tar", revision]
  found = subprocess.run(command, capture_output=True)
  if found.returncode:
    raise errors.UserError(
      f"--before={revision} is no commit, tag or branch of {ROOT}: "
      f"{found.stderr.decode().strip()}"
    )
  # The module tarfile extracts safely from Python 3.11.4 on.
  subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)


def compare(case: str, folders: dict[str, str]) -> dict[str, Any]:
  """Runs one case and returns its figures.

  Args:
    case: a name from `CASES` or `GPU_CASES`.
    folders: of each side the checkout that it runs in, ours first.
  """
  work, count = (CASES | GPU_CASES)[case]
  if work.task != "train":  # nanoGPT has no memory to evaluate with.
    folders = {who: path for who, path in folders.items() if who != "nanogpt"}
  forms = _forms([*folders])
  sides = {form: _Side(form, folders[form.who], work, count) for form in forms}
  for side in sides.values():
    side.wait_until_ready()
  rounds: list[Turns] = []
  for index in range(flags.FLAGS.rounds):
    order = forms if index % 2 == 0 else forms[::-1]
    rounds.append({form: sides[form].take_turn() for form in order})
  for side in sides.values():
    side.close()

  dtypes = [*dict.fromkeys(form.dtype for form in forms)]
  choices = [dtypes[:1], dtypes] if len(dtypes) > 1 else [dtypes]
  comparisons = []
  for cores in sorted({form.threads for form in forms}):
    for allowed in choices:
      fitting = [
        form
        for form in forms
        if form.threads <= cores and form.dtype in allowed
      ]
      compared = _best_of_each(fitting, sides, rounds)
      comparisons.append({"cores": cores, "dtypes": allowed, "sides": compared})
  return {
    "benchmark": "side_by_side",
    "case": case,
    **dataclasses.asdict(work),
    "rounds": len(rounds),
    "forms": [_figures(form, sides[form], rounds) for form in forms],
    "comparisons": comparisons,
  }


def table(results: list[dict[str, Any]]) -> str:
  """Markdown table: milliseconds per segment and ratios, wall and CPU.

  A row is a side in the form that took least with these cores, of the formats
  that are allowed.
  """
  lines = [
    "| case | layers, width, memory, batch | cores | formats | side | threads "
    "| wall ms | CPU ms | times as long as ours, wall | CPU |",
    "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for result in results:
    sizes = ("num_layers", "model_dim", "mem_len", "batch_size")
    size = ", ".join(str(result[name]) for name in sizes)
    for comparison in result["comparisons"]:
      cores = str(comparison["cores"])
      formats = " or ".join(comparison["dtypes"])
      for who, side in comparison["sides"].items():
        cells = [result["case"], size, cores, formats]
        compiled = ", compiled" if side["is_compiled"] else ""
        cells += [f"{who}, {side['dtype']}{compiled}", str(side["threads"])]
        cells += [str(side["milliseconds"]), str(side["cpu_milliseconds"])]
        ratios = side.get("times_as_long_as_ours", {})
        for kind in KINDS:
          cell = ""
          if kind in ratios:
            cell = "{median} ({lower} to {upper})".format(**ratios[kind])
          cells.append(cell)
        lines.append("| " + " | ".join(cells) + " |")
  return "\n".join(lines) + "\n"


def _forms(names: Sequence[str]) -> list[Form]:
  """The forms in which sides are measured, with the slowest format first."""
  chosen = flags.FLAGS
  num_cores = len(chosen.cores)
  if chosen.platform == "cuda":
    return [
      Form(who, chosen.dtype or "bfloat16", num_cores, is_compiled)
      for who in names
      for is_compiled in (False, True)
      if not is_compiled or (who in PEERS and chosen.torch_compile)
    ]
  if chosen.before:
    dtypes = [chosen.dtype or "float32"]
    thread_counts = [num_cores]
  else:
    fast = hardware.fast_dtype()
    dtypes = [chosen.dtype] if chosen.dtype else ["float32", fast]
    thread_counts = [*range(1, num_cores + 1)]
  dtypes = [hardware.fast_dtype() if d == "auto" else d for d in dtypes]
  return [
    Form(who, dtype, threads)
    for who in names
    for dtype in dict.fromkeys(dtypes)
    for threads in thread_counts
  ]


def _median(form: Form, kind: str, rounds: list[Turns]) -> float:
  return statistics.median(turns[form][kind] for turns in rounds)


def _fastest(forms: list[Form], rounds: list[Turns]) -> Form:
  """The form with the least median time by the clock."""
  return min(forms, key=lambda form: _median(form, "seconds", rounds))


def _best_of_each(
  forms: list[Form], sides: dict[Form, "_Side"], rounds: list[Turns]
) -> dict[str, dict[str, Any]]:
  """Figures of each side in its fastest form, with ratios to ours."""
  best = {}
  for who in dict.fromkeys(form.who for form in forms):
    best[who] = _fastest([form for form in forms if form.who == who], rounds)
  figures = {}
  for who, form in best.items():
    figures[who] = _figures(form, sides[form], rounds)
    if who == "ours":
      continue
    figures[who]["times_as_long_as_ours"] = {
      kind: _ratio(
        [turns[form][kind] / turns[best["ours"]][kind] for turns in rounds]
      )
      for kind in KINDS
    }
  return figures


def _figures(form: Form, side: "_Side", rounds: list[Turns]) -> dict[str, Any]:
  milliseconds = {kind: 1e3 * _median(form, kind, rounds) for kind in KINDS}
  last = rounds[-1][form]
  return {
    **form._asdict(),
    "milliseconds": round(milliseconds["seconds"], 2),
    "cpu_milliseconds": round(milliseconds["cpu_seconds"], 2),
    "compile_seconds": round(side.ready["compile_seconds"], 2),
    "peak_resident_megabytes": round(last["resident_bytes"] / 1e6),
    "peak_device_megabytes": round(last.get("device_bytes", 0) / 1e6),
  }


class _Side:
  """The process of one side in one form."""

  def __init__(
    self, form: Form, folder: str, work: workload.Workload, count: int
  ):
    chosen = flags.FLAGS
    fields = dataclasses.asdict(work) | {"dtype": form.dtype}
    who = "ours" if form.who == "before" else form.who
    self._command = [
      sys.executable,
      "-m",
      "benchmarks.contestant",
      f"--who={who}",
      f"--work={json.dumps(fields)}",
      f"--count={count}",
      f"--cores={','.join(chosen.cores[: form.threads])}",
    ]
    if who in PEERS:
      checkout = os.path.abspath(chosen[who].value)
      self._command.append(f"--folder={checkout}")
    if form.is_compiled:
      self._command.append("--compiled")
    paths = [folder, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {
      "JAX_PLATFORMS": chosen.platform,
      "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    if chosen.platform == "cuda":
      self._command.append("--platform=cuda")
      # Leaves memory to the other sides.
      environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    self._process = subprocess.Popen(
      self._command,
      cwd=folder,
      env=os.environ | environment,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    self.ready: dict[str, Any] = {}
    if chosen.platform == "cpu":  # Else they compile at the same time.
      self.wait_until_ready()

  def wait_until_ready(self) -> None:
    """Waits until the side has compiled, and has run once."""
    self.ready = self.ready or self._read()

  def take_turn(self) -> dict[str, Any]:
    assert self._process.stdin
    self._process.stdin.write("\n")
    self._process.stdin.flush()
    return self._read()

  def close(self) -> None:
    assert self._process.stdin
    self._process.stdin.close()
    self._process.wait()

  def _read(self) -> dict[str, Any]:
    assert self._process.stdout
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError(f"stopped: {' '.join(self._command)}")
    return json.loads(line)


def _ratio(ratios: list[float]) -> dict[str, float]:
  """Median and quartiles of one ratio a round."""
  lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
  return {
    "median": round(median, 3),
    "lower": round(lower, 3),
    "upper": round(upper, 3),
  }


if __name__ == "__main__":
  define_flags()
  command_line.run(main)
