"""What test_processes.py judges: runs by one, two and four processes.

python -m tests.processes FOLDER GROUP leaves workdirs, and a log of each
process, in FOLDER. GROUP "runs" has runs of one, two and four processes. In the
others, "data" and "tensor", one process and two run each mode on a finished
run; the two split that axis of the mesh.
Processes are forks of one that has imported everything, since imports take
longest; nothing has started JAX before.
"""

import itertools
import os
import pathlib
import shutil
import sys
import traceback

import filelock
import jax
import orbax.checkpoint as ocp
from absl import logging
from jax.experimental import multihost_utils

from tests import corpus
from tests import own_process
from tests.analysis import runs
from transformer_xl import errors
from transformer_xl.analysis import ablation
from transformer_xl.analysis import attention_maps
from transformer_xl.analysis import eval_speed
from transformer_xl.analysis import recl
from transformer_xl.analysis import study
from transformer_xl.evaluation import evaluate
from transformer_xl.processes import joining
from transformer_xl.processes import others
from transformer_xl.report import report
from transformer_xl.text import generate
from transformer_xl.text import score
from transformer_xl.training import loop
from transformer_xl.training import programs

SAVED, STEPS, TUNED = 8, 16, 4
UPDATES = {
  "model.dropout_rate": 0.1,
  "train.optimizer": "sgd",  # Adam magnifies rounding near gradients of 0.
  "train.learning_rate": 1.0,
  "checkpoint.every_steps": SAVED,
  # Neither two nor four devices divide them.
  "train.batch_size": 3,
  "eval.batch_size": 3,
}

RUN = {
  "eval.mem_len": (8, 4),
  "generate.prompt": "abc",
  "generate.num_tokens": 12,
  "generate.num_samples": 2,
  "score.top_k": 2,
  "train.num_steps": 4,
  "analysis.variants": ("unchanged:", "narrow: model.ff_dim=8"),
  "analysis.rows": ("recurrent-relative-all", "segment-absolute-all"),
  "analysis.attention_lens": (8,),
  "analysis.contexts": (2, 8, 3),
  "analysis.num_tokens": 40,
  "analysis.speed_lens": (4,),
}
# Which the modes that evaluate with fixed parameters refuse.
ADAPTS = {"eval.dynamic.kind": "sgd", "eval.cache.size": 5}
MODES = {
  "eval": evaluate.run,
  "generate": generate.run,
  "score": score.run,
  "recl": recl.run,
  "attention": attention_maps.run,
  "eval_speed": eval_speed.run,
  "ablation": ablation.run,
  "study": study.run,
  "report": report.run,
}


def run(folder, name, mesh, *, num_steps=STEPS, evaluated=False, **updates):
  """Trains, or goes on."""
  names = ("mesh.data", "mesh.fsdp", "mesh.tensor")
  config = corpus.config(
    str(folder / "data"),
    **UPDATES,
    **dict(zip(names, mesh, strict=True)),
    **{"train.num_steps": num_steps},
    **updates,
  )
  assert loop.train(config, str(folder / name))
  if evaluated:
    evaluate.run(config, str(folder / name))


def tune(folder, name, mesh):
  """Starts from the parameters of a run of one process."""
  updates = {"train.init_from": str(folder / "alone")}
  run(folder, name, mesh, num_steps=TUNED, **updates)


def by_one(folder):
  run(folder, "alone", (1, 1, 1), evaluated=True)


def tuned_by_one(folder):
  tune(folder, "tuned_alone", (1, 1, 1))


def by_two(folder):
  _refuse_folders_of_their_own(folder)
  _refuse_a_folder_in_use(folder)
  run(folder, "two", (1, 2, 1), num_steps=SAVED)


def write_runs(folder):
  for count in (1, 2):
    runs.write(str(folder / "data"), folder / str(count) / "run", **RUN)
  # What the second process finds does not count.
  for index, text in enumerate(("abc\nde fgh\nabcdefgh\n", "klm")):
    (folder / f"texts.{index}").write_text(text)


def in_mode(folder, mode, axis):
  """Runs it on a run of its own; two processes share one."""
  count = jax.process_count()
  workdir = str(folder / str(count) / "run")
  texts = folder / f"texts.{jax.process_index()}"
  updates = RUN | {"score.file": str(texts)}
  updates |= {"mesh.data": 1, f"mesh.{axis}": count}
  if mode == "eval":
    updates |= ADAPTS
  MODES[mode](corpus.config(str(folder / "data"), **updates), workdir)


def _refuse_folders_of_their_own(folder):
  """They are found out before anything waits for the other process."""
  _refuse(folder, f"own.{jax.process_index()}")


def _refuse_a_folder_in_use(folder):
  """Only the first process locks it, and all must end."""
  (folder / "used").mkdir(exist_ok=True)
  used = filelock.FileLock(folder / "used" / ".lock")
  if jax.process_index() == 0:
    used.acquire()
  _refuse(folder, "used")
  used.release()


def _refuse(folder, name):
  try:
    run(folder, name, (2, 1, 1))
  except errors.UserError as error:
    logging.info("Refused: %s", error)
  else:
    raise AssertionError(f"both processes trained in {name}")


def tuned_by_two(folder):
  tune(folder, "tuned", (1, 2, 1))


def by_four(folder):
  run(folder, "to_many", (1, 2, 2), evaluated=True)
  run(folder, "whole", (2, 2, 1))
  _when_done(_copy_whole, folder)
  run(folder, "parts", (2, 2, 1))


def by_one_again(folder):
  run(folder, "to_one", (1, 1, 1))


def _when_done(copy, folder):
  if jax.process_index() == 0:
    copy(folder)
  multihost_utils.sync_global_devices("copies are there")


def _copy_two(folder):
  for name in ("to_one", "to_many"):
    shutil.copytree(folder / "two", folder / name)


def _copy_whole(folder):
  shutil.copytree(folder / "whole", folder / "parts")
  leave_incomplete(folder / "parts" / "checkpoints")


def leave_incomplete(checkpoints):
  """The last one loses a file, one more was being written."""
  being_written = f"{STEPS - 1}.orbax-checkpoint-tmp-1"
  shutil.copytree(checkpoints / str(SAVED), checkpoints / being_written)
  for path in (checkpoints / str(STEPS)).rglob("manifest.ocdbt"):
    path.unlink()


def compiled_by_all(config, mesh):
  """The update, which no process starts before all have compiled it.

  Gloo gives up where a process comes half a minute after another, as it may
  where more of them compile than there are cores.
  """
  update = compile_update(config, mesh)
  compiled = []

  def call(*arguments):
    if not compiled:
      compiled.append(update.lower(*arguments).compile())
      if jax.process_count() > 1:
        wait = ocp.multihost.get_barrier_sync_fn()
        wait(key=f"compiled_{next(counter)}", timeout_ms=300_000)
    return compiled[0](*arguments)

  call.lower = update.lower
  return call


counter = itertools.count()
compile_update = programs.update


def together(work, folder, count, *arguments):
  """Runs `work` in so many processes that know of each other."""
  address = f"localhost:{own_process.free_port()}"
  children = []
  for index in range(count):
    child = os.fork()
    if child == 0:
      _become(work, folder, address, index, count, arguments)
    children.append(child)
  statuses = [os.waitpid(child, 0)[1] for child in children]
  assert not any(statuses), f"see the logs of {work.__name__}"


def _become(work, folder, address, index, count, arguments):
  name = ".".join([work.__name__, *arguments, str(index)])
  log = (folder / f"{name}.log").open("w")
  os.dup2(log.fileno(), sys.stderr.fileno())
  os.dup2(log.fileno(), sys.stdout.fileno())
  status = 1
  try:
    if count > 1:
      joining.join(address, count, index)
    work(folder, *arguments)
    if count > 1:
      others.leave()
      jax.distributed.shutdown()  # As at the end of a command.
    status = 0
  except BaseException:
    traceback.print_exc()
  sys.stderr.flush()
  os._exit(status)


def main(folder, group):
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  programs.update = compiled_by_all
  corpus.write(folder / "data")
  if group != "runs":
    together(write_runs, folder, 1)
    for mode, number in itertools.product(MODES, (1, 2)):
      together(in_mode, folder, number, mode, group)
    return
  together(by_one, folder, 1)
  together(tuned_by_one, folder, 1)
  together(tuned_by_two, folder, 2)
  together(by_two, folder, 2)
  _copy_two(folder)
  together(by_four, folder, 4)
  together(by_one_again, folder, 1)


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]), sys.argv[2])
