"""The decision of a run folder: at its end, on the command line, and beside other processes that still measure."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from decision_made import fabric, full_run, row, run
from made import RUN
from project_files import SMALL

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.leases import Leases
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.recorded.deciding import conclude, plan_of, wait_for_others
from pytest_clusterqual.run.ending import Ending

PLAN = DecisionPlan(expect="performance", source="clusterqual.yaml:70")


def folder_of(path: Path, records: Mapping[int, Record], plan: DecisionPlan | None = None) -> RunFolder:
    made = RunFolder.create(path / "run", run=RUN, environment={"decision": to_json(plan)}, simulated=False)
    for record in records.values():
        made.add_record(record)
    return made


def ending(plan: DecisionPlan | None = None) -> Ending:
    return Ending(cast(Any, SimpleNamespace(project=SimpleNamespace(name="demo", decision=plan), report=None)))


# -- at the end of a run -------------------------------------------------------------------------


def test_a_run_ends_with_its_worksheet(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, run())
    assert ending(PLAN).finish(folder, 2, "") == 2  # whoever interrupts a run has it, too
    told = json.loads((folder.path / "decision.json").read_text())
    assert (told["run"], told["outcome"]) == (RUN, "performance")
    page = (folder.path / "decision.md").read_text()
    assert page.startswith("# Performance-driven scale-out")
    assert "as expected (clusterqual.yaml:70)" in page


def test_a_run_of_the_fabric_alone_decides_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, dict(enumerate(fabric(), 1)))
    ending().finish(folder, 2, "")
    assert not list(folder.path.glob("decision.*"))


def test_lines_are_counted_in_the_file_also_where_a_run_was_resumed(tmp_path: Path) -> None:
    records = list(run().values())
    again = [replace(record, attempt=2) for record in full_run(verdict=Verdict.FAIL)]
    folder = folder_of(tmp_path, dict(enumerate([*records, *again], 1)))
    assert list(folder.numbered()) == [*range(1, len(records) - 2), *range(len(records) + 1, len(records) + 4)]
    assert list(folder.numbered().values()) == folder.records()
    decision = conclude(folder, None)
    assert decision is not None and decision.outcome == "peak-only"
    (outcome,) = [line for line in decision.lines if line.label == "outcome"]
    lines = (folder.path / "records.jsonl").read_text().splitlines()
    assert {json.loads(lines[number - 1])["judgement"]["quantity"] for number in outcome.records} == {"goodput"}
    assert {json.loads(lines[number - 1])["attempt"] for number in outcome.records} == {2}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, run())
    (folder.path / "decision.md").mkdir()
    assert ending().finish(folder, 0, "") == 1
    with pytest.raises(RunFolderError, match=r"decision\.md: cannot be written"):
        conclude(folder, None)


# -- on the command line -------------------------------------------------------------------------


def test_decide_shows_the_worksheet_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, run())
    assert main(["decide", str(folder.path)]) == 0
    assert capsys.readouterr().out.startswith("decision                    performance-driven scale-out\n")
    conclude(folder, None)
    for option, name in (("--json", "decision.json"), ("--markdown", "decision.md")):
        assert main(["decide", str(folder.path), option]) == 0
        assert capsys.readouterr().out == (folder.path / name).read_text()


@pytest.mark.parametrize(("expect", "code"), [("performance", 0), ("one-node", 1), (None, 0)])
def test_the_exit_code_says_whether_it_is_as_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], expect: Any, code: int
) -> None:
    folder = folder_of(tmp_path, run(), DecisionPlan(expect=expect, source="clusterqual.yaml:70"))
    assert main(["decide", str(folder.path)]) == code
    assert ("clusterqual.yaml:70" in capsys.readouterr().out) == (expect is not None)


def test_another_file_may_expect_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, run(), PLAN)
    file = tmp_path / "other.yaml"
    file.write_text(SMALL + "decision: {expect: replicas, goal: throughput}\n")
    assert main(["decide", str(folder.path), "--qual-config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "replicas"


def test_report_tells_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, run(), PLAN)
    main(["report", str(folder.path)])
    assert re.search(r"^decision +performance-driven scale-out: ", capsys.readouterr().out, flags=re.MULTILINE)
    assert (folder.path / "decision.md").exists()


def test_the_plan_of_a_run_is_read_strictly(tmp_path: Path) -> None:
    assert plan_of(folder_of(tmp_path / "a", {}, PLAN)) == PLAN
    assert plan_of(folder_of(tmp_path / "b", {})) is None
    assert plan_of(RunFolder.create(tmp_path / "old", run=RUN, environment={}, simulated=False)) is None
    broken = RunFolder.create(tmp_path / "c", run=RUN, environment={"decision": {"goal": "fame"}}, simulated=False)
    with pytest.raises(RunFolderError, match=r"environment\.json: decision"):
        plan_of(broken)


# -- beside other workers ------------------------------------------------------------------------


class Beside:
    """Two parts of a run that two processes write; what one of them waits for, the other does."""

    def __init__(self, path: Path, *tests: str) -> None:
        main = RunFolder.create(path / "run", run=RUN, environment={}, simulated=False)
        main.select({test: Selected(criterion="nodes", node="node1") for test in tests})
        main.select({"own": Selected(criterion="own"), "left out": Selected(criterion="memory", inapplicable="so"),
                     "decision": Selected(criterion="decision")})  # fmt: skip
        self.mine, self.other = (RunFolder.open(main.path, part=part) for part in ("gw0", "gw1"))
        self.leases = Leases(main.path / "leases")

    def record(self, test: str) -> None:
        self.other.add_record(replace(row("nodes[2nodes]", "alike", 0.0, want="<= 0"), test=test))

    def wait(self, patience: float) -> float:
        began = time.monotonic()
        wait_for_others(self.mine, self.leases, ("node0", "node1"), patience=patience)
        return time.monotonic() - began


def test_nobody_is_waited_for_who_will_make_no_record(tmp_path: Path) -> None:
    beside = Beside(tmp_path, "done")
    beside.record("done")
    assert beside.wait(60) < 30


def test_who_measures_is_waited_for(tmp_path: Path) -> None:
    beside, held = Beside(tmp_path, "a", "b"), threading.Event()

    def measure() -> None:
        for test in ("own", "a", "b"):
            lease = beside.leases.acquire(["node1"])
            held.set()
            time.sleep(1.2)  # longer than the other one's patience: it has the node, so it is at work
            if test != "own":
                beside.record(test)
            lease.release()

    worker = threading.Thread(target=measure)
    worker.start()
    held.wait()
    beside.wait(0.5)
    assert {record.test for record in beside.mine.records()} == {"a", "b"}
    worker.join()


def test_a_test_that_never_comes_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    beside = Beside(tmp_path, "crashed", "done")
    beside.record("done")
    assert 0.3 < beside.wait(0.4) < 30
