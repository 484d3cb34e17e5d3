"""What a comparison does for a variant: first its learning rate, then seeds.

The first seed tries learning rates (rate_search.py), judged by the validation
split, which so chooses, and the split of the comparison only measures. Then all
seeds are trained at the best rate. What comes next depends on what is known and
on nothing else, so that it does not matter who trains what, and in which order.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from transformer_xl.analysis import rate_search
from transformer_xl.analysis import trials
from transformer_xl.analysis import variants
from transformer_xl.config import schema


class Plan(NamedTuple):
  """A variant, and all that decides about its trials.

  Attributes:
    variant: its name and its changes.
    config: the experiment with these changes.
    workdir: of the comparison.
    start_rates: learning rates that come first.
    seeds: of which the first chooses the rate.
    lengths: at which it is measured, by split.
    choose_length: the length that counts among those with these losses.
  """

  variant: variants.Variant
  config: schema.ExperimentConfig
  workdir: str
  start_rates: tuple[float, ...]
  seeds: tuple[int, ...]
  lengths: Mapping[str, Sequence[int]]
  choose_length: Callable[[schema.TrainConfig, trials.Losses], int]

  @property
  def chooses_rate(self) -> bool:
    return variants.chooses_rate(self.config.analysis)

  @property
  def split(self) -> str:
    """The split that the variant is compared on."""
    return self.config.eval.split

  def trial(self, rate: float, seed: int) -> variants.Trial:
    """The training run with a learning rate and a seed."""
    return variants.trial(
      self.config, self.variant.name, self.workdir, rate=rate, seed=seed
    )

  def loss(self, measured: trials.Measured) -> float:
    """The loss that counts, in nats per token; infinite if it diverged."""
    if not measured.losses:
      return math.inf
    length = self.choose_length(self.config.train, measured.losses)
    return measured.losses[length]


class Job(NamedTuple):
  """A trial to measure on a split, for which it may have to be trained."""

  plan: Plan
  rate: float
  seed: int
  split: str

  @property
  def trial(self) -> variants.Trial:
    return self.plan.trial(self.rate, self.seed)

  @property
  def lengths(self) -> Sequence[int]:
    return self.plan.lengths[self.split]


# What is known of a job; None before it is done.
Known = Callable[[Job], trials.Measured | None]


class Progress(NamedTuple):
  """What is known of a variant, and what is to be done next.

  Attributes:
    jobs: what can be done now, in any order and by several workers; none if
      the variant is finished.
    losses: of the learning rates tried, on the validation split; infinite
      where training diverged with one of the seeds.
    rate: the best of them, once it is known.
    measured: of all seeds, once the variant is finished.
    least: the least number of trials that are still to be trained.
    most: the greatest one.
  """

  jobs: list[Job]
  losses: dict[float, float]
  rate: float | None
  measured: list[trials.Measured]
  least: int
  most: int


def progress(plan: Plan, known: Known) -> Progress:
  """How far a variant is.

  One of which training diverges at every rate is finished, too, and has no
  measurements.
  """
  first, *others = plan.seeds
  most_rates = max(
    plan.config.analysis.max_learning_rates, len(plan.start_rates)
  )
  losses: dict[float, float] = {}
  rate = plan.start_rates[0]
  if plan.chooses_rate:
    jobs = _search(plan, known, losses)
    if jobs:
      return Progress(
        jobs,
        losses,
        rate=None,
        measured=[],
        least=len(jobs) + len(others),
        most=most_rates - len(losses) + len(others),
      )
    rate = rate_search.best(losses)
    if rate_search.diverges(losses):
      return Progress([], losses, rate=None, measured=[], least=0, most=0)

  measured = []
  jobs = []
  for seed in plan.seeds:
    job = Job(plan, rate, seed, plan.split)
    found = known(job)
    if found is None:
      jobs.append(job)
    else:
      measured.append(found)
  to_train = sum(job.seed != first or not plan.chooses_rate for job in jobs)
  return Progress(
    jobs,
    losses,
    rate,
    measured=[] if jobs else measured,
    least=to_train,
    most=to_train,
  )


def _search(plan: Plan, known: Known, losses: dict[float, float]) -> list[Job]:
  """Adds the losses of the rates tried; returns what is to be tried next.

  A rate at which another seed has diverged is lost, too. It is so only after
  the search of the first seed, which would otherwise depend on what has been
  found by then.
  """
  first, *others = plan.seeds

  def judge(rate: float) -> bool:
    """Adds the loss of a rate with the first seed, if it is known."""
    found = known(Job(plan, rate, first, "valid"))
    if found is None:
      return False
    losses[rate] = plan.loss(found)
    return True

  unknown = [rate for rate in plan.start_rates if not judge(rate)]
  if unknown:
    return [Job(plan, rate, first, "valid") for rate in unknown]
  most = plan.config.analysis.max_learning_rates
  while True:
    beyond = rate_search.next_rate(losses, most)
    if beyond is not None:
      if not judge(beyond):
        return [Job(plan, beyond, first, "valid")]
      continue
    best = rate_search.best(losses)
    jobs = [Job(plan, best, seed, plan.split) for seed in others]
    found = [known(job) for job in jobs]
    has_diverged = any(each is not None and not each.losses for each in found)
    if not has_diverged or losses[best] == math.inf:
      return []
    losses[best] = math.inf
