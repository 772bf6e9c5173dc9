"""Fabric by the word of another tool: the requirements of a sweep, applied to runs of nccl-tests.

Such a run tells one average for each size, so a run is one sample, whatever it averaged over.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.figures import OF_A_SIZE, Sweep
from pytest_clusterqual.judge.fabric.findings import sweep_findings
from pytest_clusterqual.judge.fabric.level import level_of
from pytest_clusterqual.judge.fabric.sweeps import GroupTimes, Size, size_label
from pytest_clusterqual.judge.fabric.verdict import NO_WRONG, judge_curve, judge_size
from pytest_clusterqual.judge.judgement import Case, judge_missing, judge_quantity
from pytest_clusterqual.judge.statistics import median, minimum_samples
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.model.fabric import ReportedMeasurement, ReportedSweep, ReportedTiming
from pytest_clusterqual.model.groups import Groups, groups_of
from pytest_clusterqual.model.project import FabricPlan
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES


def judge_reported(m: ReportedMeasurement, plan: FabricPlan) -> tuple[Judgement, ...]:
    """Judge the correctness of the results, then every size and the curve, as in `judge_fabric`.

    Fewer than six runs give no interval, and no verdict but of wrong elements.

    Raises:
        MeasurementError: runs of different sizes, a time that is missing or not above 0, a group
            without runs or of one rank; it names source and size.
    """
    sweep = _sweep(m, plan)
    judgements = [_correctness(m)]
    for size in sweep.sizes:
        judgements += judge_size(sweep, size)
    judgements += [*judge_curve(sweep, "alpha"), *judge_curve(sweep, "plateau"), *_untold(sweep, m.tool)]
    return tuple(judgements)


def _sweep(m: ReportedMeasurement, plan: FabricPlan) -> Sweep:
    groups, at = _groups(m), m.conditions
    runs = [[sweep for sweep in m.sweeps if sweep.group == index] for index in range(len(groups))]
    count = len(runs[0])
    if not count or any(len(each) != count for each in runs) or count * len(runs) != len(m.sweeps):
        times = ", ".join(str(len(each)) for each in runs)
        raise MeasurementError(
            f"fabric: {m.tool} was run {times} times in the {len(groups)} groups, want as often in each"
        )
    sizes = _sizes(m, groups, runs)
    more = minimum_samples() - count
    needed = f"; {more} more such run{'s are' if more > 1 else ' is'} needed for an interval" if more > 0 else ""
    return Sweep(
        at=at, plan=plan, sizes=sizes, waited={}, findings=sweep_findings(at, sizes, {}), counted="runs",
        told=f"as {m.tool} reports, the slower of out of place and in place{needed}",
        levels={quantity: level_of(at, groups, plan, found=m.links, quantity=quantity) for quantity in OF_A_SIZE},
    )  # fmt: skip


def _groups(m: ReportedMeasurement) -> Groups:
    at = m.conditions
    try:
        groups = groups_of(at.group or "", at.rank_nodes, nproc_per_node=at.nproc_per_node)
        busbw_factor(at.collective or "", min(map(len, groups)))
    except ValueError as error:
        raise MeasurementError(f"fabric: {at.collective} in group {at.group} by {m.tool}: {error}") from None
    return groups


def _sizes(m: ReportedMeasurement, groups: Groups, runs: Sequence[Sequence[ReportedSweep]]) -> tuple[Size, ...]:
    first = m.sweeps[0]
    if not first.timings:
        raise MeasurementError(f"fabric: {first.source}: {m.tool} reported no size")
    for sweep in m.sweeps:
        if [t.bytes for t in sweep.timings] != [t.bytes for t in first.timings]:
            raise MeasurementError(f"fabric: {sweep.source}: its sizes are not those of {first.source}")
    return tuple(
        Size(
            bytes=timing.bytes,
            groups=tuple(
                _times(group, timing.bytes, [_slower(sweep, sweep.timings[index]) for sweep in each])
                for group, each in zip(groups, runs, strict=True)
            ),
        )
        for index, timing in enumerate(first.timings)
    )


def _times(group: tuple[int, ...], size: int, seconds: Sequence[float]) -> GroupTimes:
    """The tool has one time for all ranks of a group."""
    return GroupTimes(
        members=group, bytes=size, rounds=tuple((s,) for s in seconds), ranks=dict.fromkeys(group, median(seconds)),
        calls=((),) * len(seconds),
    )  # fmt: skip


def _slower(sweep: ReportedSweep, timing: ReportedTiming) -> float:
    told = [seconds for seconds in (timing.seconds, timing.seconds_in_place) if seconds is not None]
    if timing.bytes <= 0 or not told or not all(math.isfinite(seconds) and seconds > 0 for seconds in told):
        times = " and ".join(f"{seconds} s" for seconds in told) or "no time"
        raise MeasurementError(f"fabric: {sweep.source}: got {times} for {timing.bytes} bytes, want times above 0")
    return max(told)


def _untold(sweep: Sweep, tool: str) -> Iterator[Judgement]:
    """What is required but cannot be had from one average for each size: UNDECIDED, never left out."""
    for quantity in ("wait", "contention"):
        for requirement in dict.fromkeys(r for size in sweep.sizes for r in sweep.required(quantity, size)):
            why = f"{tool} does not tell it; measure it with fabric.engine: torch"
            missing = judge_missing(quantity, "", QUANTITIES["fabric"][quantity], why, requirement)
            yield replace(missing, verdict=Verdict.UNDECIDED)


def _correctness(m: ReportedMeasurement) -> Judgement:
    """FAIL by any wrong element; none is no PASS either, and unchecked results are said to be so."""
    total = sum(max(sum(t.wrong or 0 for t in sweep.timings), sweep.out_of_bounds) for sweep in m.sweeps)
    timings = [timing for sweep in m.sweeps for timing in sweep.timings]
    checks = sum(timing.wrong is not None for timing in timings)
    case = Case(
        quantity="wrong_elements", label="", value=float(total), unit=units.RATIO, timing=False,
        interval=Interval(low=total, high=total, kind="count", samples=checks),
        findings=(_wrong_data(m, total),) if total else (),
    )  # fmt: skip
    judgement = judge_quantity(case, NO_WRONG)
    if total:
        return judgement
    checked = f"no wrong element was reported in {checks} checked results"
    unchecked = f"{len(timings) - checks} of {len(timings)} results were not checked (N/A): run the tool with -c 1"
    reason = "; ".join([checked] * bool(checks) + [unchecked] * (checks < len(timings)))
    return replace(judgement, verdict=Verdict.MEASURED, requirement=None, margin=None, reason=reason)


def _wrong_data(m: ReportedMeasurement, total: int) -> Finding:
    sizes = sorted({timing.bytes for sweep in m.sweeps for timing in sweep.timings if timing.wrong})
    runs = [sweep.source for sweep in m.sweeps if sweep.out_of_bounds or any(t.wrong for t in sweep.timings)]
    where = f"at {', '.join(map(size_label, sizes))}" if sizes else "at sizes that the tool does not name"
    versions = ", ".join(f"{name} {version}" for name, version in m.conditions.versions.items())
    return Finding(
        suspect=f"the ranks of {m.tool}", kind="wrong data",
        evidence=f"{total} wrong elements in {len(runs)} of {len(m.sweeps)} runs, {where} ({', '.join(runs)})",
        check_next=f"memory errors and link error counters of all nodes, and another version of the library "
        f"({versions or 'not told'})",
    )  # fmt: skip
