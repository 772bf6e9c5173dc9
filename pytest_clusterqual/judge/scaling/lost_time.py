"""What to look at where more nodes save less time than they should."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_clusterqual import units
from pytest_clusterqual.judge.judgement import rank_name
from pytest_clusterqual.judge.scaling.runs import Point
from pytest_clusterqual.judge.statistics import median, ratio_interval
from pytest_clusterqual.judge.step.apart import RESOLUTION, Apart
from pytest_clusterqual.judge.step.ladder import expected_slowest
from pytest_clusterqual.judge.step.waiting_causes import causes
from pytest_clusterqual.model.record import Finding

STALLED = 2.0  # times what the rank that waits least for its data needs
CHECKS = {
    "compute loss": "what every rank does whatever its share of the batch, such as the optimizer's step; microbatches "
    "too small for the device; clocks of the nodes that only the larger point has",
    "exposed transfer": "Fabric of the groups this layout uses, and what it exchanges in a step (clusterqual plan)",
    "wait": "the rank that is slow, where one is named; else what makes single steps of any rank late",
    "pipeline bubble": "more microbatches a step, or a schedule that interleaves stages",
    "data stall": "the storage that the data are read from, and whether they can be read ahead",
    "residual": "single long steps, and what else ran meanwhile; measure again",
}


def findings(point: Point, apart: Apart | None, parts: Mapping[str, float]) -> tuple[Finding, ...]:
    """The largest part, why ranks wait if they do, and who waits for data."""
    resolved = RESOLUTION * median(point.step_times)
    found = [*_largest(apart, parts, resolved), *_stalls(point, resolved)]
    if apart is not None and max(apart.wait, 0.0) > resolved:
        found += _causes(apart)
    return tuple(found)


def _largest(apart: Apart | None, parts: Mapping[str, float], resolved: float) -> Iterator[Finding]:
    """The part to look at first; none where the runs and the step taken apart do not agree on how long it takes."""
    lost, rest = sum(parts.values()), parts["residual"]
    name = max(parts.keys() - {"residual"}, key=parts.__getitem__)
    if lost <= resolved:
        return
    shown = units.show(lost, units.SECONDS)
    if abs(rest) > max(resolved, parts[name] / 2):
        if apart is not None:
            differ = f"{units.show(abs(rest), units.SECONDS)} {'more' if rest > 0 else 'less'}"
            evidence = (
                f"cannot be decided, because the runs took {differ} a step than the step taken apart, where {shown}"
            )
            yield _note(f"{evidence} are lost", CHECKS["residual"])
    elif parts[name] > resolved:
        share = units.show_share(parts[name] / lost)
        evidence = f"{name}: {units.show(parts[name], units.SECONDS)}, {share} of the lost {shown}"
        yield _note(evidence, CHECKS[name])


def _note(evidence: str, check_next: str) -> Finding:
    return Finding(suspect="the step", kind="lost time", level="note", evidence=evidence, check_next=check_next)


def _stalls(point: Point, resolved: float) -> Iterator[Finding]:
    """Ranks that wait for their data far longer than the one that waits least; all, where they do so alike."""
    waits = point.per_rank(lambda rank: rank.data_seconds)
    slow = {rank: seconds for rank, seconds in waits.items() if seconds > resolved}
    if not slow:
        return
    least = min(waits.values())
    some = {rank: seconds for rank, seconds in slow.items() if seconds > STALLED * least}
    names = [rank_name(point.runs[0].conditions, rank) for rank in some]
    most = units.show(max(slow.values()), units.SECONDS)
    yield Finding(
        suspect=", ".join(names) or "all ranks", kind="data stall",
        evidence=f"waits up to {most} a step for data"
        + (f", the rank that waits least {units.show(least, units.SECONDS)}" if names else ", as every rank does"),
        check_next=CHECKS["data stall"],
    )  # fmt: skip


def _causes(apart: Apart) -> tuple[Finding, ...]:
    ladder, typical = apart.ladder, apart.ladder.rounds["compute"]
    predicted = expected_slowest(ladder.compute) / median(typical)
    return causes(ladder, ratio_interval(apart.held, typical) if apart.barriers else None, predicted)
