"""Memory: the highest peak of any rank in any step, and what is left on the fullest device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import Case, applicable, check_ranks, judge_each, judge_missing, rank_name
from pytest_clusterqual.judge.statistics import median
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement

IMBALANCE = 1.05  # above the median of the other ranks
GROWTH = 1.02  # from one step to the next; a buffer that gloo lets go of a moment later makes about 1 % of a small job
FRAGMENTATION = 1.25  # reserved by the allocator over what tensors held of it


def judge_memory(m: MemoryMeasurement, requirements: Iterable[Requirement]) -> tuple[Judgement, ...]:
    """Judge `peak` (bytes, over ranks and steps) and `headroom` (share of the limit, over ranks).

    Raises:
        MeasurementError: a rank, a step, a peak or a finite loss is missing.
    """
    requirements = tuple(requirements)
    if m.out_of_memory:
        return tuple(_out_of_memory(m, requirements))
    _check(m)
    required = {
        quantity: applicable(requirements, "memory", quantity, m.conditions) for quantity in QUANTITIES["memory"]
    }
    peak = judge_each(_peak(m, ""), required["peak"])
    if m.unknown and any(not r.device_used for r in m.ranks):
        why = "what lies on the device beside torch's own memory is not known of this job"
        missing = required["headroom"] or (None,)
        return (*peak, *(judge_missing("headroom", "", units.RATIO, why, each) for each in missing))
    return (*peak, *judge_each(_headroom(m, ""), required["headroom"]))


def _out_of_memory(m: MemoryMeasurement, requirements: Sequence[Requirement]) -> Iterator[Judgement]:
    """The job does not fit, whatever is required of its peak."""
    for quantity, unit in QUANTITIES["memory"].items():
        required = applicable(requirements, "memory", quantity, m.conditions)
        for requirement in required or ((None,) if quantity == "peak" else ()):
            yield replace(
                judge_missing(quantity, "", unit, m.out_of_memory, requirement),
                verdict=Verdict.FAIL, reason=f"the job ran out of memory: {m.out_of_memory}",
            )  # fmt: skip


def figures(m: MemoryMeasurement, label: str = "") -> tuple[Case, Case]:
    """`peak` and `headroom`, ready to be judged.

    Raises:
        MeasurementError: as `judge_memory`.
    """
    _check(m)
    return _peak(m, label), _headroom(m, label)


def _check(m: MemoryMeasurement) -> None:
    check_ranks(m.conditions, [r.rank for r in m.ranks], "memory")
    for r in m.ranks:
        where = f"memory: rank {r.rank}"
        if not r.step_peaks or not (r.losses or m.unknown):
            raise MeasurementError(f"{where} did no step: {len(r.step_peaks)} peaks and {len(r.losses)} losses")
        if len(r.step_peaks) != len(m.ranks[0].step_peaks):
            raise MeasurementError(
                f"{where} did {len(r.step_peaks)} steps, rank {m.ranks[0].rank} {len(m.ranks[0].step_peaks)}"
            )
        for number, loss in enumerate(r.losses, 1):
            if not math.isfinite(loss):
                raise MeasurementError(f"{where}: the loss of step {number} is {loss}; the job does not train")
        used = r.device_used > 0 or (m.unknown and r.device_used == 0)
        if min(r.step_peaks) <= 0 or not used or r.limit <= 0:
            raise MeasurementError(
                f"{where}: got peaks from {min(r.step_peaks)} B and {r.device_used} B used of {r.limit} B, "
                f"want all above 0"
            )


def _peak(m: MemoryMeasurement, label: str) -> Case:
    per_rank = {str(r.rank): float(max(r.step_peaks)) for r in m.ranks}
    fullest = max(m.ranks, key=lambda r: max(r.step_peaks))
    peak = float(max(fullest.step_peaks))
    step = fullest.step_peaks.index(int(peak)) + 1
    each = (finding for r in m.ranks for look in (_growth, _fragmentation) for finding in look(m.conditions, r))
    findings = (*_imbalance(m.conditions, per_rank), *each)
    at = f", step {step}" if len(fullest.step_peaks) > 1 else ""
    untold = f"; not known: {', '.join(m.unknown)}" if m.unknown else ""
    reserved = f"; {units.show(max(fullest.reserved_peaks), units.BYTES)} reserved" if fullest.reserved_peaks else ""
    return Case(
        quantity="peak",
        label=label,
        value=peak,
        unit=units.BYTES,
        timing=False,
        interval=_maximum(peak, sum(len(r.step_peaks) for r in m.ranks)),
        samples=tuple(float(max(peaks)) for peaks in zip(*(r.step_peaks for r in m.ranks), strict=True)),
        per_rank=per_rank,
        # Those of older measurements split what was at rest, not the peak.
        parts={name: float(size) for name, size in fullest.parts.items()}
        if sum(fullest.parts.values()) == peak
        else {},
        findings=findings,
        note=f"{rank_name(m.conditions, fullest.rank)}{at}{reserved}; counted: {fullest.counted}{untold}",
    )


def _headroom(m: MemoryMeasurement, label: str) -> Case:
    shares = {r.rank: (r.limit - r.device_used) / r.limit for r in m.ranks}
    fullest = min(m.ranks, key=lambda r: shares[r.rank])
    return Case(
        quantity="headroom",
        label=label,
        value=shares[fullest.rank],
        unit=units.RATIO,
        timing=False,
        interval=_maximum(shares[fullest.rank], len(m.ranks)),
        samples=tuple(shares[r.rank] for r in m.ranks),
        per_rank={str(rank): share for rank, share in shares.items()},
        note=f"{rank_name(m.conditions, fullest.rank)}: {units.show(fullest.device_used, units.BYTES)} used of "
        f"{units.show(fullest.limit, units.BYTES)}, {fullest.limit_from}",
    )


def _maximum(value: float, samples: int) -> Interval:
    return Interval(low=value, high=value, kind="maximum", samples=samples)


def _imbalance(conditions: Conditions, peaks: dict[str, float]) -> list[Finding]:
    findings = []
    for rank, peak in peaks.items():
        others = median([other for name, other in peaks.items() if name != rank])
        if peak > IMBALANCE * others:  # never true of a single rank: the median of nobody is nan
            findings.append(
                Finding(
                    suspect=rank_name(conditions, int(rank)),
                    kind="memory imbalance",
                    evidence=f"peak {units.show(peak, units.BYTES)}, {units.show_share(peak / others - 1)} above the "
                    f"median of the other ranks",
                    check_next="what only this rank holds: an uneven shard, gathered parameters, whole tensors that "
                    "are logged",
                )
            )
    return findings


def _growth(conditions: Conditions, r: RankMemory) -> list[Finding]:
    # The first step is left out: the optimizer's state may be made in it.
    later = r.step_peaks[1:]
    if len(later) < 2 or not all(b > GROWTH * a for a, b in itertools.pairwise(later)):
        return []
    return [
        Finding(
            suspect=rank_name(conditions, r.rank),
            kind="growth",
            evidence=f"the peak rose in every step after the first: "
            f"{', '.join(units.show(peak, units.BYTES) for peak in later[:6])}",
            check_next="run more steps; look for tensors kept from step to step, such as losses not detached",
        )
    ]


def _fragmentation(conditions: Conditions, r: RankMemory) -> list[Finding]:
    if not r.reserved_peaks or max(r.reserved_peaks) <= FRAGMENTATION * max(r.step_peaks):
        return []
    reserved, held = max(r.reserved_peaks), max(r.step_peaks)
    return [
        Finding(
            suspect=rank_name(conditions, r.rank),
            kind="fragmentation",
            evidence=f"the allocator reserved {units.show(reserved, units.BYTES)}, of which tensors never held more "
            f"than {units.show(held, units.BYTES)}",
            check_next="whether sizes change from step to step; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            level="note",
        )
    ]
