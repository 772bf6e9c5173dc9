"""How much of a collective's time is the placement's, and which rank map is slow: on simulated passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge_made import fabric_plan, require
from placement_made import MIB, placed

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.fabric.placement import judge_placement
from pytest_clusterqual.model.fabric import PlacementMeasurement
from pytest_clusterqual.model.record import Finding, Judgement, Verdict

ALIKE = {"block": 1.0, "cyclic": 1.0}
SLOWER = {"block": 1.0, "cyclic": 1.3}
PIX, SYS = ["PIX"] * 4, ["SYS"] * 4


def judged(m: PlacementMeasurement, *bounds: str, **selectors: Any) -> tuple[Judgement, ...]:
    return judge_placement(m, fabric_plan([require("fabric", "placement", text, **selectors) for text in bounds]))


def findings(m: PlacementMeasurement) -> list[Finding]:
    return [finding for judgement in judged(m) for finding in judgement.findings]


@pytest.mark.parametrize(("noise", "drift"), [(0.02, 0.0), (0.5, 0.0), (0.1, 1.0)])
def test_maps_that_are_alike_share_nothing_and_nobody_is_named(noise: float, drift: float) -> None:
    found = [judged(placed(ALIKE, noise=noise, drift=drift, seed=seed)) for seed in range(20)]
    assert sum(bool(judgement.findings) for judgements in found for judgement in judgements) <= 1
    assert np.median([judgement.value for judgements in found for judgement in judgements]) == 0.0


def test_a_slow_map_is_named_at_every_size_with_how_slow_it_is() -> None:
    for seed in range(5):
        found = findings(placed(SLOWER, noise=0.03, seed=seed))
        assert [(f.suspect, f.level, f.size) for f in found] == [
            ("rank map cyclic", "suspect", 65536), ("rank map cyclic", "suspect", MIB)
        ]  # fmt: skip
        for each in found:
            assert each.interval is not None
            assert each.interval.low <= 1.3 <= each.interval.high
            assert " as long as under block" in each.evidence


def test_a_difference_of_a_few_percent_is_worth_a_note() -> None:
    assert {f.level for f in findings(placed({"block": 1.0, "cyclic": 1.03}, noise=0.002))} == {"note"}


def test_of_three_maps_the_slowest_is_held_against_the_fastest() -> None:
    found = findings(placed({"block": 1.0, "cyclic": 1.3, "nic-near": 0.8}, noise=0.03))
    assert {f.suspect for f in found} == {"rank map cyclic"}
    assert all("under nic-near" in f.evidence for f in found)


@pytest.mark.parametrize(
    ("paths", "told"),
    [
        ({"block": PIX, "cyclic": SYS}, "agrees with the topology: the farthest NIC is SYS away, under block PIX"),
        ({"block": ["PIX", "PIX", "PXB", "PIX"], "cyclic": ["PHB", *PIX[1:]]}, "agrees with the topology: the "
         "farthest NIC is PHB away, under block PXB"),
        ({"block": SYS, "cyclic": PIX}, "the topology does not explain it: the farthest NIC is PIX away, under block "
         "SYS"),
        ({"block": PIX, "cyclic": PIX}, "the topology does not explain it"),
        ({"block": PIX, "cyclic": ["SYS", None, "SYS", "SYS"]}, "paths are not known"),
        ({"block": PIX, "cyclic": ["PCIE"] * 4}, "paths are not known"),
    ],
)  # fmt: skip
def test_a_slow_map_is_held_against_its_paths(paths: dict[str, list[str | None]], told: str) -> None:
    assert all(told in finding.evidence for finding in findings(placed(SLOWER, noise=0.02, paths=paths)))


def test_only_paths_of_ranks_that_took_part_count() -> None:
    m = placed(SLOWER, noise=0.02, paths={"block": PIX, "cyclic": ["SYS", "PIX", "PIX", "PIX"]})
    some = tuple(
        replace(each, groups=((1, 2, 3),), ranks=tuple(replace(r, group_size=3 if r.rank else 0) for r in each.ranks))
        for each in m.placements
    )
    assert all("does not explain" in finding.evidence for finding in findings(replace(m, placements=some)))


@pytest.mark.parametrize(("noise", "expected"), [(0.1, 0.633), (0.02, 0.977)])
def test_the_share_is_that_of_the_variance(noise: float, expected: float) -> None:
    made = [judged(placed(SLOWER, noise=noise, repeats=20, seed=seed))[0] for seed in range(30)]
    assert np.median([judgement.value for judgement in made]) == pytest.approx(expected, abs=0.06)
    intervals = [judgement.interval for judgement in made if judgement.interval]
    assert sum(interval.low <= expected <= interval.high for interval in intervals) >= 26


def test_the_share_is_judged_by_its_interval_where_it_is_required() -> None:
    slow, same = placed(SLOWER, noise=0.01), placed(ALIKE, noise=0.01)
    assert {j.verdict for j in judged(slow)} == {Verdict.MEASURED}
    assert {j.verdict for j in judged(slow, "<= 10 %")} == {Verdict.FAIL}
    assert {j.verdict for j in judged(same, "<= 60 %")} == {Verdict.PASS}
    assert {j.verdict for j in judged(same, "<= 1 %")} == {Verdict.UNDECIDED}
    assert [j.verdict for j in judged(slow, "<= 10 %", from_bytes=MIB)] == [Verdict.MEASURED, Verdict.FAIL]
    assert {j.verdict for j in judged(slow, "<= 10 %", group="rails")} == {Verdict.MEASURED}


def test_few_passes_decide_nothing() -> None:
    for judgement in judged(placed(SLOWER, repeats=5), "<= 90 %"):
        assert judgement.verdict is Verdict.UNDECIDED
        assert judgement.interval is None
        assert [f.level for f in judgement.findings] == ["note"]
        assert "cannot be decided, because there are 5 passes" in judgement.findings[0].evidence


@pytest.mark.parametrize(
    ("group", "told"),
    [("world", "neighbours in rank order share a node"), ("intra_node", "which ranks make a group"),
     ("tp2.tensor", "which ranks of a group share a node")],
)  # fmt: skip
def test_the_reason_says_what_a_map_changes(group: str, told: str) -> None:
    assert all(told in judgement.reason for judgement in judged(placed(ALIKE, group=group)))


def test_passes_without_any_noise_are_judged_too() -> None:
    assert [(j.value, bool(j.findings)) for j in judged(placed(ALIKE, noise=0.0))] == [(0.0, False)] * 2
    assert [(j.value, bool(j.findings)) for j in judged(placed(SLOWER, noise=0.0))] == [(pytest.approx(1.0), True)] * 2


def without_a_rank(m: PlacementMeasurement) -> PlacementMeasurement:
    first = replace(m.placements[0], ranks=m.placements[0].ranks[:3])
    return replace(m, placements=(first, *m.placements[1:]))


@pytest.mark.parametrize(
    ("m", "message"),
    [
        (placed({"block": 1.0}), "got block, want two rank maps or more"),
        (replace(placed(ALIKE), placements=()), "got no rank map, want two"),
        (placed(ALIKE, wrong=1), "rank 0 received wrong data"),
        (without_a_rank(placed(ALIKE)), "no result of rank 3"),
        (placed(ALIKE, paths={"block": PIX[:2]}), "rank map block: got 2 paths, want one of 4 ranks"),
        (replace(placed(ALIKE), placements=placed(ALIKE).placements + placed(ALIKE, sizes=[MIB]).placements),
         "different numbers of sizes"),
    ],
)  # fmt: skip
def test_what_is_missing_is_an_error_that_names_it(m: PlacementMeasurement, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        judged(m)
