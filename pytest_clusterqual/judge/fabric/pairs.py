"""Pairs of nodes: how fast the slowest one is, what all of them at once cost, and whose link is slow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.pair_causes import LEAST_NODES, Screening, least_of, rates, screen
from pytest_clusterqual.judge.fabric.pair_findings import UNDECIDED, show_range, suspects
from pytest_clusterqual.judge.judgement import Case, applicable, judge_missing, judge_quantity
from pytest_clusterqual.judge.statistics import median, median_interval, ratio_interval
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.expected import expected_busbw
from pytest_clusterqual.model.fabric import FabricMeasurement, PairsMeasurement, PairTiming
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links

LEAST_REPEATS = 3


def judge_pairs(m: PairsMeasurement, plan: FabricPlan) -> tuple[Judgement, ...]:
    """Judge the slowest direction of the slowest pair (B/s), and contention: time at once / time alone - 1.

    Of several pairs that were tried alone the one with the most contention counts. Findings stand with
    the first judgement. Simulated nodes are measured, and none of them is accused.

    Raises:
        MeasurementError: a node, a direction, a repeat or a positive time is missing.
    """
    check(m.conditions, m.pairs)
    judged = [*_slowest_pair(m, plan), *_contention(m, plan)]
    found = () if m.conditions.simulated else _pointed_at(m.conditions, m.pairs)
    judged[0] = replace(judged[0], findings=found, reason=f"{judged[0].reason}; {_who_would_be_seen(m)}")
    return tuple(judged)


def worth_asking(m: FabricMeasurement, judgements: Iterable[Judgement]) -> bool:
    """True if a rate or time was missed, and pairs of nodes could tell whose link it is.

    They cannot if there are only two nodes, or if simulated nodes share one machine. On a loaded
    machine they can: a slow link is further off than that, and the finding says what the load was.
    """
    at = m.conditions
    several = at.group in ("world", "inter_node", "rails") and at.nodes >= LEAST_NODES and not at.simulated
    return several and any(map(_missed, judgements))


def point_at_links(m: FabricMeasurement, judgements: Iterable[Judgement]) -> tuple[Judgement, ...]:
    """The judgements; those that missed a rate or time say whose link is slow, or that nobody's stands out.

    Raises:
        MeasurementError: a node, a direction, a repeat or a positive time is missing.
    """
    if m.without_pairs:
        unknown = Finding(
            suspect="no node or link", kind=UNDECIDED, evidence=f"because pairs of nodes could not be asked: "
            f"{m.without_pairs}", check_next="the nodes that this names; else a larger launcher.job_timeout",
            level="note",
        )  # fmt: skip
        return tuple(replace(j, findings=(unknown, *j.findings)) if _missed(j) else j for j in judgements)
    check(m.conditions, m.pairs)
    findings = _pointed_at(m.conditions, m.pairs)
    size, seen = units.show(m.pairs[0].bytes, units.BYTES), show_range(rates(_at_work(m.pairs)).values())
    note = f"; pairs of nodes exchange {size} at {seen}: no single node or link stands out"
    return tuple(
        replace(j, findings=findings + j.findings, reason=j.reason + ("" if findings else note)) if _missed(j) else j
        for j in judgements
    )


def check(conditions: Conditions, pairs: Sequence[PairTiming]) -> None:
    """Every node has partners, every pair both directions, all with as many times of the same message.

    Raises:
        MeasurementError: it names the nodes and what is missing.
    """
    if not pairs:
        raise MeasurementError("fabric: pairs of nodes: none exchanged anything")
    known, met = set(conditions.rank_nodes), [(pair.sender, pair.receiver, pair.rail) for pair in _at_work(pairs)]
    if missing := sorted(known - {receiver for _, receiver, _ in met}):
        raise MeasurementError(f"fabric: pairs of nodes: {', '.join(missing)} received nothing")
    if twice := next((pair for pair in met if met.count(pair) > 1), None) if len(set(met)) < len(met) else None:
        raise MeasurementError(f"fabric: from {twice[0]} to {twice[1]}: this pair is there twice")
    back = {(receiver, sender, rail) for sender, receiver, rail in met}
    first = _at_work(pairs)[0]
    for pair in pairs:
        where = f"fabric: from {pair.sender} to {pair.receiver}"
        if pair.sender == pair.receiver or not known.issuperset((pair.sender, pair.receiver)):
            raise MeasurementError(f"{where}: this is no pair of the nodes")
        if not pair.alone and (pair.sender, pair.receiver, pair.rail) not in back:
            raise MeasurementError(f"{where}: the other direction is missing")
        if pair.bytes != first.bytes or pair.bytes <= 0:
            raise MeasurementError(f"{where}: got messages of {pair.bytes} B, want {first.bytes} B as at first")
        # What is tried alone in a second round has repeats of its own number.
        wanted = LEAST_REPEATS if pair.alone else max(LEAST_REPEATS, len(first.seconds))
        if len(pair.seconds) < wanted or (len(pair.seconds) > wanted and not pair.alone):
            raise MeasurementError(f"{where}: got {len(pair.seconds)} repeats, want {wanted} as of all")
        if wrong := [seconds for seconds in pair.seconds if not math.isfinite(seconds) or seconds <= 0]:
            raise MeasurementError(f"{where}: got a time of {wrong[0]} s, want one above 0")


def _slowest_pair(m: PairsMeasurement, plan: FabricPlan) -> list[Judgement]:
    at_work = _at_work(m.pairs)
    worst = max(at_work, key=lambda pair: median(pair.seconds))
    samples = tuple(worst.bytes / seconds for seconds in worst.seconds)
    on_rail = f" on rail {worst.rail}" if len({pair.rail for pair in at_work}) > 1 else ""
    case = Case(
        quantity="pair_busbw",
        label=units.show(worst.bytes, units.BYTES),
        value=median(samples),
        unit=units.RATE,
        interval=median_interval(samples),
        timing=True,
        load=m.conditions.load,
        samples=samples,
        counted="repeats",
        note=f"from {worst.sender} to {worst.receiver}{on_rail}, the slowest of {len(at_work)} exchanges at once",
    )
    required = applicable(plan.require, "fabric", "pair_busbw", m.conditions, size=worst.bytes)
    return [_held_against(case, requirement, m, plan) for requirement in required] or [judge_quantity(case)]


def _held_against(case: Case, requirement: Requirement, m: PairsMeasurement, plan: FabricPlan) -> Judgement:
    if not requirement.of_expected:
        return judge_quantity(case, requirement)
    promised, found = (_of_one_rank(links, m.conditions) for links in (plan.links, m.links))
    expected = expected_busbw("send_recv", ((0, 1),), ("one", "other"), promised=promised, found=found)
    if expected.value is None:
        return judge_missing(case.quantity, case.label, case.unit, expected.why, requirement)
    return judge_quantity(case, requirement.resolved(expected.value), expected_from=expected.why)


def _of_one_rank(links: Links, conditions: Conditions) -> Links:
    """What a rank has while its node's other ranks are idle: the NICs that are its own."""
    return replace(links, nics_per_node=max(links.nics_per_node // conditions.nproc_per_node, 1))


def _contention(m: PairsMeasurement, plan: FabricPlan) -> list[Judgement]:
    found = _contended(m.pairs)
    if not found:
        return []
    pair, interval = max(found, key=lambda of: of[1].low + of[1].high)
    once = next(p for p in _at_work(m.pairs) if _key(p) == _key(pair))
    ratios = tuple(slow / fast - 1 for slow, fast in zip(once.seconds, pair.seconds, strict=True))
    value = median(once.seconds) / median(pair.seconds) - 1
    case = Case(
        quantity="contention",
        label=units.show(pair.bytes, units.BYTES),
        value=value,
        unit=units.RATIO,
        interval=interval,
        timing=True,
        load=m.conditions.load,
        samples=ratios,
        counted="repeats",
        note=f"from {pair.sender} to {pair.receiver}, the most of {len(found)} exchanges that were also tried alone: "
        "time at once / time alone - 1",
    )
    required = applicable(plan.require, "fabric", "contention", m.conditions, size=pair.bytes)
    return [judge_quantity(case, requirement) for requirement in required] or [judge_quantity(case)]


def _contended(pairs: Iterable[PairTiming]) -> list[tuple[PairTiming, Interval]]:
    """The pairs that were alone and among the others in turn, with the contention of each.

    Those have as many repeats of both; what a second round tried alone has others, at another time.
    """
    listed = list(pairs)
    at_work = {_key(pair): pair for pair in _at_work(listed)}
    alone: dict[tuple[str, str, int], PairTiming] = {}
    for pair in listed:
        once = at_work.get(_key(pair))
        if pair.alone and once is not None and len(once.seconds) == len(pair.seconds):
            alone.setdefault(_key(pair), pair)
    found = []
    for key, pair in alone.items():
        interval = ratio_interval(at_work[key].seconds, pair.seconds)
        if interval is not None:
            found.append((pair, replace(interval, low=interval.low - 1, high=interval.high - 1)))
    return found


def _pointed_at(conditions: Conditions, pairs: Sequence[PairTiming]) -> tuple[Finding, ...]:
    """Who is slow, with the load that was on the machines; and that all are slower at once, if each tried pair is."""
    least = least_of(conditions)
    found = list(suspects(pairs, least=least))
    contended = _contended(pairs)
    if contended and all(interval.low > least for _, interval in contended):
        pair, interval = min(contended, key=lambda of: of[1].low)
        found.append(Finding(
            suspect="all pairs at once",
            kind="contention",
            evidence=f"each of {len(contended)} exchanges takes longer while all nodes are at work, the least by "
            f"{units.show_share(interval.low)} to {units.show_share(interval.high)}",
            check_next="whether the switches' uplinks are meant to carry all nodes at once; then buffers, flow control "
            "and what else is on this network",
            level="note",
            size=pair.bytes,
            interval=replace(interval, low=interval.low + 1, high=interval.high + 1),
        ))  # fmt: skip
    load = conditions.load
    if load is None or not load.heavy:
        return tuple(found)
    told = f"; meanwhile other work took {units.show_share(load.other_cpu)} of {load.node}'s cores"
    return tuple(replace(finding, evidence=finding.evidence + told) for finding in found)


def _who_would_be_seen(m: PairsMeasurement) -> str:
    seen: Screening = screen(m.pairs, least=least_of(m.conditions))
    if m.conditions.simulated:
        return "these nodes are simulated: none is accused"
    if not math.isfinite(seen.node_seen):
        return f"cannot be decided who is slow, because {m.conditions.nodes} nodes have too few partners to compare"
    return (
        f"a node {units.show_share(seen.node_seen)} slower than the others would have been seen, "
        f"a link {units.show_share(seen.link_seen)} slower"
    )


def _at_work(pairs: Iterable[PairTiming]) -> list[PairTiming]:
    return [pair for pair in pairs if not pair.alone]


def _key(pair: PairTiming) -> tuple[str, str, int]:
    return pair.sender, pair.receiver, pair.rail


def _missed(judgement: Judgement) -> bool:
    return judgement.verdict in (Verdict.FAIL, Verdict.UNDECIDED) and judgement.unit in (units.RATE, units.SECONDS)
