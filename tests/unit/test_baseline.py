"""A known good run demands of later ones that nothing is worse, beyond a tolerance."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import conditions, judgement, record
from recorded_made import PROJECT, recorded

from pytest_clusterqual import units
from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.baseline import baseline_requirements
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.read.project import recorded_project
from pytest_clusterqual.recorded.baseline import as_yaml, requirements_of, with_baseline
from pytest_clusterqual.recorded.judging import judge_again


def figure(criterion: str, quantity: str, value: float, unit: str, label: str = "", **under: Any) -> Record:
    made = judgement(quantity=quantity, value=value, unit=unit, label=label, verdict=Verdict.MEASURED, requirement=None)
    return replace(record(), criterion=criterion, judgement=made, conditions=conditions(**under))


def one(found: Record, tolerance: float = 0.05) -> Requirement:
    (required,) = baseline_requirements([found], tolerance=tolerance, run="good")
    return required


@pytest.mark.parametrize(
    ("quantity", "unit", "value", "text"),
    [
        ("busbw", "B/s", 1e9, ">= 950 MB/s"), ("latency", "s", 2e-3, "<= 2.1 ms"),
        ("alpha", "s", 1.2e-3, "<= 1.26 ms"),
        ("alpha", "s", 1.25e-3, "<= 1.313 ms"),
    ],
)  # fmt: skip
def test_worse_is_less_or_more_by_its_quantity(quantity: str, unit: str, value: float, text: str) -> None:
    required = one(figure("fabric", quantity, value, unit))
    assert required.text == text
    assert required.source.startswith("baseline good: ")
    worse, better = (value * 1.051, value * 0.99) if required.upper_bound else (value * 0.949, value * 1.01)
    assert required.met_by(value) and required.met_by(better) and not required.met_by(worse)


def test_the_tolerance_of_a_share_of_time_is_in_points() -> None:
    assert one(figure("fabric", "wait", 0.016, "1")).text == "<= 0.066"
    assert one(figure("fabric", "amplification", 2.0, "1")).value == pytest.approx(2.1)
    assert one(figure("scaling", "efficiency", 0.8, "1")).value == pytest.approx(0.76)


def test_a_rounded_bound_is_never_stricter() -> None:
    for number in range(1, 400):
        value = 1.0 + number / 377
        for quantity, unit in (("busbw", "B/s"), ("latency", "s")):
            required = one(figure("fabric", quantity, value, unit), tolerance=0.1)
            assert required.met_by(value * (1.0999 if required.upper_bound else 0.9001))


def test_a_requirement_is_about_its_case_alone() -> None:
    fabric = one(figure("fabric", "busbw", 1e9, "B/s", "1.33 MiB", collective="all_reduce", group="world"))
    size = 1.33 * 2**20
    assert fabric.applies(nodes=2, collective="all_reduce", group="world", size=size * 1.002)
    assert not fabric.applies(nodes=2, collective="all_reduce", group="world", size=size * 1.05)
    assert not fabric.applies(nodes=2, collective="all_gather", group="world", size=size)
    scaling = one(figure("scaling", "speedup", 1.8, "1", "2 nodes", nodes=4, layout="ddp"))
    assert (scaling.nodes, scaling.layout) == (2, "ddp")
    assert one(figure("memory", "peak", 1e9, "B", layout="fsdp")).layout == "fsdp"


def test_of_several_tests_of_one_figure_the_loosest_holds() -> None:
    runs = [figure("full_run", "goodput", value, "1") for value in (0.9, 0.5, 0.7)]
    (required,) = baseline_requirements(runs, tolerance=0.1, run="good")
    assert required.value == pytest.approx(0.45)
    runs = [figure("full_run", "recovery", value, "s") for value in (3.0, 9.0, 5.0)]
    (required,) = baseline_requirements(runs, tolerance=0.1, run="good")
    assert required.value == pytest.approx(9.9)


def test_zero_and_what_cannot_be_required_are_left_out() -> None:
    records = [
        figure("full_run", "data_stall", 0.0, "1"),
        *(figure("memory", "peak", float(x), "B") for x in ("nan", "inf")),
    ]
    records += [figure("full_run", "time", 3.0, "s", "init")]
    with pytest.raises(MeasurementError, match="no figure that could be required"):
        baseline_requirements(records, tolerance=0.1, run="good")


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNDECIDED, Verdict.ERROR, Verdict.BLOCKED])
def test_a_run_that_did_not_pass_is_no_baseline(verdict: Verdict) -> None:
    bad = figure("memory", "peak", 1e9, "B")
    bad = replace(bad, judgement=replace(bad.judgement, verdict=verdict))
    with pytest.raises(MeasurementError, match=f"good is no baseline: .* ended {verdict}"):
        baseline_requirements([figure("fabric", "busbw", 1e9, "B/s"), bad], tolerance=0.1, run="good")


def test_a_run_meets_its_own_baseline_and_not_a_better_one(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    project = recorded_project(PROJECT, name="p", nodes=2, nproc_per_node=1)
    own = judge_again(folder, with_baseline(project, folder.path, tolerance=0.05))
    assert {each.judgement.verdict for each in own} == {Verdict.PASS}
    assert len(own) > len(folder.records()) - 1
    better = judge_again(folder, with_baseline(project, folder.path, tolerance=-0.05))
    assert Verdict.FAIL in {each.judgement.verdict for each in better}


def test_what_is_printed_can_be_put_into_a_project_file(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    required = requirements_of(folder.path, tolerance=0.1)
    printed = as_yaml(required, run=folder.run, tolerance=0.1)
    assert f"# baseline {folder.run}: 412 MiB" in printed
    text = PROJECT[: PROJECT.index("memory:")] + printed
    again = recorded_project(text, name="p", nodes=2, nproc_per_node=1)
    wanted = {(each.quantity, each.value, each.layout) for each in required}
    assert {(each.quantity, each.value, each.layout) for each in again.requirements("memory")} == wanted


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("4 MiB", "from: 3.98 MiB, to: 4.02 MiB"), ("1 MiB", "from: 1020 KiB, to: 1.005 MiB"),
        ("1.33 MiB", "from: 1.323 MiB, to: 1.337 MiB"), ("8 B", "from: 7 B, to: 9 B"),
    ],
)  # fmt: skip
def test_sizes_are_printed_as_a_person_writes_them(label: str, told: str) -> None:
    required = one(figure("fabric", "busbw", 1e9, "B/s", label, collective="all_reduce", group="world"))
    assert told in as_yaml([required], run="good", tolerance=0.05)


def test_printed_sizes_select_all_sizes_of_their_label() -> None:
    for number in range(100, 1000):
        for label in (f"{number / 100:.3g} MiB", f"{number / 10:.3g} MiB", f"{number} MiB"):
            required = one(figure("fabric", "busbw", 1e9, "B/s", label))
            low, high = re.findall(r"(?:from|to): ([^,]+),", as_yaml([required], run="good", tolerance=0.05))
            size = float(label.split()[0])
            half = 0.005 * 10 ** math.floor(math.log10(size))
            below = half / 10 if number == 100 else half  # of a power of ten, which has a digit more below it
            assert units.parse(low, "B") <= (size - below) * 2**20 + 1, label
            assert units.parse(high, "B") >= (size + half) * 2**20 - 1, label


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "run")
    assert main(["baseline", str(tmp_path / "run"), "--tolerance", "10 %"]) == 0
    told = capsys.readouterr().out
    assert '{layout: ddp, peak: "<= 453.2 MiB"}' in told
    assert "by more than 10 %;" in told
    assert main(["baseline", str(tmp_path / "nowhere")]) == 4
    with pytest.raises(SystemExit):
        main(["baseline", str(tmp_path / "run"), "--tolerance", "ten"])
    assert "ten" in capsys.readouterr().err
