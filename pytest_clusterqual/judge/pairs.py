"""Whose link is slow: what pairs of nodes tell after a collective over all of them was too slow."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import geometric_mean

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.measurement import FabricMeasurement, Load, PairTiming
from pytest_clusterqual.model.record import Finding, Judgement, Verdict

SLOW = 2.0  # times slower than the pairs of the others; more where repeats of one pair differ by more
LEAST_REPEATS = 3
UNEXPLAINED = 0.1  # the share of the others' pairs that may be slow as well

Ends = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """B/s from one node to another, with messages of `size`; a rate below `bar` is slow."""

    size: str
    directed: Mapping[Ends, float]
    bar: float


def worth_asking(m: FabricMeasurement, judgements: Iterable[Judgement]) -> bool:
    """True if a rate or time was missed, and pairs of nodes could tell whose link it is.

    They cannot if there are only two nodes, or if simulated nodes share one machine. On a loaded
    machine they can: a slow link is further off than that, and the finding says what the load was.
    """
    at = m.conditions
    several = at.group in ("world", "inter_node") and at.nodes > 2 and not at.simulated
    return several and any(map(_missed, judgements))


def point_at_links(m: FabricMeasurement, judgements: Iterable[Judgement]) -> tuple[Judgement, ...]:
    """The judgements; those that missed a rate or time say whose link is slow, or that nobody's stands out.

    Raises:
        MeasurementError: a node, a direction, a repeat or a positive time is missing.
    """
    _check(m)
    findings = tuple(replace(f, evidence=f.evidence + _loaded(m.conditions.load)) for f in suspects(m.pairs))
    size, seen = units.show(m.pairs[0].bytes, units.BYTES), _range(_directed(m.pairs).values())
    note = f"; pairs of nodes exchange {size} at {seen}: no single node or link stands out"
    return tuple(
        replace(j, findings=findings + j.findings, reason=j.reason + ("" if findings else note)) if _missed(j) else j
        for j in judgements
    )


def suspects(pairs: Sequence[PairTiming]) -> tuple[Finding, ...]:
    """The nodes (fewer than half) whose pairs are all slow, else the only pair that is; nothing if it is unclear.

    A pair is as fast as its slower direction. What is slow is told by the pairs within the fastest
    majority of nodes: with one slow node of three, two of three pairs are slow. A pair that is
    slow alone must be so in every repeat, for none of its neighbours bears witness.
    """
    directed = _directed(pairs)
    nodes = dict.fromkeys(pair.receiver for pair in pairs)
    both = {(a, b): min(directed[a, b], directed[b, a]) for a, b in combinations(nodes, 2) if (a, b) in directed}
    of: dict[str, list[float]] = {node: [] for node in nodes}
    for ends, rate in both.items():
        for node in ends:
            of[node].append(rate)
    fastest = sorted(nodes, key=lambda node: median(of[node]), reverse=True)
    majority = set(fastest[: len(nodes) // 2 + 1])
    typical = median([rate for ends, rate in directed.items() if majority.issuperset(ends)])
    rates = Rates(
        size=units.show(pairs[0].bytes, units.BYTES), directed=directed, bar=typical / max(SLOW, _repeats_differ(pairs))
    )
    # One of its pairs may have been lucky, if two are left that were not.
    slow = [node for node in nodes if sum(rate < rates.bar for rate in of[node]) >= max(2, len(of[node]) - 1)]
    others = {ends: rate for ends, rate in both.items() if not set(ends) & set(slow)}
    odd = [ends for ends, rate in others.items() if rate < rates.bar]
    if slow and len(odd) <= UNEXPLAINED * len(others):
        return tuple(_slow_node(node, slow, rates) for node in slow)
    at_best = _directed(pairs, min)
    always = [ends for ends in odd if min(at_best[ends], at_best[ends[::-1]]) < rates.bar]
    return (_slow_pair(always[0], rates),) if len(odd) == len(always) == 1 and not slow else ()


def _directed(pairs: Iterable[PairTiming], figure: Callable[[Sequence[float]], float] = median) -> dict[Ends, float]:
    return {(pair.sender, pair.receiver): pair.bytes / figure(pair.seconds) for pair in pairs}


def _repeats_differ(pairs: Iterable[PairTiming]) -> float:
    """How many times longer the slowest repeat of a pair takes than its fastest."""
    return geometric_mean(max(pair.seconds) / min(pair.seconds) for pair in pairs)


def _slow_node(node: str, slow: Sequence[str], rates: Rates) -> Finding:
    sent = [rate for (sender, _), rate in rates.directed.items() if sender == node]
    received = [rate for (_, receiver), rate in rates.directed.items() if receiver == node]
    others = [rate for ends, rate in rates.directed.items() if not set(ends) & set(slow)]
    way, evidence = _compared(rates, (node, f"each of {len(sent)} other nodes"), sent, received, others)
    shared = f"; first what {', '.join(slow)} share, such as a switch" if len(slow) > 1 else ""
    return Finding(
        suspect=node,
        kind="slow link of a node" + {"both": "", "forth": ", sending", "back": ", receiving"}[way],
        evidence=evidence,
        check_next="its NIC, cable and switch port: negotiated rate, duplex and errors, by `ethtool` or `ibstat` "
        f"there{shared}",
    )


def _slow_pair(ends: Ends, rates: Rates) -> Finding:
    (a, b), back = ends, ends[::-1]
    others = [rate for other, rate in rates.directed.items() if other not in (ends, back)]
    way, evidence = _compared(rates, ends, [rates.directed[ends]], [rates.directed[back]], others)
    return Finding(
        suspect={"both": f"{a} - {b}", "forth": f"{a} -> {b}", "back": f"{b} -> {a}"}[way],
        kind="slow link between two nodes",
        evidence=evidence,
        check_next="the way between these two, for each is fast with others: uplinks, routes, cables of the switches",
    )


def _compared(
    rates: Rates, ends: Ends, forth: Sequence[float], back: Sequence[float], others: Sequence[float]
) -> tuple[str, str]:
    """Which way it is slow (forth, back or both) and the figures for it."""
    (a, b), slow = ends, (median(forth) < rates.bar, median(back) < rates.bar)
    if slow == (True, False):
        way, told = "forth", f"from {a} to {b}: {_range(forth)}, the other way {_range(back)}"
    elif slow == (False, True):
        way, told = "back", f"from {b} to {a}: {_range(back)}, the other way {_range(forth)}"
    else:
        way, told = "both", f"between {a} and {b}: {_range([*forth, *back])}"
    return way, f"{rates.size} {told}; elsewhere {_range(others)}"


def _range(rates: Collection[float]) -> str:
    low, high = units.show(min(rates), units.RATE), units.show(max(rates), units.RATE)
    if low == high:
        return high
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} to {high}"


def _loaded(load: Load | None) -> str:
    if load is None or not load.heavy:
        return ""
    return f"; meanwhile other work took {units.show_share(load.other_cpu)} of {load.node}'s cores"


def _missed(judgement: Judgement) -> bool:
    return judgement.verdict in (Verdict.FAIL, Verdict.UNDECIDED) and judgement.unit in (units.RATE, units.SECONDS)


def _check(m: FabricMeasurement) -> None:
    """Every node has partners, every pair both directions, all with as many times of the same message."""
    known, met = set(m.conditions.rank_nodes), Counter((pair.sender, pair.receiver) for pair in m.pairs)
    if missing := sorted(known - {receiver for _, receiver in met}):
        raise MeasurementError(f"fabric: pairs of nodes: {', '.join(missing)} received nothing")
    for pair in m.pairs:
        where = f"fabric: from {pair.sender} to {pair.receiver}"
        ends = (pair.sender, pair.receiver)
        if ends[0] == ends[1] or not known.issuperset(ends) or met[ends] > 1:
            raise MeasurementError(f"{where}: this is no pair of the nodes, or it is there twice")
        if ends[::-1] not in met:
            raise MeasurementError(f"{where}: the other direction is missing")
        if pair.bytes != m.pairs[0].bytes or pair.bytes <= 0:
            raise MeasurementError(f"{where}: got messages of {pair.bytes} B, want {m.pairs[0].bytes} B as at first")
        if len(pair.seconds) < LEAST_REPEATS:
            raise MeasurementError(f"{where}: got {len(pair.seconds)} repeats, want at least {LEAST_REPEATS}")
        if wrong := [seconds for seconds in pair.seconds if not math.isfinite(seconds) or seconds <= 0]:
            raise MeasurementError(f"{where}: got a time of {wrong[0]} s, want one above 0")
