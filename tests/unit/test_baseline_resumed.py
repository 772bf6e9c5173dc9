"""A run that goes on or is replayed keeps its baseline, and its exit code and its records say the same."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asked_made import LAUNCHER, opened
from baseline_made import good, peaking, run
from recorded_made import PROJECT, TEST

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.memory import MemoryMeasurement
from pytest_clusterqual.recorded.judging import judge_again, own_project
from pytest_clusterqual.run.qualification import Qualification

FILE = PROJECT.replace("  data: {path: not-on-this-machine.bytes}\n", "") + LAUNCHER
HERE = "test_memory.py::test_memory[ddp-2nodes]"
AS_MEASURED = [("PASS", 1), ("FAIL", 1), ("PASS", 1)]  # peak by the file, peak and headroom by the baseline
SUITE = """
import pytest


@pytest.mark.criterion("memory")
def test_memory(measurement, qualify):
    qualify(measurement)
"""


@pytest.fixture
def site(pytester: pytest.Pytester) -> Path:
    """A project file, and two good runs."""
    (pytester.path / "clusterqual.yaml").write_text(FILE)
    good(pytester.path / "good", 400, tests=[TEST, TEST.replace("ddp", "fsdp")])
    good(pytester.path / "other", 300)
    return pytester.path


def begun(site: Path, **options: Any) -> None:
    assert opened(site, qual_run_dir="run", **options)[0].attempt == 1


def test_a_resumed_run_keeps_its_baseline(site: Path) -> None:
    begun(site, qual_baseline="good")
    first = (site / "run" / "environment.json").read_text()
    (site / "good" / "records.jsonl").unlink()
    folder, baseline = opened(site, qual_resume="run")
    assert (folder.attempt, baseline) == (2, "good (5 %)")
    assert RunFolder.open(site / "run").environment["baseline"] == json.loads(first)["baseline"] is not None


def test_the_same_baseline_may_be_named_again(site: Path) -> None:
    begun(site, qual_baseline="good")
    assert opened(site, qual_resume="run", qual_baseline="good", qual_tolerance="5 %")[0].attempt == 2


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("good", {"qual_baseline": "other"}, "the baseline was good (5 %), now other (5 %)"),
        ("good", {"qual_baseline": "good", "qual_tolerance": "9 %"}, "the baseline was good (5 %), now good (9 %)"),
        (None, {"qual_baseline": "good"}, "the baseline was none, now good (5 %)"),
    ],
)
def test_another_baseline_is_refused_by_name(site: Path, first: str | None, second: dict[str, str], told: str) -> None:
    begun(site, qual_baseline=first)
    before = (site / "run" / "environment.json").read_bytes()
    with pytest.raises(RunFolderError) as refused:
        opened(site, qual_resume="run", **second)
    assert str(refused.value) == (
        f"{site / 'run'}: cannot go on: {told}; leave out --qual-baseline to keep what it was, "
        "or start a new run without --qual-resume"
    )
    assert (site / "run" / "environment.json").read_bytes() == before


def test_a_baseline_that_has_changed_meanwhile_is_another_one(site: Path) -> None:
    begun(site, qual_baseline="good")
    records = site / "good" / "records.jsonl"
    records.write_text(records.read_text().replace(str(400.0 * 2**20), str(390.0 * 2**20)))
    with pytest.raises(RunFolderError, match=r"was good .*, now a run of that name with other figures"):
        opened(site, qual_resume="run", qual_baseline="good")


def test_a_tolerance_without_a_baseline_is_refused(site: Path) -> None:
    with pytest.raises(ClusterQualError, match=r"--qual-tolerance: .*name that run with --qual-baseline"):
        opened(site, qual_run_dir="run", qual_tolerance="9 %")


def test_what_workers_of_a_killed_run_measured_is_there_when_it_goes_on(site: Path) -> None:
    begun(site)
    RunFolder.open(site / "run", part="gw0").add_measurement("memory", HERE, peaking(400))
    folder, _ = opened(site, qual_resume="run")
    assert folder.measurements()["gw0-m0001"] == (HERE, "memory", peaking(400))


def test_a_run_of_before_there_were_baselines_goes_on(site: Path) -> None:
    begun(site)
    file = site / "run" / "environment.json"
    told = json.loads(file.read_text())
    del told["baseline"]
    file.write_text(json.dumps(told))
    folder, baseline = opened(site, qual_resume="run")
    assert (folder.attempt, baseline) == (2, "None")


@pytest.fixture
def unadorned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plots and page, which take longer than all else."""
    monkeypatch.setattr("pytest_clusterqual.report.plots.write_plots", lambda *_, **__: ((), ""))
    monkeypatch.setattr("pytest_clusterqual.run.ending.write_page", lambda *_, **__: None)


def test_an_edited_file_is_refused(site: Path) -> None:
    begun(site)
    (site / "clusterqual.yaml").write_text(FILE.replace("1 GiB", "2 GiB"))
    with pytest.raises(RunFolderError, match="cannot go on: project_file was another text; start a new run"):
        opened(site, qual_resume="run")


def test_samples_are_added_until_the_baseline_of_this_test_is_decided(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = good(site / "better", tests=[TEST, TEST.replace("ddp", "fsdp")])
    held: list[Any] = []

    def measure(session: Any, case: object) -> MemoryMeasurement:
        held.append(session.project.baseline)
        return peaking(400)

    monkeypatch.setattr("pytest_clusterqual.measure.criteria.measure", measure)
    one: Any = SimpleNamespace(
        folder=RunFolder.create(site / "run", run="run", environment={}, simulated=True), project=project, _kept={},
        _refused="", _replay=None, session=SimpleNamespace(project=project), _note_machine=lambda conditions: None,
    )  # fmt: skip
    item, case = SimpleNamespace(nodeid=TEST, stash={}), SimpleNamespace(criterion="memory")
    Qualification.measure(one, cast(Any, item), cast(Any, case))
    assert project.baseline is not None
    assert held == [project.baseline.only(TEST)]


def summary(result: pytest.RunResult) -> str:
    return " ".join(result.stdout.str().split())


def recorded_verdicts(folder: Path) -> list[tuple[str, int]]:
    return [(str(each.judgement.verdict), each.attempt) for each in RunFolder.open(folder).records()]


@pytest.mark.usefixtures("unadorned")
def test_a_replay_comes_to_the_verdicts_of_the_run_without_naming_its_baseline(
    site: Path, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_memory=SUITE)
    run(site / "first", peaking(430), tests=[HERE])
    worse = pytester.runpytest_inprocess("--qual-replay=first", "--qual-baseline=good", "--qual-run-dir=run")
    assert worse.ret == 1
    assert "baseline good (5 %): 1 of 1 tests are held against it" in summary(worse)
    assert "in the baseline, and not in this run: test_memory[fsdp-2nodes]" in summary(worse)
    again = pytester.runpytest_inprocess("--qual-replay=run", "--qual-run-dir=again")
    assert again.ret == 1
    assert recorded_verdicts(site / "again") == recorded_verdicts(site / "run") == AS_MEASURED


@pytest.mark.usefixtures("unadorned")
def test_records_are_those_that_the_exit_code_speaks_of(
    site: Path, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that goes on, whose one measurement is kept and judged again."""
    pytester.makepyfile(test_memory=SUITE)
    begun(site, qual_baseline="good")
    folder = RunFolder.open(site / "run")
    folder.add_measurement("memory", HERE, peaking(430))
    for record in judge_again(folder, own_project(folder)):
        folder.add_record(record)
    assert recorded_verdicts(site / "run") == AS_MEASURED

    assert pytester.runpytest_inprocess("--nodes=2", "--qual-resume=run").ret == 1
    assert recorded_verdicts(site / "run") == AS_MEASURED, "the record is kept, too"
    capsys.readouterr()
    assert main(["judge", str(site / "run")]) == 1
    assert "changed" not in capsys.readouterr().out

    records = site / "run" / "records.jsonl"
    records.write_text(records.read_text().replace('"FAIL"', '"PASS"'))  # as another release might have judged it
    assert pytester.runpytest_inprocess("--nodes=2", "--qual-resume=run").ret == 1
    assert sorted(recorded_verdicts(site / "run")) == [(verdict, 3) for verdict, _ in sorted(AS_MEASURED)]
