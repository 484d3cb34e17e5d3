r"""Runs training on a Cloud TPU slice, from the request to its deletion.

    python -m scripts.tpu.main cost --type=v5litepod-16 --tier=spot --hours=24
    python -m scripts.tpu.main create xl --type=v5litepod-16 --tier=spot
    python -m scripts.tpu.main install xl
    python -m scripts.tpu.main data xl -- --dataset=wikitext103 \
      --data_dir=gs://BUCKET/data
    python -m scripts.tpu.main start xl -- \
      --config=experiments/wt103_large.py --workdir=gs://BUCKET/wt103 \
      --config.data.dir=gs://BUCKET/data
    python -m scripts.tpu.main logs xl
    python -m scripts.tpu.main delete xl

`run` is create, install, start and logs in one. When the slice is taken away it
asks for another and resumes, and at the end it deletes the slice. All need
Python 3.11, git and gcloud on this machine, and no installation.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from typing import Any

from scripts.tpu import accelerator
from scripts.tpu import gcloud
from scripts.tpu import job as job_lib
from scripts.tpu import queued_resource
from scripts.tpu import session
from scripts.tpu import software
from transformer_xl import errors

_MODULES = {"train": "transformer_xl.main", "data": "data_prep.main"}
_INTERRUPTED = 130


def main() -> None:
  """Runs one verb and ends the process."""
  words, arguments = _split(sys.argv[1:])
  options = _parser().parse_args(words)
  options.arguments = arguments
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  status = 0
  try:
    _check(options)
    options.run(options)
  except KeyboardInterrupt:
    status = _failed("interrupted; what runs on workers runs on.", _INTERRUPTED)
  except errors.UserError as error:
    status = _failed(str(error), 2)
  except (gcloud.RefusedError, queued_resource.GoneError) as error:
    status = _failed(f"{error}.", 1)
  if "name" in options:
    print(queued_resource.bill(_named(options)), flush=True)
  sys.exit(status)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
  """The words before and after `--`."""
  if "--" not in words:
    return words, []
  index = words.index("--")
  return words[:index], words[index + 1 :]


def _failed(message: str, status: int) -> int:
  sys.stdout.flush()
  print(f"error: {' '.join(message.split())}", file=sys.stderr, flush=True)
  return status


def _check(options: argparse.Namespace) -> None:
  """Raises UserError for what is known to be wrong without a call."""
  if options.run in (_data, _start, _run):
    if not options.arguments:
      raise errors.UserError(
        "the command's own flags are missing: add them behind --, as in "
        "start xl -- --config=experiments/wt103_large.py --workdir=gs://..."
      )
  elif options.arguments:
    raise errors.UserError("this verb takes no flags behind --.")
  if "type" in options:
    accelerator.kind(options.type)
    accelerator.price(options.type, options.tier, options.price)


def _named(options: argparse.Namespace) -> queued_resource.Slice:
  """The slice, as far as its name tells."""
  place = gcloud.Place(options.project, options.zone)
  return queued_resource.Slice(options.name, place, options.interval)


def _slice(options: argparse.Namespace) -> queued_resource.Slice:
  slice_ = _named(options)
  if "type" not in options:
    return slice_
  usual = accelerator.kind(options.type).runtime_version
  return slice_._replace(
    type=options.type,
    runtime_version=options.runtime_version or usual,
    tier=options.tier,
    valid_for=options.valid_for,
  )


def _job(options: argparse.Namespace, name: str) -> job_lib.Job:
  command = job_lib.python(_MODULES[name], options.arguments)
  worker = "0" if name == "data" else "all"
  return job_lib.Job(_slice(options), name, worker, command)


def _cost(options: argparse.Namespace) -> None:
  """What a slice costs; asks nobody."""
  values = (options.type, options.tier, options.price, options.hours)
  print(accelerator.cost(*values))


def _create(options: argparse.Namespace) -> None:
  """Asks for a slice and waits until it is there."""
  slice_ = _slice(options)
  _confirm(options, slice_)
  queued_resource.ensure(slice_)


def _confirm(
  options: argparse.Namespace, slice_: queued_resource.Slice
) -> None:
  """Says what a slice will cost and asks, unless it is there or coming.

  Raises:
    UserError: it is there with another type, or was not confirmed.
  """
  try:
    found = queued_resource.request(slice_)
    if found and queued_resource.is_up_or_coming(found):
      if (type_ := queued_resource.type_of(found)) != slice_.type:
        raise errors.UserError(
          f"{slice_.name} is there as {type_}, and --type is {slice_.type}: "
          "delete it first, or take another name."
        )
      return
  except gcloud.RefusedError as error:
    queued_resource.log(f"{slice_.name}: cannot be seen: {error}.")
  _cost(options)
  if options.yes:
    return
  question = "Type yes to ask for it: "
  if not sys.stdin.isatty() or input(question).strip() != "yes":
    raise errors.UserError("not confirmed: type yes, or give --yes.")


def _install(options: argparse.Namespace) -> None:
  """Installs the commit that is checked out here on every worker."""
  software.install(_slice(options), software.commit())


def _data(options: argparse.Namespace) -> None:
  """Prepares data on worker 0, with the flags of data_prep.main behind --."""
  job = _job(options, "data")
  session.start_anew(job)
  _end(job, session.follow(job))


def _start(options: argparse.Namespace) -> None:
  """Starts training, with the flags of transformer_xl.main behind --."""
  session.start_anew(_job(options, "train"))


def _logs(options: argparse.Namespace) -> None:
  """Follows the log of worker 0 until the job ends."""
  job = _job(options, options.job)
  _end(job, session.follow(job, session.RECENT))


def _end(job: job_lib.Job, result: str) -> None:
  if result != session.FINISHED:
    raise errors.UserError(f"the job {job.name} is not finished but {result}.")
  queued_resource.log(f"{job.slice_.name}: {job.name} is finished.")


def _run(options: argparse.Namespace) -> None:
  """All of it: trains to the end through preemptions, and deletes the slice."""
  slice_, keep = _slice(options), options.keep
  commit = software.commit()
  _confirm(options, slice_)
  try:
    session.run(_job(options, "train"), commit)
  except KeyboardInterrupt:
    keep = not options.delete_at_ctrl_c
    raise
  finally:
    if not keep:
      queued_resource.delete(slice_)


def _delete(options: argparse.Namespace) -> None:
  """Deletes the slice, or the request for it."""
  queued_resource.delete(_slice(options))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m scripts.tpu.main",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  verbs = parser.add_subparsers(required=True, metavar="VERB")
  _verb(verbs, "cost", _cost, _price_flags)
  _verb(verbs, "create", _create, _name_flags, _price_flags, _request_flags)
  _verb(verbs, "install", _install, _name_flags)
  _verb(verbs, "data", _data, _name_flags)
  _verb(verbs, "start", _start, _name_flags)
  logs = _verb(verbs, "logs", _logs, _name_flags)
  logs.add_argument("--job", choices=list(_MODULES), default="train")
  run = _verb(verbs, "run", _run, _name_flags, _price_flags, _request_flags)
  run.add_argument(
    "--keep", action="store_true", help="Do not delete the slice at the end."
  )
  run.add_argument(
    "--delete_at_ctrl_c",
    action="store_true",
    help="Delete the slice after Ctrl-C, too, where it is kept otherwise.",
  )
  _verb(verbs, "delete", _delete, _name_flags)
  return parser


def _verb(
  verbs: Any, name: str, run: Callable, *flags: Callable
) -> argparse.ArgumentParser:
  parser = verbs.add_parser(
    name, help=run.__doc__, description=run.__doc__, allow_abbrev=False
  )
  for add in flags:
    add(parser)
  parser.set_defaults(run=run)
  return parser


def _name_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("name", help="Name of the slice, and of the request for it.")
  add("--project", help="If not that of `gcloud config`.")
  add("--zone", help="If not that of `gcloud config`.")
  add(
    "--interval",
    type=float,
    default=30,
    help="Seconds between two looks, and before the second try; %(default)s.",
  )


def _price_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--type", required=True, help="Such as v5litepod-16, v5p-32, v6e-16.")
  add(
    "--tier",
    choices=accelerator.TIERS,
    default="on-demand",
    help="Spot slices are cheap and taken away at any time; %(default)s.",
  )
  add("--price", type=float, help="US dollars a chip-hour.")
  add("--hours", type=float, help="Hours to compute the cost of.")


def _request_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--runtime_version", help="If not that of Google's table for the type.")
  add("--valid_for", default="", help="Give up after waiting, such as 6h.")
  add(
    "--yes", action="store_true", help="Do not ask whether the cost is right."
  )


if __name__ == "__main__":
  main()
