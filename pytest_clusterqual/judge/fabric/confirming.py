"""The second round: what was slow among many is tried alone, a node with partners that are known to be good."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum

from pytest_clusterqual.judge.fabric.pair_causes import Cause, Screening, screen, sound
from pytest_clusterqual.judge.statistics import median, ratio_interval
from pytest_clusterqual.model.fabric import PairTiming
from pytest_clusterqual.model.record import Interval

MOST_TRIED = 8  # causes; each costs a few exchanges while all other nodes are idle
PARTNERS = 3

Pair = tuple[str, str, int]  # two nodes and a rail


class Alone(Enum):
    """What the second round says of a cause."""

    SLOW = "slow alone, too"
    FAST = "fast alone"
    UNCLEAR = "neither clearly slow alone nor clearly fast"
    UNTRIED = "not tried alone"


def to_confirm(pairs: Sequence[PairTiming], *, least: float) -> list[Pair]:
    """The pairs to try alone: the clearest causes, and pairs that are known to be good; nothing without a cause."""
    at_work = [pair for pair in pairs if not pair.alone]
    screening = screen(at_work, least=least)
    good = sound(screening.causes, at_work)
    chosen: dict[Pair, None] = {}
    for cause in screening.causes[:MOST_TRIED]:
        if cause.kind == "link":
            chosen |= dict.fromkeys((min(cause.ends), max(cause.ends), rail) for rail in cause.rails)
        elif cause.kind == "rail":
            chosen |= dict.fromkeys(_apart([pair for pair in at_work if cause.covers(pair)]))
        else:
            chosen |= dict.fromkeys(_partnered(cause, at_work, good))
    for rail in {rail for *_, rail in chosen} | {pair.rail for pair in good[:1]} if chosen else ():
        chosen |= dict.fromkeys(_apart([pair for pair in good if pair.rail == rail]))
    return list(chosen)


def tried_alone(cause: Cause, screening: Screening, pairs: Iterable[PairTiming]) -> tuple[Alone, Interval | None]:
    """If the cause is slow alone, and how many times slower than good pairs alone.

    It must be so by more than half of what it was among the others, in logarithms, with its whole
    interval; else it is fast, or it is unclear.
    """
    alone = [pair for pair in pairs if pair.alone]
    suspects = [pair for pair in alone if cause.covers(pair)]
    if not suspects:
        return Alone.UNTRIED, None
    interval = times_slower(suspects, sound(screening.causes, alone))
    half = math.exp(cause.slower / 2)
    if interval is None or not math.isfinite(interval.high) or interval.low <= half <= interval.high:
        return Alone.UNCLEAR, interval
    return (Alone.SLOW if interval.low > half else Alone.FAST), interval


def times_slower(suspects: Sequence[PairTiming], others: Sequence[PairTiming]) -> Interval | None:
    """How many times longer the suspects take than the others, from the repeats; None of too few."""
    if not suspects or not others:
        return None
    repeats = min(len(pair.seconds) for pair in (*suspects, *others))
    return ratio_interval(_by_repeat(suspects, repeats), _by_repeat(others, repeats))


def _by_repeat(pairs: Sequence[PairTiming], repeats: int) -> list[float]:
    return [median([pair.seconds[repeat] for pair in pairs]) for repeat in range(repeats)]


def _partnered(cause: Cause, pairs: Sequence[PairTiming], good: Sequence[PairTiming]) -> list[Pair]:
    """The node with some of those it met who have good pairs of their own, on each of its slow rails."""
    known = {(end, pair.rail) for pair in good for end in (pair.sender, pair.receiver)}
    (node,) = cause.ends
    on_rail = max(1, PARTNERS // len(cause.rails))
    found: list[Pair] = []
    for rail in cause.rails:
        met = [pair for pair in pairs if pair.rail == rail and pair.sender == node]
        partners = [pair.receiver for pair in met if (pair.receiver, rail) in known]
        found += [(min(node, partner), max(node, partner), rail) for partner in partners[:on_rail]]
    return found


def _apart(pairs: Sequence[PairTiming]) -> list[Pair]:
    """A few of the pairs, of nodes as different as can be."""
    chosen: list[Pair] = []
    used: set[str] = set()
    for again in (False, True):
        for pair in pairs:
            ends = (min(pair.sender, pair.receiver), max(pair.sender, pair.receiver), pair.rail)
            if len(chosen) < PARTNERS and ends not in chosen and (again or not used & {pair.sender, pair.receiver}):
                chosen.append(ends)
                used |= {pair.sender, pair.receiver}
    return chosen
