"""What Fabric asks of the ranks: which groups, sizes and turns; the ranks' answers are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import conditions
from nodes_made import node
from project_files import SMALL

from pytest_clusterqual.measure.fabric import asked_algorithm, sweep
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

KIB, MIB = 1 << 10, 1 << 20
SIZES = (MIB, KIB)
FILE = """
fabric: {sizes: {from: 1 MiB, to: 1 MiB, factor: 2}, budget: 60 s}
launcher: {kind: local, job_timeout: 120 s}
"""


class Ranks:
    """A session with a rank for each of `nodes`, whose calls take so many `seconds`."""

    def __init__(self, folder: Path, nodes: str, *, seconds: float = 0.001, simulated: bool = False) -> None:
        path = folder / "clusterqual.yaml"
        path.write_text(SMALL + FILE)
        self.nproc_per_node = len(nodes) // len(set(nodes))
        self.project = replace(load_project(path), layouts=(Layout(name="tp2", tensor=2),))
        self.places = [SimpleNamespace(rank=rank, node=name) for rank, name in enumerate(nodes)]
        self.hardware = {name: node(name) for name in nodes}
        self.asked: list[Mapping[str, Any]] = []
        self._seconds = seconds
        self._simulated = simulated

    def rank_map(self, arrangement: Any) -> Any:
        assert arrangement == "cyclic"
        return SimpleNamespace(places=self.places)

    def run(self, function: str, args: Mapping[str, Any], *, arrangement: Any, **_: Any) -> list[RankResult]:
        assert (function, arrangement) == ("pytest_clusterqual.rank.collectives:sweep", "cyclic")
        self.asked.append(args)
        timings = tuple(
            CollectiveTiming(bytes=size, iterations=4, seconds=(self._seconds,) * 3, wrong=0) for size in args["sizes"]
        )
        sizes = {rank: len(group) for group in args["groups"] for rank in group}
        return [
            RankResult(
                rank=place.rank, seconds=1.0, taken=(0, 1),
                value=to_json(RankFabric(
                    rank=place.rank, group_size=sizes.get(place.rank, 0),
                    timings=timings if place.rank in sizes else (),
                )),
            )
            for place in self.places
        ]  # fmt: skip

    def forget_samples(self) -> None:
        pass

    def telemetry(self) -> tuple[()]:
        return ()

    def conditions(self, _results: Any, **what: Any) -> Conditions:
        return conditions(ranks=len(self.places), simulated=self._simulated, **what)


def measured(ranks: Ranks, group: str, **given: Any) -> FabricMeasurement:
    given = {"rounds": 6, **given}
    return sweep(cast(Session, ranks), "all_reduce", group, sizes=SIZES, arrangement="cyclic", **given)


@pytest.mark.parametrize(
    ("group", "groups"),
    [
        ("world", ((0, 1, 2, 3),)),
        ("intra_node", ((0, 2), (1, 3))),
        ("inter_node", ((0, 1),)),
        ("rails", ((0, 1), (2, 3))),
        ("tp2.tensor", ((0, 1), (2, 3))),
    ],
)
def test_groups_follow_where_the_ranks_really_are(
    tmp_path: Path, group: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    ranks = Ranks(tmp_path, "abab")
    m = measured(ranks, group)
    assert m.groups == groups
    assert (m.conditions.collective, m.conditions.group, m.conditions.rank_map) == ("all_reduce", group, "cyclic")
    assert all(asked["groups"] == groups for asked in ranks.asked)
    assert len(m.rounds) == 6
    assert len(m.alone) == (6 if len(groups) > 1 else 0)


def test_all_at_once_and_turns_alternate_and_turns_take_the_largest_size(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "aabb")
    m = measured(ranks, "intra_node")
    assert [asked["alone"] for asked in ranks.asked] == [False, True] * 6
    assert [asked["sizes"] for asked in ranks.asked] == [[MIB, KIB], [MIB]] * 6
    more = measured(ranks, "intra_node", rounds=4, before=m)
    assert [asked["alone"] for asked in ranks.asked[12:]] == [False] * 4
    assert (len(more.rounds), more.alone) == (10, m.alone)


@pytest.mark.parametrize(
    ("nodes", "seconds", "alone"),
    [
        (20, 0.001, [0, 3, 6, 9, 12, 15, 18]),  # 8 at most
        (8, 0.001, [*range(8)]),
        (8, 0.04, [0, 2, 4, 6]),  # half of the budget is 5 s a pass, a turn of 30 calls takes 1.2 s
        (8, 0.5, [0]),
        (8, 2.1, []),  # a turn would take more than half of the job's timeout
    ],
)
def test_turns_are_few_enough_for_the_budget(tmp_path: Path, nodes: int, seconds: float, alone: list[int]) -> None:
    letters = "abcdefghijklmnopqrst"[:nodes]
    m = measured(Ranks(tmp_path, "".join(name * 2 for name in letters), seconds=seconds), "intra_node")
    for turns in m.alone:
        assert [rank.rank // 2 for rank in turns if rank.group_size] == [group for group in alone for _ in range(2)]
    assert len(m.alone) == (6 if alone else 0)


def test_links_are_what_the_nodes_say_but_simulated_ones_use_no_nic(tmp_path: Path) -> None:
    assert measured(Ranks(tmp_path, "ab"), "world").links == Links(intra_node=450e9, nic=50e9, nics_per_node=8)
    assert measured(Ranks(tmp_path, "ab", simulated=True), "world").links == Links(intra_node=450e9)


@pytest.mark.parametrize(
    ("backend", "asked", "told"),
    [
        ("nccl", [{}, {}], None),
        ("nccl", [{"NCCL_ALGO": "Ring"}] * 2, "Ring"),
        ("nccl", [{"NCCL_ALGO": "Tree"}, {}], "Tree / not set"),
        ("gloo", [{"NCCL_ALGO": "Ring"}] * 2, None),
    ],
)
def test_the_algorithm_asked_for_is_a_condition(backend: str, asked: list[dict[str, str]], told: str | None) -> None:
    assert asked_algorithm(backend, [node("a", settings=settings) for settings in asked]) == told
