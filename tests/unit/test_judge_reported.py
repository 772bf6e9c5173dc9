"""Runs of another tool are judged as a sweep is: never a PASS by one run, a FAIL by one wrong element."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from judge_made import fabric_plan as plan
from judge_made import require, the, verdicts
from made import conditions

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.reported import judge_reported
from pytest_clusterqual.model.fabric import ReportedMeasurement, ReportedSweep, ReportedTiming
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.topology import Links

MIB = 1024 * 1024
SIZES = (MIB, 4 * MIB)
RATE = 100e9  # algbw of the usual run, B/s; of 16 ranks that is 187.5 GB/s of busbw


def sweep(factor: float = 1.0, *, wrong: int | None = 0, run: int = 1, **changes: Any) -> ReportedSweep:
    timings = tuple(
        ReportedTiming(
            bytes=size, seconds=size / RATE * factor, seconds_in_place=size / RATE * factor * 0.9, wrong=wrong
        )
        for size in SIZES
    )
    return replace(ReportedSweep(source=f"run{run}.log:12", timings=timings), **changes)


def measured(*sweeps: ReportedSweep, **changes: Any) -> ReportedMeasurement:
    usual = {"nodes": 2, "nproc_per_node": 8, "ranks": 16, "collective": "all_reduce", "group": "world"}
    return ReportedMeasurement(
        conditions=conditions(**{**usual, **changes}, versions={"nccl": "2.29.3"}), tool="nccl-tests 2.17.9",
        sweeps=sweeps, started=0.0, seconds=0.0,
    )  # fmt: skip


def six(**changes: Any) -> ReportedMeasurement:
    return measured(*(sweep(1 + 0.01 * run, run=run) for run in range(6)), **changes)


def test_six_runs_decide_and_the_slower_half_counts() -> None:
    judgements = judge_reported(six(), plan([require("fabric", "busbw", ">= 170 GB/s", from_bytes=4 * MIB)]))
    judged = the(judgements, "busbw", "4 MiB")
    assert judged.verdict is Verdict.PASS
    assert judged.value == pytest.approx(187.5e9 / 1.025, rel=1e-3)
    assert judged.interval is not None
    assert judged.interval.samples == 6
    assert len(judged.samples) == 6
    assert "as nccl-tests 2.17.9 reports, the slower of out of place and in place" in judged.reason
    assert the(judgements, "busbw", "1 MiB").verdict is Verdict.MEASURED
    assert the(judgements, "wrong_elements").verdict is Verdict.MEASURED


@pytest.mark.parametrize(("text", "verdict"), [
    (">= 200 GB/s", Verdict.FAIL), (">= 184 GB/s", Verdict.UNDECIDED), (">= 178 GB/s", Verdict.PASS),
])  # fmt: skip
def test_the_whole_interval_decides(text: str, verdict: Verdict) -> None:
    judged = judge_reported(six(), plan([require("fabric", "busbw", text)]))
    assert the(judged, "busbw", "4 MiB").verdict is verdict


@pytest.mark.parametrize(("count", "more"), [(1, "5 more such runs are"), (5, "1 more such run is")])
def test_fewer_than_six_runs_never_decide_and_say_how_many_more(count: int, more: str) -> None:
    runs = measured(*(sweep(1 + 0.01 * run, run=run) for run in range(count)))
    for text in (">= 1 GB/s", ">= 900 GB/s"):
        judged = the(judge_reported(runs, plan([require("fabric", "busbw", text)])), "busbw", "1 MiB")
        assert judged.verdict is Verdict.UNDECIDED
        assert f"{more} needed for an interval" in judged.reason


def test_one_wrong_element_in_one_run_fails_at_once() -> None:
    judged = the(judge_reported(measured(sweep(), sweep(1.01, wrong=3, run=2)), plan()), "wrong_elements")
    assert (judged.verdict, judged.value) == (Verdict.FAIL, 6.0)
    (finding,) = judged.findings
    assert finding.evidence == "6 wrong elements in 1 of 2 runs, at 1 MiB, 4 MiB (run2.log:12)"
    assert "nccl 2.29.3" in finding.check_next


def test_values_out_of_bounds_fail_though_no_row_names_them() -> None:
    judged = the(judge_reported(measured(sweep(wrong=None, out_of_bounds=248)), plan()), "wrong_elements")
    assert (judged.verdict, judged.value) == (Verdict.FAIL, 248.0)
    assert "at sizes that the tool does not name" in judged.findings[0].evidence


def test_results_that_were_not_checked_are_told() -> None:
    none = the(judge_reported(measured(sweep(wrong=None)), plan()), "wrong_elements")
    assert (none.verdict, none.reason) == (
        Verdict.MEASURED, "2 of 2 results were not checked (N/A): run the tool with -c 1",
    )  # fmt: skip
    some = the(judge_reported(measured(sweep(), sweep(1.1, wrong=None)), plan()), "wrong_elements")
    assert some.reason.startswith("no wrong element was reported in 2 checked results; 2 of 4 results were not checked")


def test_a_share_of_the_expected_level_is_that_of_the_group() -> None:
    links = Links(intra_node=900e9, nic=50e9, nics_per_node=8)
    wanted = [require("fabric", "busbw", ">= 40 % of expected"), require("fabric", "algbw", ">= 60 % of expected")]
    judgements = judge_reported(six(), plan(wanted, links))
    busbw, algbw = the(judgements, "busbw", "4 MiB"), the(judgements, "algbw", "4 MiB")
    assert busbw.requirement is not None
    assert busbw.requirement.value == pytest.approx(0.4 * 400e9)
    assert "8 NICs x 400 Gbit/s = 400 GB/s" in (busbw.requirement.expected_from or "")
    assert (busbw.verdict, algbw.verdict) == (Verdict.PASS, Verdict.FAIL)
    inside = six(nodes=1, ranks=8, group="intra_node")
    promised = the(judge_reported(inside, plan(wanted, links)), "busbw", "4 MiB").requirement
    assert promised is not None
    assert promised.value == pytest.approx(0.4 * 900e9)


def test_without_promised_links_a_share_cannot_be_judged() -> None:
    judged = the(judge_reported(six(), plan([require("fabric", "busbw", ">= 80 % of expected")])), "busbw", "4 MiB")
    assert judged.verdict is Verdict.ERROR
    assert "fabric.links.nic is not given" in judged.reason


def test_latency_is_judged_and_other_cases_are_left_alone() -> None:
    wanted = [
        require("fabric", "latency", "<= 20 us", to_bytes=MIB),
        require("fabric", "busbw", ">= 900 GB/s", collective="broadcast"),
        require("fabric", "busbw", ">= 900 GB/s", group="rails"),
    ]
    assert verdicts(judge_reported(six(), plan(wanted))) == {
        ("wrong_elements", ""): Verdict.MEASURED,
        ("latency", "1 MiB"): Verdict.PASS,
        ("busbw", "4 MiB"): Verdict.MEASURED,
        ("alpha", ""): Verdict.MEASURED,
        ("plateau", ""): Verdict.MEASURED,
    }


def test_the_plateau_is_judged_and_alpha_needs_small_sizes() -> None:
    wanted = [require("fabric", "plateau", ">= 170 GB/s"), require("fabric", "alpha", "<= 1 ms")]
    judgements = judge_reported(six(), plan(wanted))
    assert the(judgements, "plateau").verdict is Verdict.PASS
    assert the(judgements, "alpha").verdict is Verdict.ERROR
    assert "no size of 8 KiB or less" in the(judgements, "alpha").reason


def test_above_what_the_links_give_nothing_passes() -> None:
    wanted = [require("fabric", "busbw", ">= 50 % of expected")]
    judged = the(judge_reported(six(), plan(wanted, Links(nic=20e9, nics_per_node=8))), "busbw", "4 MiB")
    assert judged.verdict is Verdict.UNDECIDED
    assert "a tree up to" in judged.reason
    assert judged.findings[0].kind == "above the bound"


def test_of_groups_side_by_side_the_slowest_counts_and_is_named() -> None:
    slow = {2: 2.0}
    runs = [
        sweep((1 + 0.01 * run) * slow.get(group, 1.0), run=run, group=group) for run in range(6) for group in range(4)
    ]
    m = measured(*runs, nodes=4, nproc_per_node=4, ranks=16, group="intra_node")
    judged = the(judge_reported(m, plan()), "busbw", "4 MiB")
    assert judged.value == pytest.approx(RATE * 1.5 / 2 / 1.025, rel=1e-3)
    findings = [finding for each in judge_reported(m, plan()) for finding in each.findings]
    assert [(f.kind, f.suspect) for f in findings] == [("slow group", "the group on node2")]


def test_a_size_that_the_tool_rounded_down_is_still_the_one_meant() -> None:
    odd = replace(sweep(), timings=(ReportedTiming(bytes=MIB - 16, seconds=1e-5, seconds_in_place=None, wrong=0),))
    judgements = judge_reported(measured(odd), plan([require("fabric", "busbw", ">= 1 GB/s", from_bytes=MIB)]))
    assert the(judgements, "busbw", "1048560 B").verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("quantity", ["wait", "contention"])
def test_what_the_tool_does_not_tell_is_undecided_never_left_out(quantity: str) -> None:
    judged = the(judge_reported(six(), plan([require("fabric", quantity, "<= 10 %")])), quantity)
    assert (judged.verdict, judged.value) == (Verdict.UNDECIDED, None)
    assert "nccl-tests 2.17.9 does not tell it; measure it with fabric.engine: torch" in judged.reason


def timed(**changes: Any) -> ReportedSweep:
    return replace(sweep(), timings=(replace(sweep().timings[0], **changes),))


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (measured(), "was run 0 times in the 1 groups"),
        (measured(sweep(group=1)), "was run 0 times in the 1 groups"),
        (measured(sweep(), sweep(1.1), nodes=1, ranks=8, group="rails"), "got a group of 1"),
        (measured(sweep(timings=())), "reported no size"),
        (measured(sweep(), timed()), "run1.log:12: its sizes are not those of run1.log:12"),
        (measured(timed(seconds=None, seconds_in_place=None)), "run1.log:12: got no time for 1048576 bytes"),
        (measured(timed(seconds=math.nan)), "got nan s and"),
        (measured(timed(seconds_in_place=-1.0)), "got .* and -1.0 s for 1048576 bytes"),
        (measured(sweep(), nodes=1, nproc_per_node=1, ranks=1), "got a group of 1, want at least 2 ranks"),
        (measured(sweep(), collective="gather"), "got collective 'gather'"),
        (measured(sweep(), group="tp2.tensor"), "got group 'tp2.tensor'"),
    ],
)
def test_what_is_no_measurement_is_refused(m: ReportedMeasurement, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judge_reported(m, plan())
