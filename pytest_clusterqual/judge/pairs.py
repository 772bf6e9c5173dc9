"""Whose link is slow: what pairs of nodes tell after a collective over all of them was too slow."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.measurement import FabricMeasurement, PairTiming
from pytest_clusterqual.model.record import Finding, Judgement, Verdict

SLOW = 2.0  # times slower than the pairs of the others; repeats of one pair that differ by more raise it
LEAST_REPEATS = 3
UNEXPLAINED = 0.1  # share of the others' pairs that may be slow beside the suspects'
_MISSED = (Verdict.FAIL, Verdict.UNDECIDED)
_DIRECTIONS = {"sends": "sent by", "receives": "received by"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """B/s from sender to receiver. `bar` is what a pair of nodes must reach not to be slow."""

    size: str
    directed: Mapping[tuple[str, str], float]
    bar: float


def worth_asking(m: FabricMeasurement, judgements: Iterable[Judgement]) -> bool:
    """True if a rate or time was missed that pairs of nodes could explain.

    They cannot where two nodes are all there is, where simulated nodes share one machine, and
    where other work keeps a machine busy.
    """
    at = m.conditions
    loaded = at.load is not None and at.load.heavy
    several = at.group in ("world", "inter_node") and at.nodes > 2 and not at.simulated
    return several and not loaded and any(map(_missed, judgements))


def point_at_links(m: FabricMeasurement, judgements: Sequence[Judgement]) -> tuple[Judgement, ...]:
    """The judgements, those that missed a rate or time with whose link is slow, or that nobody stands out.

    Raises:
        MeasurementError: a direction, a repeat or a positive time is missing; it names the nodes.
    """
    _check(m.pairs)
    findings = suspects(m.pairs)
    note = "" if findings else f"; {_nobody(m.pairs)}"
    return tuple(
        replace(j, findings=findings + j.findings, reason=j.reason + note) if _missed(j) else j for j in judgements
    )


def _missed(judgement: Judgement) -> bool:
    return judgement.verdict in _MISSED and judgement.unit in (units.RATE, units.SECONDS)


def suspects(pairs: Sequence[PairTiming]) -> tuple[Finding, ...]:
    """The nodes (less than half of them) whose pairs are slow, else the only pair that is; nothing if unclear.

    A pair is as fast as its slower direction. Which nodes are slow is held against the pairs of
    the fastest majority alone: with one slow node of three, most pairs are slow.
    """
    directed = {(pair.sender, pair.receiver): pair.bytes / median(pair.seconds) for pair in pairs}
    both = {(a, b): min(rate, directed[b, a]) for (a, b), rate in directed.items() if a < b}
    of: dict[str, list[float]] = {}
    for ends, rate in both.items():
        for node in ends:
            of.setdefault(node, []).append(rate)
    fastest = sorted(of, key=lambda node: median(of[node]), reverse=True)
    majority = set(fastest[: len(of) // 2 + 1])
    typical = median([rate for ends, rate in both.items() if majority.issuperset(ends)])
    rates = Rates(
        size=units.show(pairs[0].bytes, units.BYTES),
        directed=directed,
        bar=typical / max(SLOW, _repeats_differ(pairs)),
    )
    # All pairs of a slow node are slow; one may have been lucky, if two are left then.
    slow = [node for node, own in of.items() if sum(r < rates.bar for r in own) >= max(2, len(own) - 1)]
    others = {ends: rate for ends, rate in both.items() if not set(ends) & set(slow)}
    unexplained = [ends for ends, rate in others.items() if rate < rates.bar]
    if slow and len(unexplained) <= UNEXPLAINED * len(others):
        return tuple(_slow_node(node, slow, rates) for node in sorted(slow))
    if not slow and len(unexplained) == 1:
        return (_slow_pair(*unexplained[0], rates),)
    return ()
