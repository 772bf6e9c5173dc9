"""A baseline is a part of the run that was held against it, and holds under its own conditions only."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from baseline_made import good, own, peaking, run
from made import conditions, record
from recorded_made import PROJECT, TEST

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.judge.baseline import baseline_of
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.model.record import Verdict, worst
from pytest_clusterqual.recorded.baseline import baseline_lines, recorded_baseline
from pytest_clusterqual.recorded.judging import changes, judge_again, own_project


def verdicts(folder: RunFolder) -> list[tuple[str, str, Verdict]]:
    return [
        (j.quantity, j.requirement.text if j.requirement else "", j.verdict)
        for j in (each.judgement for each in folder.records())
    ]


def test_a_run_is_judged_again_against_its_baseline_which_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = good(tmp_path / "good", tests=[TEST, TEST.replace("ddp", "fsdp")])
    folder = run(tmp_path / "tonight", peaking(430), project=project)
    shutil.rmtree(tmp_path / "good")
    assert ("peak", "<= 420 MiB", Verdict.FAIL) in verdicts(folder)
    assert ("peak", "<= 1 GiB", Verdict.PASS) in verdicts(folder)
    assert changes(folder.records(), judge_again(folder, own_project(folder))) == []
    assert main(["judge", str(folder.path)]) == 1
    assert "changed" not in capsys.readouterr().out
    assert main(["seal", str(folder.path), "--out", str(tmp_path / "tonight.zip")]) == 0
    assert main(["verify", str(tmp_path / "tonight.zip")]) == 0
    assert "DIFFERENT" not in capsys.readouterr().out


def test_another_file_is_applied_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path / "tonight", peaking(430), project=good(tmp_path / "good"))
    (tmp_path / "new.yaml").write_text(PROJECT)
    assert main(["judge", str(folder.path), "--config", str(tmp_path / "new.yaml")]) == 0
    assert "peak <= 420 MiB: 430 MiB FAIL -> not judged" in capsys.readouterr().out


def test_what_is_recorded_is_read_back_and_a_malformed_one_is_named(tmp_path: Path) -> None:
    project = good(tmp_path / "good")
    folder = run(tmp_path / "tonight", peaking(400), project=project)
    assert recorded_baseline(folder) == project.baseline
    assert recorded_baseline(RunFolder.open(tmp_path / "good")) is None
    file = folder.path / "environment.json"
    told = json.loads(file.read_text())
    told["baseline"]["tests"][0]["require"][0]["value"] = "much"
    file.write_text(json.dumps(told))
    with pytest.raises(RunFolderError, match=r"environment.json: baseline.tests\[0\].require\[0\].value: got 'much'"):
        own_project(RunFolder.open(folder.path))


def test_what_thousands_of_nodes_said_is_not_kept(tmp_path: Path) -> None:
    baseline = good(tmp_path / "good").baseline
    assert baseline is not None
    (held,) = baseline.tests
    assert (held.conditions.hosts, held.conditions.rank_nodes, held.conditions.telemetry) == ((), (), ())


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("simulated", False, "simulated was True, is False"),
        ("device_name", "NVIDIA H200", "device_name was AMD EPYC 9654, is NVIDIA H200"),
        ("rank_map", "cyclic", "rank_map was none, is cyclic"),
        ("workload", "77aa", "workload was none, is 77aa (the software is the same: the job, its data or its script"),
    ],
)
def test_a_baseline_of_something_else_is_refused_beside_what_the_file_demands(
    tmp_path: Path, field: str, value: Any, told: str
) -> None:
    project, other = good(tmp_path / "good").of_test(TEST), peaking(430, **{field: value})
    *judged, refused = judge(project, other)
    assert tuple(judged) == judge(own(), other), "nothing of the baseline is applied"
    assert (refused.quantity, refused.verdict, refused.requirement) == ("baseline", Verdict.ERROR, None)
    assert refused.reason.startswith("not held against the baseline good, which is of something else: ")
    assert told in refused.reason
    assert worst([each.verdict for each in (*judged, refused)]) is Verdict.ERROR


def test_after_an_upgrade_the_software_is_named(tmp_path: Path) -> None:
    project = good(tmp_path / "good", workload="9f2c", versions={"python": "3.11.2", "torch": "2.12.0"})
    upgraded = peaking(400, workload="77aa", versions={"python": "3.11.2", "torch": "2.13.0", "nccl": "2.27.3"})
    *_, refused = judge(project.of_test(TEST), upgraded)
    told = "workload was 9f2c, is 77aa (nccl was none, is 2.27.3, torch was 2.12.0, is 2.13.0)"
    assert told in refused.reason
    assert "make a baseline of this very job, software and machine" in refused.reason


def test_hosts_and_load_may_be_others(tmp_path: Path) -> None:
    project = good(tmp_path / "good").of_test(TEST)
    judged = judge(project, peaking(400, hosts=("gpu003", "gpu004"), rank_nodes=("gpu003", "gpu004")))
    assert {each.verdict for each in judged} == {Verdict.PASS}


def test_a_test_is_held_against_the_one_of_its_name_wherever_its_folder_is(tmp_path: Path) -> None:
    project, tonight = good(tmp_path / "good"), peaking(430)
    moved = judge(project.of_test(f"elsewhere/{TEST}"), tonight)
    assert Verdict.FAIL in {each.verdict for each in moved}
    other = judge(project.of_test(TEST.replace("ddp", "fsdp")), tonight)
    assert other == judge(own(), tonight)


def test_of_two_tests_of_one_name_the_one_in_the_same_folder_counts(tmp_path: Path) -> None:
    baseline = good(tmp_path / "good").baseline
    assert baseline is not None
    both = replace(baseline, tests=(replace(baseline.tests[0], test=f"other/{TEST}", require=()), *baseline.tests))
    assert both.only(TEST) == baseline


def test_each_test_is_held_against_its_own_figures(tmp_path: Path) -> None:
    times = {"full_run[sync]": 9.0, "full_run[async]": 3.0}
    saves = [
        record(name, "full_run", under=conditions(), quantity="recovery", unit="s", value=time, label="",
               verdict=Verdict.MEASURED, requirement=None)
        for name, time in times.items()
    ]  # fmt: skip
    baseline = baseline_of(saves, tolerance=0.1, run="good")
    bounds = {each.test.partition("::")[2]: each.require[0].value for each in baseline.tests}
    assert bounds == pytest.approx({name: time * 1.1 for name, time in times.items()})


def test_samples_of_an_own_test_are_no_baseline() -> None:
    """They are not judged against the project, so nothing of them could be held."""
    measured = record("a", "fabric", under=conditions(), verdict=Verdict.MEASURED, requirement=None)
    sampled = replace(measured, test="b", measurement=None)
    baseline = baseline_of([measured, sampled], tolerance=0.1, run="good")
    assert [each.test for each in baseline.tests] == [measured.test]


def test_a_figure_that_is_not_here_any_more_is_told_and_decides_nothing(tmp_path: Path) -> None:
    project = good(tmp_path / "good").of_test(TEST)
    assert project.baseline is not None
    (held,) = project.baseline.tests
    gone = tuple(replace(held.require[0], layout=name) for name in ("fsdp", "tp2"))
    wider = replace(project.baseline, tests=(replace(held, require=(*held.require, *gone)),))
    *judged, told = judge(replace(project, baseline=wider), peaking(400))
    assert tuple(judged) == judge(project, peaking(400))
    assert (told.verdict, told.reason) == (Verdict.MEASURED, "figures of the baseline good that are not here: peak (2)")
    assert worst([each.verdict for each in (*judged, told)]) is Verdict.PASS


def test_what_a_run_had_beside_its_baseline_is_no_part_of_the_next_one(tmp_path: Path) -> None:
    """A run that was held against a baseline has each figure twice, and is a baseline with one demand of each."""
    project = good(tmp_path / "good")
    folder = run(tmp_path / "next", peaking(400), project=project)
    assert project.baseline is not None
    (first,), (second,) = project.baseline.tests, baseline_of(folder.records(), tolerance=0.05, run="good").tests
    assert first == second


def test_a_run_says_which_tests_have_no_counterpart(tmp_path: Path) -> None:
    baseline = good(tmp_path / "good").baseline
    assert baseline is not None
    memory = {TEST: Selected(criterion="memory")}
    others = {f"test_fabric.py::test_fabric[{n}]": Selected(criterion="fabric") for n in range(7)}
    beside = {
        "t::own": Selected(criterion="own"), "t::decision": Selected(criterion="decision"),
        "t::left": Selected(criterion="scaling", inapplicable="too few nodes"),
    }  # fmt: skip
    (line,) = baseline_lines(baseline, {**memory, **beside})
    assert line == "baseline good (5 %): 1 of 1 tests are held against it"
    first, missing, gone = baseline_lines(baseline, {**others, **beside})
    assert first == "baseline good (5 %): 0 of 7 tests are held against it"
    named = ", ".join(f"test_fabric[{n}]" for n in range(5))
    assert missing == f"not in the baseline, and held against the project file alone: {named} and 2 more"
    assert gone == "in the baseline, and not in this run: test_memory[ddp-2nodes]"
