from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judge_made import fabric_plan as plan
from judge_made import require, the, verdicts
from made import conditions
from pairs_made import exchanged, names, of_node

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.sweeps import size_label
from pytest_clusterqual.judge.fabric.verdict import judge_fabric
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.topology import Links

MIB = 1024 * 1024
STEADY = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)
Seconds = Callable[[int, int, float], float]


def uniform(rank: int, size: int, factor: float) -> float:
    """1 ms a MiB."""
    return size / MIB * 1e-3 * factor


def measured(
    *,
    sizes: tuple[int, ...] = (MIB,),
    seconds: Seconds = uniform,
    rounds: tuple[float, ...] = STEADY,
    ranks: int = 2,
    wrong: dict[int, int] | None = None,
    **under: Any,
) -> FabricMeasurement:
    """Three samples a round, their median is the round's; one world group unless `under` says otherwise."""
    under = {"collective": "all_reduce", "group": "world", "nodes": ranks, "ranks": ranks, **under}
    here = conditions(hosts=tuple(f"node{n}" for n in range(under["nodes"])), **under)
    group = {"world": ranks, "intra_node": here.nproc_per_node, "inter_node": here.nodes}[str(here.group)]

    def one(rank: int, factor: float) -> RankFabric:
        outside = here.group == "inter_node" and rank % here.nproc_per_node != 0
        timings = (
            ()
            if outside
            else tuple(
                CollectiveTiming(
                    bytes=size,
                    iterations=5,
                    wrong=(wrong or {}).get(rank, 0),
                    seconds=tuple(seconds(rank, size, factor) * sample for sample in (1.0, 0.9, 1.4)),
                )
                for size in sizes
            )
        )
        return RankFabric(rank=rank, group_size=0 if outside else group, timings=timings)

    return FabricMeasurement(
        conditions=here, rounds=tuple(tuple(one(r, f) for r in range(ranks)) for f in rounds), started=0.0, seconds=1.0
    )


@pytest.mark.parametrize(
    ("collective", "n", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 2, 0.5),
        ("all_to_all", 16, 0.9375),
        ("send_recv", 2, 1.0),
        ("send_recv", 64, 1.0),
    ],
)
def test_busbw_factors_are_those_of_nccl_tests(collective: str, n: int, factor: float) -> None:
    assert busbw_factor(collective, n) == factor


def test_busbw_factor_refuses_a_world_of_one_and_unknown_collectives() -> None:
    with pytest.raises(ValueError, match="got a group of 1, want at least 2 ranks"):
        busbw_factor("all_reduce", 1)
    with pytest.raises(ValueError, match="got collective 'gossip', want one of all_reduce, "):
        busbw_factor("gossip", 2)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (MIB, "1 MiB"),
        (4096, "4 KiB"),
        (3 * MIB // 2, "1.5 MiB"),
        (1_000_000, "1000000 B"),
        (MIB - 4, "1048572 B"),
        (8, "8 B"),
    ],
)
def test_labels_say_the_size_exactly(size: int, label: str) -> None:
    assert size_label(size) == label


def test_busbw_algbw_and_latency_of_four_ranks_by_hand() -> None:
    m = measured(ranks=4, sizes=(4 * MIB,))
    required = [
        require("fabric", "busbw", ">= 1.5 GB/s"),
        require("fabric", "algbw", ">= 1.5 GB/s"),
        require("fabric", "latency", "<= 3 ms"),
    ]
    judged = judge_fabric(m, plan(required, Links()))
    busbw, algbw, latency = (the(judged, quantity, "4 MiB") for quantity in ("busbw", "algbw", "latency"))
    # 4 MiB in 4 ms; all_reduce over 4 ranks counts 1.5 times
    assert (latency.value, latency.verdict) == (pytest.approx(4e-3), Verdict.FAIL)
    assert (algbw.value, algbw.verdict) == (pytest.approx(MIB * 1e3), Verdict.FAIL)
    assert (busbw.value, busbw.verdict) == (pytest.approx(1.5 * MIB * 1e3), Verdict.PASS)
    assert busbw.interval is not None
    assert busbw.interval.low == pytest.approx(1.5 * MIB * 1e3 / 1.02)
    assert busbw.interval.high == pytest.approx(1.5 * MIB * 1e3 / 0.98)
    assert (busbw.interval.kind, busbw.interval.samples, len(busbw.samples)) == ("median", 6, 6)
    assert busbw.reason == (
        "busbw 1.57 GB/s [1.54, 1.6] meets the required >= 1.5 GB/s "
        "(all_reduce of 4 MiB, groups of 4 ranks, slowest rank)"
    )


def test_the_slowest_rank_counts_not_the_mean() -> None:
    slow_last = measured(seconds=lambda rank, size, factor: uniform(rank, size, factor) * (1.3 if rank == 1 else 1.0))
    busbw = the(judge_fabric(slow_last, plan([], Links())), "busbw", "1 MiB")
    assert busbw.value == pytest.approx(MIB / 1.3e-3)
    assert busbw.per_rank == {"0": pytest.approx(MIB / 1e-3), "1": pytest.approx(MIB / 1.3e-3)}


def test_the_slowest_rank_is_taken_sample_by_sample() -> None:
    """Ranks that are slow in turn make every sample slow, though each rank's median is fast."""
    m = measured(rounds=(1.0,) * 6)
    fast, slow = 1e-3, 5e-3
    turns = ((slow, fast, fast), (fast, slow, fast))
    rounds = tuple(
        tuple(replace(r, timings=(replace(r.timings[0], seconds=turns[r.rank]),)) for r in ranks) for ranks in m.rounds
    )
    judged = judge_fabric(replace(m, rounds=rounds), plan([], Links()))
    assert the(judged, "busbw", "1 MiB").value == pytest.approx(MIB / slow)


def test_rounds_are_the_unit_not_samples() -> None:
    """Five rounds of three samples are five, too few."""
    judged = judge_fabric(measured(rounds=STEADY[:5]), plan([require("fabric", "busbw", ">= 1 kB/s")], Links()))
    busbw = the(judged, "busbw", "1 MiB")
    assert busbw.verdict is Verdict.UNDECIDED
    assert "5 rounds are there, at least 6 are needed" in busbw.reason


def test_each_size_in_the_range_is_judged_and_the_others_are_measured() -> None:
    m = measured(sizes=(4096, MIB, 16 * MIB))
    required = [
        require("fabric", "busbw", ">= 1 GB/s", from_bytes=float(MIB)),
        require("fabric", "latency", "<= 1 us", to_bytes=4096.0),
        require("fabric", "busbw", ">= 900 GB/s", collective="all_to_all"),
        require("fabric", "busbw", ">= 900 GB/s", group="intra_node"),
    ]
    assert verdicts(judge_fabric(m, plan(required, Links()))) == {
        **dict.fromkeys([("wrong_elements", ""), ("wait", ""), ("alpha", ""), ("plateau", "")], Verdict.MEASURED),
        ("latency", "4 KiB"): Verdict.FAIL,
        ("busbw", "1 MiB"): Verdict.PASS,
        ("busbw", "16 MiB"): Verdict.PASS,
    }
    assert verdicts(judge_fabric(m, plan(required[:1], Links())))["busbw", "4 KiB"] is Verdict.MEASURED


def test_a_size_that_was_rounded_to_whole_elements_stays_in_its_range() -> None:
    m = measured(ranks=3, sizes=(MIB - 4,))
    at = float(MIB)
    for selectors in ({"from_bytes": at}, {"to_bytes": at}, {"from_bytes": at, "to_bytes": at}):
        judged = judge_fabric(m, plan([require("fabric", "busbw", ">= 1 kB/s", **selectors)], Links()))
        assert the(judged, "busbw", "1048572 B").verdict is Verdict.PASS
    for selectors in ({"from_bytes": MIB + 100.0}, {"to_bytes": MIB - 100.0}):
        judged = judge_fabric(m, plan([require("fabric", "busbw", ">= 1 kB/s", **selectors)], Links()))
        assert the(judged, "busbw", "1048572 B").verdict is Verdict.MEASURED


def test_a_share_of_the_expected_level_is_resolved_by_the_links() -> None:
    required = [require("fabric", "busbw", ">= 80 % of expected"), require("fabric", "algbw", ">= 80 % of expected")]
    judged = judge_fabric(measured(ranks=4), plan(required, Links(nic=1.75e9)))
    busbw, algbw = the(judged, "busbw", "1 MiB"), the(judged, "algbw", "1 MiB")
    assert busbw.requirement is not None
    assert (busbw.requirement.value, busbw.requirement.text) == (pytest.approx(1.4e9), ">= 80 % of expected")
    assert busbw.requirement.expected_from == (
        "ring all-reduce over 4 nodes x 1 rank: bound by 1 NIC x 14 Gbit/s = 1.75 GB/s each way (promised); "
        "busbw <= 1.75 GB/s"
    )
    assert (busbw.expected, algbw.expected) == (1.75e9, pytest.approx(1.75e9 / 1.5))
    assert busbw.verdict is Verdict.PASS
    assert "meets the required >= 1.4 GB/s (>= 80 % of expected)" in busbw.reason
    assert algbw.requirement is not None
    assert algbw.requirement.value == pytest.approx(1.4e9 / 1.5)


@pytest.mark.parametrize(
    ("quantity", "text", "why"),
    [
        ("busbw", ">= 80 % of expected", "fabric.links.nic is not given"),
        ("latency", "<= 80 % of expected", "links promise a rate, no latency"),
    ],
)
def test_without_an_expected_level_a_share_of_it_is_an_error(quantity: str, text: str, why: str) -> None:
    all_judged = judge_fabric(measured(), plan([require("fabric", quantity, text)], Links(intra_node=1.0)))
    judged = the(all_judged, quantity, "1 MiB")
    assert judged.verdict is Verdict.ERROR
    assert judged.reason.startswith(f"{quantity} {text} cannot be judged: {why}")
    assert judged.value is not None


def test_load_turns_a_failure_by_time_into_undecided_but_never_wrong_data() -> None:
    m = measured(load=Load(other_cpu=0.5, node="node0"), wrong={1: 3})
    judged = verdicts(judge_fabric(m, plan([require("fabric", "busbw", ">= 900 GB/s")], Links())))
    assert judged["busbw", "1 MiB"] is Verdict.UNDECIDED
    assert judged["wrong_elements", ""] is Verdict.FAIL


def test_wrong_elements_fail_whatever_the_speed_and_name_the_ranks() -> None:
    judged = judge_fabric(measured(ranks=4, wrong={1: 2, 3: 5}), plan([], Links()))
    wrong = the(judged, "wrong_elements")
    assert (wrong.value, wrong.verdict, wrong.unit) == (42.0, Verdict.FAIL, "1")
    assert wrong.reason == "wrong_elements 42 is above the required <= 0"
    assert wrong.interval is not None
    assert (wrong.interval.kind, wrong.interval.low, wrong.interval.high) == ("count", 42, 42)
    assert wrong.per_rank == {"0": 0.0, "1": 12.0, "2": 0.0, "3": 30.0}
    (finding,) = wrong.findings
    assert (finding.suspect, finding.kind) == ("rank 1 on node1, rank 3 on node3", "wrong data")
    assert finding.evidence == "42 wrong elements received, at 1 MiB"


def test_right_results_alone_pass_nothing() -> None:
    wrong = the(judge_fabric(measured(), plan([], Links())), "wrong_elements")
    assert (wrong.value, wrong.verdict, wrong.findings) == (0.0, Verdict.MEASURED, ())
    assert wrong.reason == "no wrong element was received in 12 checked results"


def test_inter_node_counts_only_the_ranks_in_the_group() -> None:
    m = measured(ranks=4, nodes=2, nproc_per_node=2, group="inter_node", collective="all_gather")
    busbw = the(judge_fabric(m, plan([], Links())), "busbw", "1 MiB")
    assert busbw.value == pytest.approx(MIB / 1e-3 / 2)
    assert set(busbw.per_rank) == {"0", "2"}


def test_intra_node_takes_the_slowest_of_all_groups() -> None:
    m = measured(
        ranks=4,
        nodes=2,
        nproc_per_node=2,
        group="intra_node",
        collective="all_gather",
        seconds=lambda rank, size, factor: uniform(rank, size, factor) * (2.0 if rank >= 2 else 1.0),
    )
    assert the(judge_fabric(m, plan([], Links())), "busbw", "1 MiB").value == pytest.approx(MIB / 2e-3 / 2)


def test_the_rank_with_much_longer_calls_is_named_at_the_worst_size() -> None:
    m = measured(
        ranks=4,
        sizes=(4096, MIB),
        nodes=4,
        seconds=lambda rank, size, factor: uniform(rank, size, factor) * (1.8 if rank == 2 and size == MIB else 1.0),
    )
    judged = judge_fabric(m, plan([], Links()))
    assert the(judged, "busbw", "4 KiB").findings == ()
    (finding,) = the(judged, "busbw", "1 MiB").findings
    assert (finding.suspect, finding.kind) == ("rank 2 on node2", "slow rank")
    assert finding.evidence.startswith(
        "at 1 MiB its calls are 1.8 x longer than the median of the others; "
        "longest 1.8 ms on rank 2 on node2, shortest 1 ms on rank 0 on node0"
    )
    assert (finding.level, finding.size) == ("suspect", MIB)


def test_of_two_ranks_nobody_says_which_is_slow() -> None:
    m = measured(ranks=2, seconds=lambda rank, size, factor: uniform(rank, size, factor) * (3.0 if rank == 1 else 1.0))
    assert the(judge_fabric(m, plan([], Links())), "busbw", "1 MiB").findings == ()


@pytest.mark.parametrize("slower", [1.0, 1.3, 1.49])
def test_small_differences_between_ranks_are_no_finding(slower: float) -> None:
    m = measured(
        ranks=4, seconds=lambda rank, size, factor: uniform(rank, size, factor) * (slower if rank == 2 else 1.0)
    )
    assert the(judge_fabric(m, plan([], Links())), "busbw", "1 MiB").findings == ()


def test_pairs_of_nodes_say_whose_link_made_it_slow() -> None:
    m = replace(measured(ranks=4), pairs=exchanged(4, of_node("node3", 4)))
    m = replace(m, conditions=replace(m.conditions, rank_nodes=tuple(names(4))))
    judged = judge_fabric(m, plan([require("fabric", "busbw", ">= 900 GB/s")], Links()))
    assert [finding.suspect for finding in the(judged, "busbw", "1 MiB").findings] == ["node3"]
    assert the(judged, "wrong_elements").findings == ()
    passed = judge_fabric(m, plan([require("fabric", "busbw", ">= 1 kB/s")], Links()))
    assert the(passed, "busbw", "1 MiB").findings == ()


def with_timing(m: FabricMeasurement, rank: int, **changes: Any) -> FabricMeasurement:
    """The last round, with one timing of `rank` changed."""
    changed = tuple(
        replace(r, timings=(*r.timings[:-1], replace(r.timings[-1], **changes))) if r.rank == rank else r
        for r in m.rounds[-1]
    )
    return replace(m, rounds=(*m.rounds[:-1], changed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": (1e-3, math.nan, 1e-3)}, "round 6, rank 1, 1 MiB: got a time of nan s, want one above 0"),
        ({"seconds": (1e-3, 0.0, 1e-3)}, "round 6, rank 1, 1 MiB: got a time of 0.0 s"),
        ({"seconds": (1e-3, -1.0, 1e-3)}, "round 6, rank 1, 1 MiB: got a time of -1.0 s"),
        ({"seconds": (1e-3, math.inf, 1e-3)}, "round 6, rank 1, 1 MiB: got a time of inf s"),
        ({"seconds": (1e-3,)}, "round 6, rank 1, 1 MiB: got 1 samples, want 3"),
        ({"bytes": 2 * MIB}, "round 6, rank 1: the size 2 MiB differs from that of rank 0 in round 1"),
        ({"wrong": -1}, "round 6, rank 1: got 1048576 bytes and -1 wrong elements"),
    ],
)
def test_what_is_not_a_measurement_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judge_fabric(with_timing(measured(sizes=(4096, MIB)), 1, **changes), plan([], Links()))


def test_a_missing_rank_round_or_size_is_refused() -> None:
    m = measured()
    with pytest.raises(MeasurementError, match="fabric: round 6: no result of rank 1"):
        judge_fabric(replace(m, rounds=(*m.rounds[:-1], m.rounds[-1][:1])), plan([], Links()))
    with pytest.raises(MeasurementError, match="no round was measured"):
        judge_fabric(replace(m, rounds=()), plan([], Links()))
    with pytest.raises(MeasurementError, match="rank 0 measured no size"):
        judge_fabric(measured(sizes=()), plan([], Links()))


def test_another_world_than_asked_for_is_refused() -> None:
    m = measured()
    alone = tuple(tuple(replace(r, group_size=1) for r in ranks) for ranks in m.rounds)
    with pytest.raises(MeasurementError, match="rank 0 was in a group of 1, want 2: this is not the world asked for"):
        judge_fabric(replace(m, rounds=alone), plan([], Links()))
    outside = tuple((replace(ranks[0], group_size=0, timings=()), ranks[1]) for ranks in m.rounds)
    with pytest.raises(MeasurementError, match="round 1: rank 0 was in a group of 0, want 2"):
        judge_fabric(replace(m, rounds=outside), plan([], Links()))
    with pytest.raises(MeasurementError, match="a group intra_node of 1 rank has nobody to talk to"):
        judge_fabric(measured(group="intra_node"), plan([], Links()))
    with pytest.raises(MeasurementError, match="got collective None in group 'world'"):
        judge_fabric(measured(collective=None), plan([], Links()))
