"""What Scaling asks of the ranks: points in turn, launches, and at the end the step taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import conditions
from project_files import SMALL
from waterfall_made import Made

from pytest_clusterqual.errors import JobError
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.measure.cases import Case
from pytest_clusterqual.measure.criteria import measure
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.training import ScalingMeasurement
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

CASE = Case(criterion="scaling", nodes=2, layout="ddp", baseline=1)
TRAINING, LADDER = "pytest_clusterqual.rank.training:fixed_work", "pytest_clusterqual.rank.ladder:climb"


class Ranks:
    """A session whose ranks answer from a made measurement, one run or some rounds after the other."""

    def __init__(self, folder: Path, scaling: str, made: Made, *, fails: bool = False) -> None:
        path = folder / "clusterqual.yaml"
        path.write_text(f"{SMALL}scaling: {scaling}\nlauncher: {{kind: local, job_timeout: 100 s}}\n")
        self.project = load_project(path)
        self.places = [SimpleNamespace(rank=rank, node=f"node{rank}", versions={}) for rank in range(made.nodes)]
        self.asked: list[str] = []
        self.given: list[Mapping[str, Any]] = []
        self.released: list[int] = []
        self._made, self._fails = made, fails

    def run(self, function: str, args: Mapping[str, Any], *, nodes: int, new_group: bool, **_: Any) -> list[RankResult]:
        assert new_group
        self.asked.append(f"{function.rpartition(':')[2]} {nodes}")
        self.given.append(args)
        if function == LADDER:
            if self._fails:
                raise JobError("rank 1 on node1 was killed")
            rounds = replace(self._made, rounds=args["rounds"], seed=len(self.asked)).measurement().apart
            return [self._answer(rank, [made[rank] for made in rounds]) for rank in range(nodes)]
        assert function == TRAINING
        runs = replace(self._made, runs=1, seed=len(self.asked)).measurement().runs
        (run,) = [run for run in runs if run.conditions.nodes == nodes]
        return [self._answer(rank.rank, rank) for rank in run.ranks]

    def _answer(self, rank: int, value: Any) -> RankResult:
        return RankResult(rank=rank, value=to_json(value), seconds=1.0, taken=(0, 1))

    def release(self) -> None:
        self.released.append(len(self.asked))

    def forget_samples(self) -> None:
        pass

    def telemetry(self) -> tuple[()]:
        return ()

    def conditions(self, _results: Any, *, nodes: int, **what: Any) -> Conditions:
        what.pop("telemetry", None)
        return conditions(nodes=nodes, ranks=nodes, **what)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement takes 10 s."""

    def ticked(before: ScalingMeasurement | None = None) -> SimpleNamespace:
        return SimpleNamespace(started=0.0, seconds=10.0 + (before.seconds if before else 0.0))

    monkeypatch.setattr("pytest_clusterqual.measure.parts.Clock", ticked)


def measured(ranks: Ranks, case: Case = CASE) -> ScalingMeasurement:
    return cast(ScalingMeasurement, measure(cast(Session, ranks), case))


def verdict(ranks: Ranks, m: ScalingMeasurement, quantity: str) -> Verdict:
    (found,) = [j for j in judge(ranks.project, m) if j.quantity == quantity and j.label == "2 nodes"]
    return found.verdict


def test_the_step_is_taken_apart_once_the_verdict_is_closed(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "{require: [{nodes: 2, speedup: '>= 1.3'}]}", Made(noise=0.02))
    m = measured(ranks)
    assert ranks.asked == [*["fixed_work 1", "fixed_work 2", "fixed_work 2", "fixed_work 1"] * 3, "climb 2"]
    assert (len(m.apart), m.not_apart, {run.launch for run in m.runs}) == (16, "", {1})
    given = ranks.given[-1]
    assert (given["seconds"], given["least"], given["whole"]) == (3.0, 12, False)
    assert 0 < given["limit"] <= 50.0, "half of the job timeout at most"
    assert verdict(ranks, m, "speedup") is Verdict.PASS


def test_a_rank_that_looks_slow_is_looked_at_again(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "{}", Made(noise=0.02, slow={1: 1.5}))
    m = measured(ranks)
    assert (ranks.asked.count("climb 2"), len(m.apart)) == (2, 32)


def test_a_failure_of_it_takes_nothing_from_the_verdict(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "{require: [{nodes: 2, speedup: '>= 1.3'}]}", Made(noise=0.02), fails=True)
    m = measured(ranks)
    assert (m.apart, m.not_apart) == ((), "rank 1 on node1 was killed")
    assert verdict(ranks, m, "speedup") is Verdict.PASS


@pytest.mark.parametrize("scaling", ["{waterfall: false}", "{budget: 10 s}"])
def test_it_is_left_out_where_it_is_not_wanted_or_no_time_is_left(tmp_path: Path, scaling: str) -> None:
    ranks = Ranks(tmp_path, scaling, Made(noise=0.02))
    m = measured(ranks)
    assert "climb 2" not in ranks.asked
    assert m.apart == ()
    assert m.not_apart.startswith("the runs took ") == ("budget" in scaling)


def test_rounds_are_added_while_what_they_judge_is_open(tmp_path: Path) -> None:
    """About as much of the step is exposed as is allowed, which remains open until the budget ends."""
    made = Made(transfer=0.0111, noise=0.06)
    ranks = Ranks(tmp_path, "{budget: 35 s, require: [{nodes: 2, exposed_communication: '<= 14 %'}]}", made)
    m = measured(ranks)
    assert ranks.asked.count("climb 2") == 2, "a third time would take longer than the budget"
    assert (ranks.asked.count("fixed_work 2"), len(m.apart)) == (6, 32)
    assert verdict(ranks, m, "exposed_communication") is Verdict.UNDECIDED


def test_repeats_are_spread_over_fresh_launches(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, "{repeats: 6, launches: 3, waterfall: false}", Made(noise=0.02))
    m = measured(ranks)
    assert ranks.released == [4, 8], "between pairs of runs, not before the first"
    assert [run.launch for run in m.runs] == [1] * 4 + [2] * 4 + [3] * 4


def test_repeats_that_are_added_belong_to_the_last_launch(tmp_path: Path) -> None:
    scaling = "{repeats: 6, launches: 2, waterfall: false, budget: 25 s, require: [{nodes: 2, speedup: '>= 2'}]}"
    ranks = Ranks(tmp_path, scaling, Made(noise=0.02))
    m = measured(ranks)
    assert ranks.released == [6]
    assert [run.launch for run in m.runs] == [1] * 6 + [2] * (6 + 6)
