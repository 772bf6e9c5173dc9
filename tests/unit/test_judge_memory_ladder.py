"""What the memory ladder says of each rung, and as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_made import require, the
from made import MIB
from rungs_made import (
    DEVICE,
    MICRO,
    NODES,
    RECOMPUTE,
    REFUSED,
    SHARD,
    TENSOR,
    fits,
    impossible,
    ladder,
    starved,
)

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.memory.ladder import judge_memory_ladder
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, RungResult
from pytest_clusterqual.model.record import Judgement, Verdict

CLIMB = ladder(starved(DEVICE), fits(MICRO, 90, 0.20), fits(RECOMPUTE, 70, 0.26), fits(SHARD, 60, 0.13))


def judged(m: MemoryLadderMeasurement, *required: str) -> tuple[Judgement, ...]:
    return judge_memory_ladder(m, [require("memory", "headroom", text) for text in required])


def shown(m: MemoryLadderMeasurement, *required: str) -> str:
    (finding,) = next(j for j in judged(m, *required) if j.quantity == "first_fit").findings
    assert (finding.level, finding.suspect, finding.kind) == ("note", "this job", "memory ladder")
    return finding.evidence


def test_every_rung_has_its_figures_and_none_a_verdict() -> None:
    told = judged(CLIMB, ">= 1 %")
    assert {j.verdict for j in told} == {Verdict.MEASURED}
    assert {j.label: j.value for j in told if j.quantity == "fits"} == {
        "one device": 0.0, "microbatch 1": 1.0, "recompute full": 1.0, "shard": 1.0,
    }  # fmt: skip
    assert {j.quantity for j in told if j.label == "one device"} == {"fits"}
    assert [j.quantity for j in told if j.label == "shard"] == [
        "fits", "peak", "headroom", "step_time", "throughput", "price",
    ]  # fmt: skip
    assert the(told, "peak", "shard").value == 60 * MIB
    assert the(told, "headroom", "shard").value == pytest.approx(0.4)
    assert the(told, "step_time", "shard").value == pytest.approx(0.13)
    assert the(told, "throughput", "shard").value == pytest.approx(8192 / 0.13)


def test_the_parts_add_up_to_the_peak() -> None:
    peak = the(judged(CLIMB), "peak", "recompute full")
    assert peak.parts == {
        "parameters": 8 * MIB, "gradients": 8 * MIB, "optimizer": 16 * MIB, "activations": 30 * MIB, "other": 8 * MIB,
    }  # fmt: skip
    assert sum(peak.parts.values()) == peak.value


def test_parts_that_do_not_add_up_are_none_of_the_peak() -> None:
    old = fits(MICRO, 90, 0.2, parts={"parameters": 8 * MIB, "gradients": 8 * MIB, "optimizer": 16 * MIB})
    assert the(judged(ladder(old)), "peak", "microbatch 1").parts == {}


def test_the_price_is_the_time_over_that_of_the_fastest_that_fits() -> None:
    told = judged(CLIMB)
    price = the(told, "price", "recompute full")
    assert price.value == pytest.approx(2.0)
    assert price.interval is not None
    assert (price.interval.kind, price.interval.samples) == ("bootstrap", 6)
    assert price.interval.low <= 2.0 <= price.interval.high
    assert "against shard, 6 pairs of runs, 1 against 2 devices" in price.reason
    assert the(told, "price", "shard").value == 1.0


def test_a_rung_that_does_not_fit_is_not_the_fastest() -> None:
    broken = replace(fits(DEVICE, 90, 0.01), out_of_memory=REFUSED)
    told = judged(ladder(broken, fits(MICRO, 80, 0.2), fits(RECOMPUTE, 70, 0.3)))
    assert the(told, "price", "microbatch 1").value == 1.0
    assert [j.quantity for j in told if j.label == "one device"] == ["fits", "peak", "headroom"]


def test_few_runs_have_a_price_without_an_interval() -> None:
    few = (1.0, 1.0)
    told = judged(ladder(fits(DEVICE, 90, 0.2, noise=few), fits(MICRO, 80, 0.3, noise=few)))
    price = the(told, "price", "microbatch 1")
    assert (price.value, price.interval) == (pytest.approx(1.5), None)


def test_another_job_has_no_price() -> None:
    told = judged(ladder(fits(DEVICE, 90, 0.2), fits(MICRO, 80, 0.3, loss=5.1)))
    price = the(told, "price", "microbatch 1")
    assert price.value is None
    assert "microbatch 1 and one device did not do the same job (loss of step 1" in price.reason


def test_out_of_memory_says_who() -> None:
    told = the(judged(CLIMB), "fits", "one device")
    assert (told.value, told.reason) == (0.0, f"fits 0; nothing is required of it ({REFUSED})")


def test_what_ran_beyond_the_limit_does_not_fit() -> None:
    """The allocator kept to its limit, but the device held more beside it."""
    told = judged(ladder(fits(DEVICE, 90, 0.2, device_used=101 * MIB), fits(MICRO, 80, 0.3)))
    over = the(told, "fits", "one device")
    assert over.value == 0.0
    assert "it ran only because there is more: rank 0 on node0: 101 MiB used of 100 MiB" in over.reason
    assert the(told, "first_fit", "microbatch 1").value == 1
    assert the(told, "price", "microbatch 1").value == 1, "what does not fit is not the fastest that does"


def test_impossible_and_untried_rungs_are_told_without_a_number() -> None:
    told = judged(ladder(fits(DEVICE, 90, 0.2), impossible(TENSOR), RungResult(rung=NODES, untried="2 are enough")))
    assert the(told, "fits", "tensor 2").value is None
    assert "workload.model.heads 1" in the(told, "fits", "tensor 2").reason
    assert "2 are enough" in the(told, "fits", "2 nodes").reason
    assert the(told, "fits", "2 nodes").verdict is Verdict.MEASURED


def test_growth_and_imbalance_are_found_on_rungs() -> None:
    even = fits(SHARD, 60, 0.1)
    grown = tuple(size * MIB for size in (60, 70, 80))
    uneven = replace(even, ranks=(even.ranks[0], replace(even.ranks[1], step_peaks=grown, parts={})))
    kinds = {(f.kind, f.suspect) for f in the(judged(ladder(uneven)), "peak", "shard").findings}
    assert kinds == {("memory imbalance", "rank 1 on node0"), ("growth", "rank 1 on node0")}


def test_the_first_fit_is_the_first_with_the_required_headroom() -> None:
    assert the(judged(CLIMB), "first_fit", "microbatch 1").value == 1
    first = the(judged(CLIMB, ">= 20 %"), "first_fit", "recompute full")
    assert "the first rung that fits with headroom >= 20 %: rank 0 on node0: 70 MiB used of 100 MiB" in first.reason
    none = the(judged(CLIMB, ">= 50 %"), "first_fit")
    assert (none.value, none.verdict) == (None, Verdict.MEASURED)
    assert none.reason == "first_fit was not measured: no rung fits with headroom >= 50 %"


def test_headroom_that_is_required_of_a_layout_says_nothing_of_rungs() -> None:
    told = judge_memory_ladder(CLIMB, [require("memory", "headroom", ">= 50 %", layout="ddp")])
    assert the(told, "first_fit", "microbatch 1").value == 1


@pytest.mark.parametrize(
    ("m", "required", "evidence"),
    [
        (ladder(fits(DEVICE, 90, 0.1), fits(MICRO, 80, 0.2)), (),
         "one device is enough, as fast as any that fits: more nodes are not needed for memory"),
        (CLIMB, (), "one device runs out of memory; microbatch 1 fits at 1.54 x the time of shard: more nodes are not "
                    "needed for memory"),
        (ladder(fits(DEVICE, 90, 0.1), fits(MICRO, 70, 0.2)), (">= 20 %",),
         "one device has too little left; microbatch 1 fits with headroom >= 20 % at 2 x the time of one device: more "
         "nodes are not needed for memory"),
        (ladder(starved(DEVICE), starved(SHARD), impossible(TENSOR), fits(NODES, 80, 0.2)), (),
         "no way inside one node fits (impossible for this job: tensor 2); 2 nodes do"),
        (ladder(starved(DEVICE), starved(SHARD), starved(NODES)), (), "no rung fits, up to 2 nodes"),
        (ladder(starved(DEVICE)), (), "no rung fits, up to 1 node"),
        (ladder(starved(DEVICE), fits(MICRO, 80, 0.11, noise=(0.5, 1.0, 2.0, 1.0, 0.5, 2.0)), fits(SHARD, 60, 0.1)), (),
         "one device runs out of memory; microbatch 1 fits, in a time not told apart from that of shard, the fastest: "
         "more nodes are not needed for memory"),
    ],
    ids=["one device", "inside a node", "headroom", "nodes", "none", "none on one node", "noise"],
)  # fmt: skip
def test_the_ladder_says_what_it_shows(m: MemoryLadderMeasurement, required: tuple[str, ...], evidence: str) -> None:
    assert shown(m, *required) == evidence


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (ladder(), "memory ladder: there is no rung"),
        (ladder(RungResult(rung=DEVICE)), "one device was tried, and no rank told what it held"),
        (ladder(replace(fits(SHARD, 60, 0.1), ranks=fits(SHARD, 60, 0.1).ranks[:1])), "no result of rank 1"),
        (ladder(fits(DEVICE, 60, 0.0)), "has a time that is not above 0"),
    ],
)
def test_what_is_not_a_measurement_is_refused(m: MemoryLadderMeasurement, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judged(m)


def test_a_ladder_survives_the_run_folder() -> None:
    assert from_json(MemoryLadderMeasurement, to_json(CLIMB)) == CLIMB
