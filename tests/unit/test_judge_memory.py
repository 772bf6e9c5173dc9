from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from judge_made import require, the
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.memory.verdict import judge_memory
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.record import Interval, Verdict

MIB = 1024 * 1024


def rank(number: int = 0, peaks: tuple[int, ...] = (400, 412, 412), used: int = 600, **changes: Any) -> RankMemory:
    """Peaks and use in MiB of a device of 4000 MiB."""
    usual = RankMemory(
        rank=number,
        step_peaks=tuple(peak * MIB for peak in peaks),
        reserved_peaks=(),
        device_used=used * MIB,
        limit=4000 * MIB,
        limit_from="cgroup limit / 2 ranks",
        counted="tensors",
        parts={},
        losses=(5.5, 5.4, 5.3),
        data_digest="3fb1",
    )
    return replace(usual, **changes)


def measured(*ranks: RankMemory, **under: Any) -> MemoryMeasurement:
    return MemoryMeasurement(
        conditions=conditions(ranks=len(ranks), layout="ddp", **under), ranks=ranks, started=0.0, seconds=1.0
    )


def test_the_highest_peak_of_any_rank_and_step_counts() -> None:
    m = measured(rank(0, (400, 410, 405)), rank(1, (400, 412, 403)))
    peak = the(judge_memory(m, [require("memory", "peak", "<= 2 GiB")]), "peak")
    assert (peak.value, peak.verdict) == (412 * MIB, Verdict.PASS)
    assert peak.interval == Interval(low=412 * MIB, high=412 * MIB, kind="maximum", samples=6)
    assert peak.reason == "peak 412 MiB meets the required <= 2 GiB (rank 1 on node1, step 2; counted: tensors)"
    assert peak.per_rank == {"0": 410 * MIB, "1": 412 * MIB}
    assert peak.samples == (400 * MIB, 412 * MIB, 405 * MIB)
    assert peak.margin == pytest.approx(1 - 412 / 2048)
    assert peak.findings == ()


def test_one_rank_above_the_bound_fails_all() -> None:
    m = measured(rank(0), rank(1, (400, 412, 2100)))
    peak = the(judge_memory(m, [require("memory", "peak", "<= 2 GiB")]), "peak")
    assert peak.verdict is Verdict.FAIL
    assert peak.reason.startswith("peak 2.05 GiB is above the required <= 2 GiB (rank 1 on node1, step 3;")


def test_headroom_is_that_of_the_fullest_device() -> None:
    m = measured(rank(0, used=600), rank(1, used=3700))
    headroom = the(judge_memory(m, [require("memory", "headroom", ">= 10 %")]), "headroom")
    assert (headroom.value, headroom.verdict) == (pytest.approx(0.075), Verdict.FAIL)
    assert headroom.reason == (
        "headroom 7.5 % is below the required >= 10 % "
        "(rank 1 on node1: 3.61 GiB used of 3.91 GiB, cgroup limit / 2 ranks)"
    )
    assert headroom.per_rank == {"0": pytest.approx(0.85), "1": pytest.approx(0.075)}


def test_total_memory_is_not_a_pool() -> None:
    """Half of the memory is free in sum, and still one rank does not fit."""
    m = measured(rank(0, used=10), rank(1, used=4010))
    headroom = the(judge_memory(m, [require("memory", "headroom", ">= 0 %")]), "headroom")
    assert (headroom.value, headroom.verdict) == (pytest.approx(-0.0025), Verdict.FAIL)


def test_without_requirements_both_are_measured() -> None:
    judged = judge_memory(measured(rank(0), rank(1)), [])
    assert [(j.quantity, j.verdict) for j in judged] == [("peak", Verdict.MEASURED), ("headroom", Verdict.MEASURED)]


def test_requirements_of_another_layout_or_criterion_do_not_apply() -> None:
    others = [require("memory", "peak", "<= 1 MiB", layout="fsdp"), require("memory", "peak", "<= 1 MiB", nodes=4)]
    assert the(judge_memory(measured(rank(0), rank(1)), others), "peak").verdict is Verdict.MEASURED


def test_load_does_not_excuse_memory() -> None:
    m = measured(rank(0), rank(1), load=Load(other_cpu=0.9, node="node0"))
    assert the(judge_memory(m, [require("memory", "peak", "<= 1 MiB")]), "peak").verdict is Verdict.FAIL


def test_a_rank_that_holds_more_than_the_others_is_named() -> None:
    m = measured(rank(0), rank(1), rank(2, (400, 500, 500)), rank(3), nodes=4)
    (finding,) = the(judge_memory(m, []), "peak").findings
    assert (finding.suspect, finding.kind) == ("rank 2 on node2", "memory imbalance")
    assert finding.evidence == "peak 500 MiB, 21.4 % above the median of the other ranks"


@pytest.mark.parametrize(("peak", "found"), [(105, 0), (106, 1)])
def test_imbalance_begins_above_five_percent(peak: int, found: int) -> None:
    m = measured(rank(0, (100,)), rank(1, (peak,)))
    assert len(the(judge_memory(m, []), "peak").findings) == found


def test_a_single_rank_is_not_compared() -> None:
    assert the(judge_memory(measured(rank(0)), []), "peak").findings == ()


@pytest.mark.parametrize(
    ("peaks", "grows"),
    [
        ((400, 410, 420, 430), True),
        ((400, 410, 420), True),
        ((400, 500, 500, 500), False),
        ((400, 410, 420, 420), False),
        ((400, 410), False),
        ((1000, 1000, 1004, 1008), False),
        ((1000, 1000, 1019, 1038), False),
        ((1000, 1000, 1021, 1043), True),
    ],
)
def test_a_peak_that_rises_in_every_step_is_growth(peaks: tuple[int, ...], grows: bool) -> None:
    findings = the(judge_memory(measured(rank(0, peaks)), []), "peak").findings
    assert [finding.kind for finding in findings] == (["growth"] if grows else [])


def test_growth_names_the_figures() -> None:
    (finding,) = the(judge_memory(measured(rank(0, (400, 410, 420))), []), "peak").findings
    assert finding.evidence == "the peak rose in every step after the first: 410 MiB, 420 MiB"


@pytest.mark.parametrize(("reserved", "found"), [((), 0), ((400, 515, 412), 0), ((400, 516, 412), 1)])
def test_much_more_reserved_than_held_is_fragmentation(reserved: tuple[int, ...], found: int) -> None:
    m = measured(rank(0, reserved_peaks=tuple(peak * MIB for peak in reserved)))
    peak = the(judge_memory(m, []), "peak")
    said = f"{max(reserved)} MiB reserved; counted: tensors" if reserved else "step 2; counted: tensors"
    assert said in peak.reason
    evidence = "the allocator reserved 516 MiB, of which tensors never held more than 412 MiB"
    assert [(f.kind, f.level, f.evidence) for f in peak.findings] == [("fragmentation", "note", evidence)] * found


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (rank(1, losses=(5.5, math.nan, 5.3)), "memory: rank 1: the loss of step 2 is nan; the job does not train"),
        (rank(1, losses=(5.5, math.inf, 5.3)), "memory: rank 1: the loss of step 2 is inf"),
        (rank(1, ()), "memory: rank 1 did no step: 0 peaks and 3 losses"),
        (rank(1, losses=()), "memory: rank 1 did no step: 3 peaks and 0 losses"),
        (rank(1, (400, 412)), "memory: rank 1 did 2 steps, rank 0 3"),
        (rank(0), "memory: no result of rank 1, want one of each of 2 ranks"),
        (rank(1, (0, 412, 412)), "memory: rank 1: got peaks from 0 B and"),
        (rank(1, limit=0), "used of 0 B, want all above 0"),
        (rank(1, used=0), "and 0 B used of"),
    ],
)
def test_what_is_not_a_measurement_is_refused(broken: RankMemory, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judge_memory(measured(rank(0), broken), [])


def test_a_missing_rank_is_refused() -> None:
    whole = measured(rank(0), rank(1))
    with pytest.raises(MeasurementError, match="no result of rank 1"):
        judge_memory(replace(whole, ranks=whole.ranks[:1]), [])
