"""A recorded run is judged again: by its own file to the same verdicts, by another one to what that says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made import RUN, judgement
from recorded_made import PROJECT, TEST, recorded

from pytest_clusterqual.errors import ProjectFileError, RunFolderError
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.read.project import recorded_project
from pytest_clusterqual.recorded.judging import changes, judge_again, own_project


def by(text: str) -> Project:
    return recorded_project(text, name="clusterqual.yaml", nodes=2, nproc_per_node=1)


def verdicts(records: Sequence[Record]) -> set[Verdict]:
    return {record.judgement.verdict for record in records if record.judgement.quantity == "peak"}


def test_by_its_own_file_a_run_is_judged_as_it_was(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    again = judge_again(folder, own_project(folder))
    assert again == folder.records()
    assert verdicts(again) == {Verdict.PASS}
    assert changes(folder.records(), again) == []


def test_a_stricter_file_turns_it_red_and_the_change_is_told(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    again = judge_again(folder, by(PROJECT.replace("<= 1 GiB", "<= 1 KiB")))
    assert verdicts(again) == {Verdict.FAIL}
    (gone, new) = changes(folder.records(), again)
    assert (gone.test, gone.quantity, gone.requirement, gone.after) == (TEST, "peak", "<= 1 GiB", None)
    assert (new.requirement, new.before) == ("<= 1 KiB", None)
    assert new.after is not None and new.after.verdict is Verdict.FAIL


def test_another_value_of_the_same_verdict_is_a_change_too(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    first, *others = folder.records()
    moved = replace(first, judgement=replace(first.judgement, value=(first.judgement.value or 0) + 1))
    (change,) = changes(folder.records(), [moved, *others])
    assert change.before == first.judgement and change.after == moved.judgement


def test_what_could_not_be_measured_stays_an_error(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    died = judgement(quantity="memory", verdict=Verdict.ERROR, value=None, interval=None, reason="rank 1 died")
    lost = replace(folder.records()[0], test="test_memory[fsdp]", measurement=None, judgement=died)
    folder.add_record(lost)
    assert judge_again(folder, own_project(folder))[-1] == lost


def test_a_criterion_without_a_section_is_not_judged(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    without = PROJECT[: PROJECT.index("memory:")]
    assert judge_again(folder, by(without)) == []


def test_of_two_measurements_of_a_test_the_last_attempt_s_counts(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    measurement = folder.measurements()["m0001"][2]
    folder.begin_attempt()
    folder.add_measurement("memory", TEST, measurement)
    folder.add_record(replace(folder.records()[0], measurement="m0002", attempt=2))
    assert {each.measurement for each in judge_again(folder, own_project(folder))} == {"m0002"}


@pytest.mark.parametrize("missing", ["project_file", "nodes", "nproc_per_node"])
def test_a_run_that_recorded_no_project_file_says_so(tmp_path: Path, missing: str) -> None:
    environment = {"project_file": PROJECT, "nodes": 2, "nproc_per_node": 1}
    del environment[missing]
    folder = RunFolder.create(tmp_path / "run", run=RUN, environment=environment, simulated=True)
    with pytest.raises(RunFolderError, match=r"environment.json: holds no project file .*--config"):
        own_project(folder)


def test_a_recorded_file_is_as_strict_as_any(tmp_path: Path) -> None:
    with pytest.raises(ProjectFileError, match=r"clusterqual.yaml:14: memory.require\[0\].peek: unknown key"):
        by(PROJECT.replace("peak", "peek"))
