"""Fabric: one collective in one kind of rank group, judged at every message size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.judge.fabric import curve
from pytest_clusterqual.judge.fabric.contention import contention
from pytest_clusterqual.judge.fabric.figures import OF_A_SIZE, Sweep, sweep_of
from pytest_clusterqual.judge.fabric.findings import contended
from pytest_clusterqual.judge.fabric.level import judge_at_level
from pytest_clusterqual.judge.fabric.pairs import point_at_links
from pytest_clusterqual.judge.fabric.sweeps import Size, size_label
from pytest_clusterqual.judge.fabric.waits import EVERYBODY_WAITS, rank_waits
from pytest_clusterqual.judge.judgement import Case, judge_missing, judge_quantity, rank_name
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.fabric import FabricMeasurement
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement

NO_WRONG = Requirement(
    criterion="fabric",
    quantity="wrong_elements",
    op="<=",
    value=0.0,
    unit=units.RATIO,
    text="<= 0",
    source="always: wrong data is no bandwidth",
)


def judge_fabric(m: FabricMeasurement, plan: FabricPlan) -> tuple[Judgement, ...]:
    """Judge the correctness of the results, then every size, then the curve and what groups take from each other.

    A sample is as slow as the slowest rank of the slowest group; a round is the median of its
    samples, because only rounds are independent of each other. At every size one judgement for
    each requirement on busbw and algbw (B/s) and latency (s), and the share of the time that was
    wait; what nothing is required of is MEASURED. Pairs of nodes, where they were asked for, say
    whose link is slow.

    Raises:
        MeasurementError: a rank, a round, a size or a positive time is missing; it names rank and size.
    """
    sweep = sweep_of(m, plan)
    judgements = [_correctness(m)]
    for size in sweep.sizes:
        judgements += judge_size(sweep, size)
        judgements += _judge_wait(sweep, size) if sweep.waited else ()
    judgements += () if sweep.waited else _no_wait(sweep)
    judgements += [*judge_curve(sweep, "alpha"), *judge_curve(sweep, "plateau"), *_judge_contention(sweep, m)]
    return point_at_links(m, judgements) if m.pairs or m.without_pairs else tuple(judgements)


def judge_size(sweep: Sweep, size: Size) -> list[Judgement]:
    """One judgement for each requirement on a figure of one size; busbw is MEASURED without any."""

    def judged(quantity: str, requirement: Requirement | None) -> Judgement:
        seen = median_interval(sweep.rounds(size, quantity, with_wait=True))
        return judge_at_level(_case(sweep, size, quantity), requirement, sweep.levels[quantity], seen=seen)

    required = [(quantity, r) for quantity in OF_A_SIZE for r in sweep.required(quantity, size)]
    return [judged(quantity, r) for quantity, r in required] or [judged("busbw", None)]


def _case(sweep: Sweep, size: Size, quantity: str) -> Case:
    rounds, unit = sweep.rounds(size, quantity), QUANTITIES["fabric"][quantity]
    groups = {len(group.members) for group in size.groups}
    note = f"{sweep.collective} of {size.label}, groups of {' or '.join(map(str, sorted(groups)))} ranks, {sweep.told}"
    if sweep.waited:
        note += f"; with wait {units.show(median(sweep.rounds(size, quantity, with_wait=True)), unit)}"
    return Case(
        quantity=quantity,
        label=size.label,
        value=median(rounds),
        unit=unit,
        interval=median_interval(rounds),
        timing=True,
        load=sweep.at.load,
        samples=rounds,
        counted=sweep.counted,
        per_rank={
            str(rank): sweep.figure(group, quantity, seconds)
            for group in size.groups
            for rank, seconds in group.ranks.items()
        },
        findings=sweep.findings.get(size.bytes, ()),
        note=note,
    )


def _judge_wait(sweep: Sweep, size: Size) -> Sequence[Judgement]:
    """The share of the slowest rank's time that most ranks spent waiting; the worst group counts."""
    rounds = tuple(max(shares) for shares in zip(*sweep.waited[size.bytes], strict=True))
    case = Case(
        quantity="wait",
        label=size.label,
        value=median(rounds),
        unit=units.RATIO,
        interval=median_interval(rounds),
        timing=True,
        load=sweep.at.load,
        samples=rounds,
        counted="rounds",
        per_rank={str(rank): share for group in size.groups for rank, share in rank_waits(group).items()},
        findings=sweep.findings.get(size.bytes, ()),
        note="share of the slowest rank's time that most ranks waited for the last one to come",
    )
    return [judge_quantity(case, r) for r in sweep.required("wait", size)] or [judge_quantity(case)]


def _no_wait(sweep: Sweep) -> list[Judgement]:
    why = (
        "single calls were not timed"
        if sweep.collective in EVERYBODY_WAITS
        else f"in {sweep.collective} not everybody waits for everybody, so durations do not tell who came late"
    )
    required = [(size.label, r) for size in sweep.sizes for r in sweep.required("wait", size)]
    return [judge_missing("wait", label, units.RATIO, why, r) for label, r in required] or [
        judge_missing("wait", "", units.RATIO, why)
    ]


def judge_curve(sweep: Sweep, quantity: str) -> list[Judgement]:
    """One end of the curve: alpha (s) or plateau (B/s)."""
    fit, of = {"alpha": (curve.alpha, "latency"), "plateau": (curve.plateau, "busbw")}[quantity]

    def end(*, with_wait: bool) -> curve.End:
        return fit([s.bytes for s in sweep.sizes], [sweep.rounds(s, of, with_wait=with_wait) for s in sweep.sizes])

    found, unit, required = end(with_wait=False), QUANTITIES["fabric"][quantity], sweep.required(quantity)
    if not found.rounds:
        return [judge_missing(quantity, "", unit, found.why, r) for r in required or (None,)]
    case = Case(
        quantity=quantity,
        label="",
        value=median(found.rounds),
        unit=unit,
        interval=median_interval(found.rounds),
        timing=True,
        load=sweep.at.load,
        samples=found.rounds,
        counted=sweep.counted,
        note=f"{sweep.collective}, from {' and '.join(map(size_label, found.at))}" if len(found.at) < 3
        else f"{sweep.collective}, from {len(found.at)} sizes {size_label(found.at[0])} to {size_label(found.at[-1])}",
    )  # fmt: skip
    level, seen = sweep.levels[of], median_interval(end(with_wait=True).rounds)
    return [judge_at_level(case, r, level, seen=seen) for r in required or (None,)]


def _judge_contention(sweep: Sweep, m: FabricMeasurement) -> list[Judgement]:
    """What the group that loses most takes longer among all groups than alone."""
    found = contention(m, sweep.sizes)
    judged = []
    for each in found:
        case = Case(
            quantity="contention",
            label=each.size.label,
            value=each.kappa,
            unit=units.RATIO,
            interval=each.interval,
            timing=True,
            load=sweep.at.load,
            samples=each.pairs,
            counted="pairs of rounds",
            per_rank={str(rank): kappa for rank, kappa in each.of_ranks.items()},
            note=f"time among all {len(each.size.groups)} groups at once / time alone - 1, the group that loses most",
        )
        judgements = [judge_quantity(case, r) for r in sweep.required("contention", each.size)]
        judged += [contended(sweep.at, each, j) for j in judgements or [judge_quantity(case)]]
    why = "there is one group only" if len(sweep.sizes[0].groups) < 2 else "no two ways were measured at such a size"
    answered = [r for each in found for r in sweep.required("contention", each.size)]
    asked = dict.fromkeys(r for size in sweep.sizes for r in sweep.required("contention", size))
    return judged + [judge_missing("contention", "", units.RATIO, why, r) for r in asked if r not in answered]


def _correctness(m: FabricMeasurement) -> Judgement:
    """FAIL by any wrong element; none is no PASS either, because nobody required a speed by that."""
    per_rank: dict[int, int] = {}
    sizes: set[int] = set()
    results = [r for ranks in (*m.rounds, *m.alone) for r in ranks if r.group_size]
    checks = sum(len(r.timings) for r in results)
    for r in results:
        per_rank[r.rank] = per_rank.get(r.rank, 0) + sum(t.wrong for t in r.timings)
        sizes.update(t.bytes for t in r.timings if t.wrong)
    total = sum(per_rank.values())
    culprits = [rank for rank, wrong in sorted(per_rank.items()) if wrong]
    finding = Finding(
        suspect=", ".join(rank_name(m.conditions, rank) for rank in culprits),
        kind="wrong data",
        evidence=f"{total} wrong elements received, at {', '.join(size_label(size) for size in sorted(sizes))}",
        check_next="the senders of these ranks as well: memory errors, library versions, link error counters",
    )
    case = Case(
        quantity="wrong_elements",
        label="",
        value=float(total),
        unit=units.RATIO,
        timing=False,
        interval=Interval(low=total, high=total, kind="count", samples=checks),
        per_rank={str(rank): float(wrong) for rank, wrong in sorted(per_rank.items())},
        findings=(finding,) if total else (),
    )
    judgement = judge_quantity(case, NO_WRONG)
    return (
        judgement
        if total
        else replace(
            judgement,
            verdict=Verdict.MEASURED,
            requirement=None,
            margin=None,
            reason=f"no wrong element was received in {checks} checked results",
        )
    )
