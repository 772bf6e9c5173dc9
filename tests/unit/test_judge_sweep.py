"""A sweep from its groups to its verdicts: transfer and wait, the level it is held against, groups at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judge_made import fabric_plan as plan
from judge_made import require, the
from sweep_made import MIB, swept

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.verdict import judge_fabric
from pytest_clusterqual.model.fabric import FabricMeasurement
from pytest_clusterqual.model.record import Finding, Judgement, Verdict
from pytest_clusterqual.model.topology import Links

FOUR = ((0, 1, 2, 3),)
SIZES = (MIB, 4 * MIB, 16 * MIB)


def findings(judgements: tuple[Judgement, ...], kind: str) -> list[Finding]:
    """Different ones, each once."""
    return list({f.suspect: f for j in judgements for f in j.findings if f.kind == kind}.values())


def one_ms_a_mib(m: FabricMeasurement) -> Judgement:
    return the(judge_fabric(m, plan([require("fabric", "busbw", ">= 1.4 GB/s")])), "busbw", "1 MiB")


def test_bandwidth_is_judged_on_transfer_and_reported_with_wait() -> None:
    m = swept(groups=FOUR, late=lambda rank, size: 1e-3 * (rank == 2))
    busbw, wait = one_ms_a_mib(m), the(judge_fabric(m, plan()), "wait", "1 MiB")
    assert busbw.value == pytest.approx(1.5 * MIB / 1e-3, rel=0.03)
    assert busbw.verdict is Verdict.PASS
    assert "slowest rank; with wait 78" in busbw.reason  # half of it: 1 ms of transfer, 1 ms of wait
    assert (wait.verdict, wait.unit, wait.value) == (Verdict.MEASURED, "1", pytest.approx(0.5, abs=0.02))
    assert wait.interval is not None
    assert (wait.interval.samples, len(wait.samples)) == (6, 6)
    assert wait.per_rank == {str(r): pytest.approx(0.0 if r == 2 else 0.5, abs=0.02) for r in range(4)}


def test_what_is_slow_itself_is_not_forgiven() -> None:
    slow_link = swept(groups=FOUR, pace=lambda size: 2e-3)
    slow_receiver = swept(groups=FOUR, longer=lambda rank: 1.0 * (rank == 2))
    for m in (slow_link, slow_receiver):
        busbw = one_ms_a_mib(m)
        assert busbw.value == pytest.approx(1.5 * MIB / 2e-3, rel=0.03)
        assert busbw.verdict is Verdict.FAIL
    assert [f.suspect for f in one_ms_a_mib(slow_receiver).findings] == ["rank 2 on node2"]
    assert one_ms_a_mib(slow_link).findings == ()


def test_a_wait_can_be_required() -> None:
    m = swept(groups=FOUR, late=lambda rank, size: 1e-3 * (rank == 2))
    judged = judge_fabric(m, plan([require("fabric", "wait", "<= 20 %")]))
    assert the(judged, "wait", "1 MiB").verdict is Verdict.FAIL


def test_a_rank_that_is_late_at_two_sizes_is_named_once_at_the_larger() -> None:
    m = swept(groups=FOUR, sizes=SIZES, late=lambda rank, size: 5e-3 * (rank == 1))
    (finding,) = findings(judge_fabric(m, plan()), "late rank")
    assert (finding.suspect, finding.level, finding.size) == ("rank 1 on node1", "suspect", 16 * MIB)
    assert finding.evidence.startswith("it comes 4.9") or finding.evidence.startswith("it comes 5")
    assert "last to 96 of 96 (by chance to about 24); late at 3 of 3 sizes" in finding.evidence
    assert finding.interval is not None
    assert finding.interval.low == pytest.approx(1 + 5e-3 / 16e-3, rel=0.05)
    once = swept(groups=FOUR, sizes=SIZES, late=lambda rank, size: 5e-3 * (rank == 1 and size == MIB))
    assert findings(judge_fabric(once, plan()), "late rank") == []


def test_a_node_whose_ranks_are_late_together_is_named_in_their_place() -> None:
    m = swept(groups=((0, 1, 2, 3, 4, 5),), nproc_per_node=2, late=lambda rank, size: 5e-3 * (rank in (2, 3)))
    judged = judge_fabric(m, plan())
    (finding,) = findings(judged, "late node")
    assert (finding.suspect, finding.level) == ("node1", "suspect")
    assert finding.evidence.startswith("its 2 ranks come ")
    assert "last to 96 of 96 (by chance to about 6); late at 1 of 1 sizes" in finding.evidence
    assert findings(judged, "late rank") == []


def test_waits_that_nobody_stands_out_in_are_a_note() -> None:
    (finding,) = findings(judge_fabric(swept(groups=FOUR, noise=1.0), plan()), "diffuse waits")
    assert (finding.suspect, finding.level) == ("no single rank", "note")
    quiet = judge_fabric(swept(groups=FOUR), plan())
    assert findings(quiet, "diffuse waits") == findings(quiet, "late rank") == []


@pytest.mark.parametrize("collective", ["send_recv", "broadcast"])
def test_where_not_everybody_waits_for_everybody_nothing_is_deducted(collective: str) -> None:
    m = swept(groups=FOUR, collective=collective, late=lambda rank, size: 1e-3 * (rank == 2))
    judged = judge_fabric(m, plan())
    assert the(judged, "busbw", "1 MiB").value == pytest.approx(MIB / 2e-3, rel=0.03)
    wait = the(judged, "wait")
    assert (wait.verdict, wait.value) == (Verdict.MEASURED, None)
    assert f"in {collective} not everybody waits for everybody" in wait.reason
    required = judge_fabric(m, plan([require("fabric", "wait", "<= 20 %")]))
    assert the(required, "wait", "1 MiB").verdict is Verdict.ERROR


def test_calls_that_one_rank_did_not_time_are_refused() -> None:
    m = swept(groups=FOUR)
    first, *others = m.rounds[3]
    broken = replace(first, timings=(replace(first.timings[0], instances=first.timings[0].instances[:-1]),))
    with pytest.raises(MeasurementError, match="round 4, rank 1, 1 MiB: got 16 single calls, want 15"):
        judge_fabric(replace(m, rounds=(*m.rounds[:3], (broken, *others), *m.rounds[4:])), plan())


def test_the_slowest_of_unequal_groups_counts_by_its_own_size() -> None:
    m = swept(groups=((0, 1), (2, 3, 4, 5)), group="ep.expert", nproc_per_node=1, noise=0.0, instances=False)
    judged = judge_fabric(m, plan())
    # 1 ms a MiB in both: all-reduce counts 1 over two ranks, 1.5 over four
    assert the(judged, "busbw", "1 MiB").value == pytest.approx(MIB / 1e-3)
    assert "groups of 2 or 4 ranks" in the(judged, "busbw", "1 MiB").reason


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (((0, 1), (1, 2)), "the groups rails are not made of different ranks of 4"),
        (((0, 9),), "not made of different ranks"),
        (((0, 1), (2,)), "a group rails of 1 rank has nobody to talk to"),
        (((0, 1), (2, 3)), "rank 0 was in a group of 4, want 2"),
    ],
)
def test_groups_that_are_not_those_of_the_ranks_are_refused(groups: tuple[tuple[int, ...], ...], said: str) -> None:
    with pytest.raises(MeasurementError, match=said):
        judge_fabric(replace(swept(groups=FOUR, group="rails"), groups=groups), plan())


def test_a_group_that_is_slower_than_its_like_is_named() -> None:
    rails = tuple((rail, rail + 4) for rail in range(4))
    m = swept(groups=rails, group="rails", nproc_per_node=4, of_group=lambda group: 2.0 if group[0] == 2 else 1.0)
    (finding,) = findings(judge_fabric(m, plan()), "slow group")
    assert finding.suspect == "the group of ranks 2, 6"
    nodes = tuple(tuple(range(first, first + 4)) for first in (0, 4, 8))
    m = swept(groups=nodes, group="intra_node", nproc_per_node=4, of_group=lambda group: 2.0 if group[0] == 4 else 1.0)
    assert [f.suspect for f in findings(judge_fabric(m, plan()), "slow group")] == ["the group on node1"]


def test_alpha_and_plateau_are_those_of_the_whole_sweep() -> None:
    sizes = (1024, 4096, 8192, MIB, 4 * MIB, 16 * MIB)
    m = swept(groups=FOUR, sizes=sizes, pace=lambda size: 50e-6 + size / 10e9, noise=0.001)
    required = [require("fabric", "alpha", "<= 60 us"), require("fabric", "plateau", ">= 12 GB/s")]
    judged = judge_fabric(m, plan(required))
    alpha, plateau = the(judged, "alpha"), the(judged, "plateau")
    assert (alpha.value, alpha.verdict) == (pytest.approx(50e-6, rel=0.02), Verdict.PASS)
    assert "from 3 sizes 1 KiB to 8 KiB" in alpha.reason
    assert (plateau.value, plateau.verdict) == (pytest.approx(14.1e9, rel=0.05), Verdict.PASS)
    assert "from 4 MiB and 16 MiB" in plateau.reason
    large = swept(groups=FOUR, sizes=(MIB, 4 * MIB), pace=lambda size: 50e-6 + size / 10e9)
    assert the(judge_fabric(large, plan(required)), "alpha").verdict is Verdict.ERROR
    assert the(judge_fabric(large, plan()), "alpha").verdict is Verdict.MEASURED


def above(value: float, *, nodes: int, **links: float) -> Judgement:
    """16 ranks on `nodes` nodes show that much busbw, and half of it is required."""
    factor = 2 * 15 / 16
    m = swept(groups=(tuple(range(16)),), nproc_per_node=16 // nodes, pace=lambda size: size * factor / value)
    required = [require("fabric", "busbw", f">= {value / 2:.0f} B/s")]
    return the(judge_fabric(m, plan(required, Links(nics_per_node=8, **links))), "busbw", "1 MiB")


def test_more_than_the_topology_gives_is_a_question_that_names_the_algorithm() -> None:
    busbw = above(470e9, nodes=2, nic=50e9)
    assert busbw.verdict is Verdict.UNDECIDED
    assert "is more than the topology gives, 400 GB/s: a tree up to 750 GB/s and NVLS up to 750 GB/s" in busbw.reason
    assert "hold the run to one algorithm by NCCL_ALGO (Ring)" in busbw.reason
    assert [finding.kind for finding in busbw.findings] == ["above the bound"]
    assert busbw.expected == 400e9


def test_more_than_any_algorithm_gives_asks_for_the_link_rates() -> None:
    busbw = above(470e9, nodes=4, nic=6.25e9)
    assert busbw.verdict is Verdict.UNDECIDED
    assert "the link rates of the file (GB/s or Gbit/s? how many NICs?)" in busbw.reason


def test_what_reaches_the_level_passes() -> None:
    busbw = above(396e9, nodes=2, nic=50e9)
    assert (busbw.verdict, busbw.findings) == (Verdict.PASS, ())
    assert above(470e9, nodes=2, intra_node=1e12).verdict is Verdict.PASS


def test_the_algorithm_a_run_was_held_to_beats_the_file() -> None:
    m = swept(
        groups=(tuple(range(16)),), nproc_per_node=8, pace=lambda size: size * 1.875 / 470e9, algorithm="NVLSTree"
    )
    busbw = the(
        judge_fabric(m, plan([require("fabric", "busbw", ">= 60 % of expected")], Links(nic=400e9))), "busbw", "1 MiB"
    )
    assert (busbw.expected, busbw.verdict) == (750e9, Verdict.PASS)


def test_found_links_count_only_on_real_nodes() -> None:
    found = Links(nic=1e6)
    m = replace(swept(groups=FOUR), links=found)
    assert findings(judge_fabric(m, plan()), "above the bound")
    assert the(judge_fabric(m, plan()), "busbw", "1 MiB").verdict is Verdict.MEASURED
    simulated = replace(swept(groups=FOUR, simulated=True), links=found)
    assert not findings(judge_fabric(simulated, plan()), "above the bound")
    assert findings(judge_fabric(simulated, plan([], found)), "above the bound")


RAILS = tuple((rail, rail + 4) for rail in range(4))


def contended(text: str = "<= 10 %", **more: object) -> tuple[Judgement, ...]:
    m = swept(
        groups=RAILS, group="rails", nproc_per_node=4, sizes=(MIB, 4 * MIB), noise=0.005,
        alone=lambda group: 2.0 if group[0] == 2 else 1.2,
    )  # fmt: skip
    return judge_fabric(replace(m, **more), plan([require("fabric", "contention", text)]))


def test_contention_is_that_of_the_group_that_loses_most() -> None:
    judged = contended()
    contention = the(judged, "contention", "4 MiB")
    assert (contention.value, contention.verdict) == (pytest.approx(1.0, abs=0.05), Verdict.FAIL)
    assert contention.interval is not None
    assert contention.interval.low <= 1.0 <= contention.interval.high
    assert len(contention.samples) == 6
    assert contention.per_rank["2"] == contention.per_rank["6"] == contention.value
    assert contention.per_rank["0"] == pytest.approx(0.2, abs=0.05)
    (finding,) = contention.findings
    assert finding.suspect == "what the group of ranks 2, 6 shares with the other groups"
    assert (finding.kind, finding.level, finding.size) == ("contention", "suspect", 4 * MIB)
    assert [j.label for j in judged if j.quantity == "contention"] == ["4 MiB"]


def test_contention_within_the_tolerance_is_a_note_and_unmeasured_is_an_error() -> None:
    allowed = the(contended("<= 200 %"), "contention", "4 MiB")
    assert (allowed.verdict, [f.level for f in allowed.findings]) == (Verdict.PASS, ["note"])
    missing = the(contended(alone=()), "contention")
    assert (missing.verdict, missing.value) == (Verdict.ERROR, None)
    one = judge_fabric(swept(groups=FOUR), plan([require("fabric", "contention", "<= 1 %")]))
    assert "there is one group only" in the(one, "contention").reason


def test_a_group_that_was_alone_in_some_rounds_only_is_refused() -> None:
    m = swept(groups=RAILS, group="rails", nproc_per_node=4, alone=lambda group: 2.0)
    silent = tuple(replace(rank, timings=()) if rank.rank == 5 else rank for rank in m.alone[2])
    with pytest.raises(MeasurementError, match="round 3 of groups alone: rank 5 measured no size"):
        judge_fabric(replace(m, alone=(*m.alone[:2], silent, *m.alone[3:])), plan())
