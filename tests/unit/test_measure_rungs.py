"""What the memory ladder asks of the ranks: every rung in fresh processes, then the time of those that fit, in turn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import conditions
from project_files import SMALL
from rungs_made import fits

from pytest_clusterqual.errors import JobError
from pytest_clusterqual.measure.cases import Case
from pytest_clusterqual.measure.criteria import measure
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.memory import MemoryLadderMeasurement, RungResult
from pytest_clusterqual.model.rungs import rungs
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

CASE = Case(criterion="memory", nodes=4, part="ladder")
ALL = ["one device", "microbatch 2", "microbatch 1", "recompute selective", "recompute full"]
MEMORY, TRAINING = "pytest_clusterqual.rank.memory:measure", "pytest_clusterqual.rank.training:fixed_work"


class Ranks:
    """Four nodes, 5 s a run. `starved` rungs run out of memory at once, `late` ones when they are timed again."""

    nodes, nproc_per_node = ("node0", "node1", "node2", "node3"), 1

    def __init__(
        self, folder: Path, memory: str = "{ladder: true}", starved: tuple[str, ...] = (), late: tuple[str, ...] = ()
    ) -> None:
        path = folder / "clusterqual.yaml"
        path.write_text(f"{SMALL.replace('microbatch: 1', 'microbatch: 4')}memory: {memory}\n")
        self.project = load_project(path)
        self.places = [SimpleNamespace(rank=rank, node=f"node{rank}", versions={}) for rank in range(4)]
        self.asked: list[tuple[str, str]] = []
        self.given: list[Mapping[str, Any]] = []
        self.now = 0.0
        self._starved, self._late = starved, late

    def rank_map(self) -> Any:
        return SimpleNamespace(places=self.places)

    def run(
        self, function: str, args: Mapping[str, Any], *, nodes: int, per_node: int, fresh: bool = False,
        new_group: bool = False, **_: Any,
    ) -> list[RankResult]:  # fmt: skip
        layout, microbatch = args["layout"]["name"], args["workload"]["microbatch"]
        (rung,) = [
            each for each in rungs(self.project.workload, nodes=4, nproc_per_node=1)
            if (each.layout.name, each.microbatch) == (layout, microbatch)
        ]  # fmt: skip
        assert (nodes, per_node) == (rung.nodes, rung.per_node)
        self.asked.append((function.rpartition(":")[2], rung.name))
        self.given.append(args)
        if rung.name in self._starved or (rung.name in self._late and self.timed().count(rung.name) == 2):
            raise JobError("a job failed", out_of_memory="rank 0 on node0 could not allocate 4 MiB")
        assert (fresh, new_group) == ((True, False) if function == MEMORY else (False, True))
        self.now += 5.0
        result = fits(rung, 50, 0.1, noise=(1.0,))
        answers: Any = result.ranks if function == MEMORY else result.runs[0].ranks
        return [RankResult(rank=each.rank, value=to_json(each), seconds=1.0, taken=(0, 1)) for each in answers]

    def forget_samples(self) -> None:
        pass

    def telemetry(self) -> tuple[()]:
        return ()

    def conditions(self, _results: Any, *, nodes: int = 4, per_node: int = 1, **what: Any) -> Conditions:
        for name in ("telemetry", "places"):
            what.pop(name, None)
        return conditions(nodes=nodes, nproc_per_node=per_node, ranks=nodes * per_node, **what)

    def timed(self) -> list[str]:
        return [name for function, name in self.asked if function == "fixed_work"]


def climbed(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> dict[str, RungResult]:
    class Clock:
        def __init__(self) -> None:
            self._began = ranks.now

        @property
        def seconds(self) -> float:
            return ranks.now - self._began

    monkeypatch.setattr("pytest_clusterqual.measure.rungs.Clock", Clock)
    m = cast(MemoryLadderMeasurement, measure(cast(Session, ranks), CASE))
    return {result.rung.name: result for result in m.rungs}


def test_rungs_are_tried_in_order_and_then_timed_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, "{ladder: true, steps: 2, device_memory: 100 MiB, budget: 10 min}")
    found = climbed(ranks, monkeypatch)
    tried = [*ALL, "2 nodes"]
    assert ranks.asked[: len(tried)] == [("measure", name) for name in tried]
    assert (ranks.given[0]["steps"], ranks.given[0]["device_memory"]) == (2, 100 * 2**20)
    assert ranks.timed() == [*tried, *reversed(tried)] * 3
    assert {len(found[name].runs) for name in tried} == {6}
    assert (found["4 nodes"].untried, found["4 nodes"].ranks) == ("2 nodes are enough", ())
    assert found["2 nodes"].rank_nodes == ("node0", "node1")


def test_out_of_memory_is_a_result_and_the_next_rung_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = climbed(Ranks(tmp_path, starved=(*ALL, "2 nodes")), monkeypatch)
    assert [name for name, result in found.items() if result.out_of_memory] == [*ALL, "2 nodes"]
    assert found["one device"].out_of_memory == "rank 0 on node0 could not allocate 4 MiB"
    assert len(found["4 nodes"].runs) == 6
    assert not any(result.runs for name, result in found.items() if name != "4 nodes")


def test_a_ladder_on_which_nothing_fits_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = climbed(Ranks(tmp_path, starved=(*ALL, "2 nodes", "4 nodes")), monkeypatch)
    assert all(result.out_of_memory for result in found.values())


def test_a_rung_that_fails_later_keeps_its_memory_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, late=("microbatch 1",))
    found = climbed(ranks, monkeypatch)["microbatch 1"]
    assert found.ranks and not found.runs
    assert found.out_of_memory == "rank 0 on node0 could not allocate 4 MiB"
    assert ranks.timed().count("microbatch 1") == 2


def test_another_failure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path)

    def fails(*_: Any, **__: Any) -> None:
        raise JobError("rank 0 on node0 raised ValueError: boom")

    monkeypatch.setattr(ranks, "run", fails)
    with pytest.raises(JobError, match="boom"):
        climbed(ranks, monkeypatch)


@pytest.mark.parametrize(("budget", "rounds"), [("1 s", 1), ("60 s", 2), ("95 s", 3)])
def test_timing_ends_before_the_budget_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str, rounds: int
) -> None:
    """A round of six rungs takes 30 s."""
    found = climbed(Ranks(tmp_path, f"{{ladder: true, budget: {budget}}}"), monkeypatch)
    assert {len(result.runs) for name, result in found.items() if name != "4 nodes"} == {rounds}
