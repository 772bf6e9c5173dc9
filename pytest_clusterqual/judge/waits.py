"""Wait apart from transfer: what the durations of single calls on every rank tell without a common clock.

Where everybody waits for everybody, all ranks leave a call at about the same time. So the shortest
duration is the transfer, what the others took longer is their wait, and the rank with the shortest
duration came last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.judge.sweeps import Call, GroupTimes
from pytest_clusterqual.model.record import Interval

# In send/recv and broadcast a rank leaves as soon as its own neighbours let it: a duration says nothing of others.
EVERYBODY_WAITS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v")
FALSE_ALARMS = 0.01  # of a group at one size in which all ranks come alike
LEAST_SECONDS, LEAST_SHARE = 20e-6, 0.05  # lateness that matters: seconds, and share of the transfer
# Rounds that agree by chance agree in sign, not in size: their interval reaches down to a small part of their median.
STEADY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """A rank that comes `seconds` later than the others to a call of `transfer` seconds.

    The interval is over rounds. It came last to `last` of `calls`, `by_chance` is how many if all come alike.
    """

    rank: int
    seconds: float
    interval: Interval
    transfer: float
    last: int
    calls: int
    by_chance: float


def shared_wait(call: Call) -> float:
    """The share of the slowest rank's duration that most ranks spent waiting.

    The wait of a rank is what its duration exceeds the shortest one; the upper median of these is
    what at least half of the ranks waited. One rank with a long duration of its own (a slow
    receiver) does not raise it, nor does a slow link, which holds up all of them alike: neither
    is ever forgiven. Of two ranks the longer one waited.
    """
    return (_upper_median(call) - min(call)) / max(call)


def shared_waits(times: GroupTimes) -> tuple[float, ...]:
    """The shared wait of each round, as the median of its calls; 0 where calls were not timed."""
    return tuple(median([shared_wait(call) for call in calls]) if calls else 0.0 for calls in times.calls)


def rank_waits(times: GroupTimes) -> dict[int, float]:
    """The share of the slowest rank's duration that each rank waits, as the median of all calls."""
    calls = _all_calls(times)
    return {rank: median([(call[k] - min(call)) / max(call) for call in calls]) for k, rank in enumerate(times.members)}


def late_ranks(times: GroupTimes) -> tuple[Late, ...]:
    """The ranks that come last more often than chance, always by about as much, and by enough to matter.

    How often a rank is the last of N is binomial with 1/N where all come alike; Holm's correction
    covers that every rank is tried. Calls of one round resemble each other, so the lateness must
    hold over rounds as well.
    """
    calls = _all_calls(times)
    last = Counter(times.members[call.index(min(call))] for call in calls)
    transfer = median([min(call) for call in calls])
    found = []
    for rank in _more_often_than_chance(last, len(times.members), len(calls)):
        rounds = [_lateness(calls, times.members.index(rank)) for calls in times.calls]
        interval, seconds = median_interval(rounds), median(rounds)
        if interval and interval.low >= max(LEAST_SECONDS, LEAST_SHARE * transfer, STEADY * seconds):
            found.append(
                Late(
                    rank=rank, seconds=seconds, interval=interval, transfer=transfer,
                    last=last[rank], calls=len(calls), by_chance=len(calls) / len(times.members),
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda late: late.seconds, reverse=True))


def _more_often_than_chance(last: Counter[int], members: int, calls: int) -> list[int]:
    from scipy.special import bdtrc  # on first use: most judgements need no such library

    often = last.most_common()  # a greater count has a smaller probability
    chances = [float(bdtrc(count - 1, calls, 1 / members)) for _, count in often]
    kept = next((i for i, chance in enumerate(chances) if chance > FALSE_ALARMS / (members - i)), len(often))
    return [rank for rank, _ in often[:kept]]


def _lateness(calls: Sequence[Call], k: int) -> float:
    """How much later than the median of the others the k-th rank came, as the median of the calls of a round."""
    return median([median([*call[:k], *call[k + 1 :]]) - call[k] for call in calls])


def _all_calls(times: GroupTimes) -> list[Call]:
    return [call for calls in times.calls for call in calls]


def _upper_median(call: Call) -> float:
    return sorted(call)[len(call) // 2]
