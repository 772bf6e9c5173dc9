"""When pairs of nodes are asked for, and with what messages; the ranks' answers are written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest
from judge_made import require
from made import conditions
from pairs_made import exchanged, names, of_node
from project_files import SMALL

from pytest_clusterqual.errors import JobError
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.measure.cases import Case, cases
from pytest_clusterqual.measure.criteria import measure
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, PairsMeasurement, RankFabric
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

MIB = 1 << 20
NODES = 4
FABRIC = """
fabric:
  collectives: [all_reduce]
  sizes: {from: 1 MiB, to: 1 MiB, factor: 2}
  require: [{collective: all_reduce, busbw: ">= 10 MB/s"}]
"""


class Answers:
    """A session whose ranks answer what is written here: a collective of so many `seconds`, and a slow node3."""

    def __init__(self, folder: Path, seconds: float, *, simulated: bool = False, job_timeout: float = 120.0) -> None:
        path = folder / "clusterqual.yaml"
        path.write_text(f"{SMALL}launcher: {{kind: local, job_timeout: {job_timeout} s}}\n{FABRIC}")
        self.project = load_project(path)
        self.places = [SimpleNamespace(rank=rank, node=node) for rank, node in enumerate(names(NODES))]
        self.nproc_per_node = 1
        self.hardware: dict[str, Any] = {}
        self.asked: list[tuple[str, Mapping[str, Any], Any]] = []
        self._seconds = seconds
        self._simulated = simulated
        self.device = "cpu"
        self._pairs = exchanged(NODES, of_node("node3", NODES))

    def run(self, function: str, args: Mapping[str, Any], *, arrangement: Any, **_: Any) -> list[RankResult]:
        job = function.rpartition(".")[2]
        self.asked.append((job, args, arrangement))
        self._asked_alone = [tuple(pair) for pair in args.get("alone", ())] if job == "pairs:exchange" else []
        answer = {"collectives:sweep": self._sweep, "pairs:exchange": self._exchange}[job]
        return [RankResult(rank=rank, value=to_json(answer(rank)), seconds=1.0, taken=(0, 1)) for rank in range(NODES)]

    def _sweep(self, rank: int) -> RankFabric:
        timing = CollectiveTiming(bytes=MIB, iterations=4, seconds=(self._seconds,) * 3, wrong=0)
        return RankFabric(rank=rank, group_size=NODES, timings=(timing,))

    def _exchange(self, rank: int) -> Any:
        """What the rank received: of all if any partner is asked for, and of those to be tried alone."""
        mine = [pair for pair in self._pairs if pair.receiver == names(NODES)[rank]]
        alone = [
            replace(pair, alone=True)
            for pair in mine
            if {(pair.sender, pair.receiver, 0), (pair.receiver, pair.sender, 0)} & set(self._asked_alone)
        ]
        return (mine if self.asked[-1][1]["partners"] else []) + alone

    def rank_map(self, _arrangement: Any) -> Any:
        return SimpleNamespace(places=self.places)

    def forget_samples(self) -> None:
        pass

    def telemetry(self) -> tuple[()]:
        return ()

    def conditions(self, _results: Any, **what: Any) -> Conditions:
        return conditions(
            nodes=NODES, ranks=NODES, rank_nodes=tuple(names(NODES)), simulated=self._simulated, **what
        )  # fmt: skip


def measured(answers: Answers) -> FabricMeasurement:
    case = Case(criterion="fabric", nodes=NODES, collective="all_reduce", group="world", rank_map="cyclic")
    return cast(FabricMeasurement, measure(cast(Session, answers), case))


def asked(answers: Answers) -> tuple[int, int]:
    """Size and partners of the exchange, which follows the collective, and is followed by a second round alone."""
    measured(answers)
    assert [(job, arrangement) for job, _, arrangement in answers.asked] == [
        *[("collectives:sweep", "cyclic")] * 6, *[("pairs:exchange", "cyclic")] * 2
    ]  # fmt: skip
    (args, second) = (args for _, args, _ in answers.asked[-2:])
    assert set(args) == {"size", "repeats", "partners", "rails", "alone"}
    assert (second["size"], second["partners"]) == (MIB, 0)
    assert {end for pair in second["alone"] for end in pair[:2]} == set(names(NODES))
    return args["size"], args["partners"]


def test_a_slow_collective_is_followed_by_pairs_and_the_finding_names_the_node(tmp_path: Path) -> None:
    answers = Answers(tmp_path, seconds=0.5)
    m = measured(answers)
    assert len([pair for pair in m.pairs if not pair.alone]) == NODES * (NODES - 1)
    busbw = next(judgement for judgement in judge(answers.project, m) if judgement.quantity == "busbw")
    assert [(finding.suspect, finding.level) for finding in busbw.findings] == [("node3", "suspect")]


def test_a_pair_that_hangs_takes_nothing_from_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: Any, **__: Any) -> Any:
        raise JobError("pairs did not end within its limit")

    answers = Answers(tmp_path, seconds=0.5)
    monkeypatch.setattr("pytest_clusterqual.measure.pairs.after_sweep", hang)
    m = measured(answers)
    assert m.pairs == ()
    busbw = next(judgement for judgement in judge(answers.project, m) if judgement.quantity == "busbw")
    assert busbw.verdict is Verdict.FAIL
    (finding,) = busbw.findings
    assert (finding.kind, finding.level) == ("cannot be decided", "note")
    assert finding.evidence == "because pairs of nodes could not be asked: pairs did not end within its limit"


@pytest.mark.parametrize(("seconds", "simulated"), [(0.01, False), (0.5, True)])
def test_a_fast_one_is_not_nor_one_on_simulated_nodes(tmp_path: Path, seconds: float, simulated: bool) -> None:
    answers = Answers(tmp_path, seconds, simulated=simulated)
    assert measured(answers).pairs == ()
    assert {job for job, _, _ in answers.asked} == {"collectives:sweep"}


@pytest.mark.parametrize(
    ("seconds", "job_timeout", "expected"),
    [
        (0.16, 3600, (MIB, 31)),
        (0.4, 120, (MIB, 10)),
        (0.4, 10, (MIB, 3)),
        (6.0, 120, (MIB, 3)),
    ],
)
def test_messages_and_partners_are_fewer_where_it_would_take_too_long(
    tmp_path: Path, seconds: float, job_timeout: float, expected: tuple[int, int]
) -> None:
    assert asked(Answers(tmp_path, seconds, job_timeout=job_timeout)) == expected


@pytest.mark.parametrize(("seconds", "size"), [(0.0155, 16 * MIB), (0.02, 4 * MIB), (0.06, 4 * MIB), (0.07, MIB)])
def test_fast_links_get_larger_messages(tmp_path: Path, seconds: float, size: int) -> None:
    answers = Answers(tmp_path, seconds)
    fabric = answers.project.fabric
    assert fabric is not None
    (required,) = fabric.require
    answers.project = replace(answers.project, fabric=replace(fabric, require=(replace(required, value=1e9),)))
    assert asked(answers)[0] == size


@pytest.mark.parametrize(("nodes", "applies"), [(1, False), (2, True), (16, True)])
def test_the_exam_is_a_case_of_its_own_where_the_file_asks_for_it(tmp_path: Path, nodes: int, applies: bool) -> None:
    project = Answers(tmp_path, seconds=0.5).project
    assert project.fabric is not None
    assert not [case for case in cases(project, "fabric", nodes=nodes, nproc_per_node=1) if case.part == "pairs"]
    project = replace(project, fabric=replace(project.fabric, pairs=True))
    (case,) = (case for case in cases(project, "fabric", nodes=nodes, nproc_per_node=1) if case.part == "pairs")
    assert (str(case), case.collective, case.group) == ("pairs", None, None)
    assert (case.inapplicable == "") is applies


def examined(answers: Answers) -> PairsMeasurement:
    case = Case(criterion="fabric", nodes=NODES, part="pairs")
    return cast(PairsMeasurement, measure(cast(Session, answers), case))


def test_the_exam_probes_then_asks_all_pairs_and_tries_the_suspects_alone(tmp_path: Path) -> None:
    answers = Answers(tmp_path, seconds=0.5)
    m = examined(answers)
    probe, first, second = (args for _, args, _ in answers.asked)
    assert (probe["partners"], probe["alone"]) == (1, [])
    assert first["repeats"] >= 6
    assert len(first["alone"]) == 2
    assert second["partners"] == 0
    (judged, *_) = judge(answers.project, m)
    assert judged.quantity == "pair_busbw"
    assert [(finding.suspect, finding.level) for finding in judged.findings] == [("node3", "suspect")]
    assert (m.conditions.collective, m.conditions.group) == (None, None)


def test_an_open_verdict_adds_repeats_of_the_same_pairs(tmp_path: Path) -> None:
    answers = Answers(tmp_path, seconds=0.5)
    fabric = answers.project.fabric
    assert fabric is not None
    slowest = max(exchanged(NODES, of_node("node3", NODES)), key=lambda pair: median(pair.seconds))
    least, second, *_ = sorted(slowest.bytes / seconds for seconds in slowest.seconds)
    # Six repeats enclose it; of twice as many the least two do not count.
    required = require("fabric", "pair_busbw", f">= {(least + second) / 2e6} MB/s")
    answers.project = replace(answers.project, fabric=replace(fabric, require=(required,)))
    m = examined(answers)
    rounds = [args for _, args, _ in answers.asked[1:-1]]
    assert len(rounds) == 2
    assert rounds[0] == rounds[1]
    at_work = [pair for pair in m.pairs if not pair.alone]
    assert len(at_work) == NODES * (NODES - 1)
    assert {len(pair.seconds) for pair in at_work} == {12}
