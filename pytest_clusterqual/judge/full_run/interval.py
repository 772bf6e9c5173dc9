"""How often to save: what saving costs against what failures cost, for failures that come at random.

Failures are a Poisson process, and hit saves and recoveries as well as steps. Sources: J. W. Young, A first order
approximation to the optimum checkpoint interval, CACM 17 (1974); J. T. Daly, A higher order estimate of the optimum
checkpoint interval for restart dumps, Future Generation Computer Systems 22 (2006). `availability` is Daly's exact
expected time for saves that block; for saves in the background it is derived the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_clusterqual.judge.statistics import LEVEL


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Seconds. Training stands still for `blocking` at each save, which counts from `completion` on after it began;
    steps beside it take `slowdown` longer in all. From a failure it takes `recovery` until training goes on from the
    last save that counts.
    """

    blocking: float
    completion: float
    slowdown: float = 0.0
    recovery: float = 0.0

    @property
    def saving(self) -> float:
        """What one save takes from training."""
        return self.blocking + self.slowdown


@dataclass(frozen=True, kw_only=True, slots=True)
class BetweenFailures:
    """Mean time between failures of the whole job, seconds, and how it is known.

    measured: `failures` counted in so much time, between `low` and `high` at `LEVEL`; without any failure only `low` is
    known. assumed: as the project file says.
    """

    mean: float | None
    low: float
    high: float
    failures: int | None = None

    @property
    def assumed(self) -> bool:
        return self.failures is None


def assumed(mean: float) -> BetweenFailures:
    """What the project file says."""
    return BetweenFailures(mean=mean, low=mean, high=mean)


def measured(failures: int, seconds: float) -> BetweenFailures:
    """From so many failures in so much time, with the exact interval of a Poisson count.

    Its bounds are quantiles of chi-square, here as those of the gamma distribution, which is half of it. Without a
    failure the bound is one-sided.
    """
    from scipy.special import gammaincinv  # on first use: most judgements need no such library

    if not failures:
        return BetweenFailures(mean=None, low=seconds / -math.log(1 - LEVEL), high=math.inf, failures=0)
    tail = (1 - LEVEL) / 2
    return BetweenFailures(
        mean=seconds / failures,
        low=seconds / float(gammaincinv(failures + 1, 1 - tail)),
        high=seconds / float(gammaincinv(failures, tail)),
        failures=failures,
    )


def availability(work: float, cost: Cost, failures: float) -> float:
    """The share of all time that goes into work which is kept, with a save after every `work` seconds of it.

    After a recovery the first save begins once `work` is done, each further one `cycle` later; so many of them are kept
    as count by the time of the next failure, which is exponential with mean `failures`. A recovery that takes R without
    a failure takes `failures` x (exp(R / failures) - 1) on average, as failures cut it short.
    """
    cycle = max(work + cost.saving, cost.completion)  # the next save waits for this one
    kept = math.exp(-(work + cost.completion) / failures) / -math.expm1(-cycle / failures)
    return work / failures * kept * math.exp(-cost.recovery / failures)


def best_steps(step: float, cost: Cost, failures: float) -> int:
    """After how many steps of `step` seconds to save, so that the availability is highest."""

    def score(steps: int) -> float:
        """Its logarithm without what does not depend on the steps, which never vanishes."""
        work = steps * step
        cycle = max(work + cost.saving, cost.completion)
        return math.log(work) - work / failures - math.log(-math.expm1(-cycle / failures))

    # It rises to one peak, which is no later than one time between failures.
    low, high = 1, max(math.ceil(failures / step), 1) + 1
    while low < high:
        middle = (low + high) // 2
        if score(middle + 1) > score(middle):
            low = middle + 1
        else:
            high = middle
    return low


def young(saving: float, failures: float) -> float:
    """Young's interval between saves, seconds of work: good where a save takes far less than the time to a failure."""
    return math.sqrt(2 * saving * failures)


def daly(saving: float, failures: float) -> float:
    """Daly's interval between saves, seconds of work; for saves below twice the time between failures, else that."""
    if saving >= 2 * failures:
        return failures
    ratio = saving / (2 * failures)
    return young(saving, failures) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - saving
