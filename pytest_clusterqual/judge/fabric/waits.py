"""Wait apart from transfer: what the durations of single calls on every rank tell without a common clock.

Where everybody waits for everybody, all ranks leave a call at about the same time. So the shortest
duration is the transfer, what the others took longer is their wait, and the rank with the shortest
duration came last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual.judge.fabric.sweeps import Call, GroupTimes
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.record import Interval

# In send/recv and broadcast a rank leaves as soon as its own neighbours let it: a duration says nothing of others.
EVERYBODY_WAITS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v")
FALSE_ALARMS = 0.01  # of a group at one size in which all ranks come alike
LEAST_SECONDS, LEAST_SHARE = 20e-6, 0.05  # lateness that matters: seconds, and share of the transfer
# Rounds that agree by chance agree in sign, not in size: their interval reaches down to a small part of their median.
STEADY = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Late:
    """Ranks that come `seconds` later than the others to a call of `transfer` seconds; a node's come together.

    The interval is over rounds. They came last to `last` of `calls`, `by_chance` is how many if all come alike.
    """

    ranks: tuple[int, ...]
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
    calls = [(call, min(call), max(call)) for call in _all_calls(times)]
    return {
        rank: median([(call[k] - least) / most for call, least, most in calls]) for k, rank in enumerate(times.members)
    }


def late_ranks(times: GroupTimes) -> tuple[Late, ...]:
    """The ranks that come last more often than chance, always by about as much, and by enough to matter.

    How often a rank is the last of N is binomial with 1/N where all come alike; Holm's correction
    covers that every rank is tried. Calls of one round resemble each other, so the lateness must
    hold over rounds as well.
    """
    return _late(times, [(rank,) for rank in times.members])


def late_nodes(times: GroupTimes, rank_nodes: Sequence[str]) -> tuple[Late, ...]:
    """The nodes whose ranks, two or more and not all there are, come last together; tried and timed as ranks are."""
    by_node: dict[str, list[int]] = {}
    for rank in times.members:
        by_node.setdefault(rank_nodes[rank], []).append(rank)
    return _late(times, [tuple(ranks) for ranks in by_node.values() if 1 < len(ranks) < len(times.members)])


def _late(times: GroupTimes, units: Sequence[tuple[int, ...]]) -> tuple[Late, ...]:
    """Those of the `units`, each of one or several ranks, that are the last of all."""
    calls = _all_calls(times)
    place_of = {rank: place for place, rank in enumerate(times.members)}
    places = [frozenset(place_of[rank] for rank in unit) for unit in units]
    last = _often_last(calls, places)
    alike = [1 / math.comb(len(times.members), len(unit)) for unit in units]
    transfer = median([min(call) for call in calls])
    found = []
    for nth in _more_often_than_chance(last, alike, len(calls)):
        rounds = [median([_lateness(call, places[nth]) for call in calls]) for calls in times.calls]
        interval, seconds = median_interval(rounds), median(rounds)
        if interval and interval.low >= max(LEAST_SECONDS, LEAST_SHARE * transfer, STEADY * seconds):
            found.append(
                Late(
                    ranks=units[nth], seconds=seconds, interval=interval, transfer=transfer,
                    last=last[nth], calls=len(calls), by_chance=alike[nth] * len(calls),
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda late: late.seconds, reverse=True))


def _often_last(calls: Sequence[Call], places: Sequence[frozenset[int]]) -> list[int]:
    """To how many calls nobody else came after any of those at the `places`."""
    sizes = set(map(len, places))
    # Who came last has the shortest duration.
    orders = [sorted(range(len(call)), key=call.__getitem__) for call in calls]
    last = Counter(frozenset(order[:size]) for order in orders for size in sizes)
    return [last[unit] for unit in places]


def _more_often_than_chance(last: Sequence[int], alike: Sequence[float], calls: int) -> list[int]:
    """Positions of those that are last too often for their chance if all come alike."""
    from scipy.special import bdtrc  # on first use: most judgements need no such library

    tried = sorted(
        (float(bdtrc(count - 1, calls, share)), nth) for nth, (count, share) in enumerate(zip(last, alike, strict=True))
    )
    kept = next((i for i, (chance, _) in enumerate(tried) if chance > FALSE_ALARMS / (len(tried) - i)), len(tried))
    return [nth for _, nth in tried[:kept]]


def _lateness(call: Call, places: frozenset[int]) -> float:
    """How much later than the median of the others the first of these came."""
    return median([seconds for k, seconds in enumerate(call) if k not in places]) - max(call[k] for k in places)


def _all_calls(times: GroupTimes) -> list[Call]:
    return [call for calls in times.calls for call in calls]


def _upper_median(call: Call) -> float:
    return sorted(call)[len(call) // 2]
