"""The reports of a run folder, at the end of a run and by `clusterqual report`: no plot decides anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fabric_made import cluster, swept
from made import RUN, passed
from nodes_made import cluster as nodes

from pytest_clusterqual.cli import main
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.recorded import reporting
from pytest_clusterqual.report import plots
from pytest_clusterqual.run.ending import Ending

SVG = ["all_reduce-world-sizes.svg", "all_reduce-world-waits.svg"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", run=RUN, environment={}, simulated=False)
    for record in swept("test_fabric[all_reduce-world]", cluster(2)):
        made.add_record(record)
    return made


def ending_with(report: Path | None) -> Ending:
    project = SimpleNamespace(name="demo", decision=None, baseline=None)
    return Ending(cast(Any, SimpleNamespace(project=project, network_map=SimpleNamespace(flows=()), report=report)))


@pytest.fixture
def ending() -> Ending:
    return ending_with(None)


def drawn(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "plots").glob("*"))


def told(ending: Ending) -> str:
    lines: list[str] = []
    reporter = SimpleNamespace(
        section=lambda *_, **__: None, write=lines.append, write_line=lambda line, **_: lines.append(line),
        _tw=SimpleNamespace(fullwidth=100, hasmarkup=False),
    )  # fmt: skip
    ending.print_summary(cast(Any, reporter))
    return "\n".join(lines)


def test_a_run_ends_with_plots_and_says_where_they_are(folder: RunFolder, ending: Ending) -> None:
    assert ending.finish(folder, 0, "") == 0
    assert drawn(folder) == SVG
    assert f"plots 2 SVG files in {folder.path}/plots" in " ".join(told(ending).split())


def test_a_plot_that_fails_is_a_note_and_changes_nothing_else(
    folder: RunFolder, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(picture: object) -> str:
        raise RuntimeError("no font")

    monkeypatch.setattr(plots, "svg", fails)
    assert [ending.finish(folder, code, "") for code in (0, 1)] == [0, 1]
    assert "a plot is missing: all_reduce-world-sizes.svg: RuntimeError: no font (+1 more)" in told(ending)
    assert RunFolder.open(folder.path).records() == folder.records()
    assert (folder.path / "junit.xml").exists()


def test_who_interrupts_a_run_does_not_wait_for_plots(folder: RunFolder, ending: Ending) -> None:
    assert ending.finish(folder, 2, "") == 2
    assert drawn(folder) == []
    said = told(ending)
    assert "SVG" not in said and f"clusterqual report {folder.path}" in said
    assert "no plot was drawn" in (folder.path / "report.html").read_text()


def test_what_is_missing_is_counted_and_the_way_to_it_named(folder: RunFolder, ending: Ending) -> None:
    tests = {record.test: Selected(criterion="fabric") for record in folder.records()}
    folder.select({**tests, "test_fabric[b]": Selected(criterion="fabric")})
    ending.finish(folder, 2, "")
    said = " ".join(told(ending).split())
    assert f"what is missing follows with --qual-resume {folder.path}" in said
    assert "1 test not run" in said and "incomplete, 1 of 2 tests" in said


def test_a_whole_run_and_a_replay_are_not_to_go_on(folder: RunFolder, ending: Ending) -> None:
    ending.finish(folder, 0, "")
    assert "--qual-resume" not in told(ending)
    folder.update_environment({"replay_of": "run7"})
    folder.select({"test_fabric[b]": Selected(criterion="fabric")})
    again = ending_with(None)
    again.finish(folder, 0, "")
    said = " ".join(told(again).split())
    assert "--qual-resume" not in said and "note judged again from the run run7: nothing was measured" in said


def test_the_page_says_what_nodes_are_made_of(folder: RunFolder, ending: Ending) -> None:
    name = folder.add_measurement("nodes", "test_nodes", nodes(3, node1={"driver": "550.90.06"}))
    folder.add_record(passed("test_nodes", "nodes", measurement=name))
    ending.finish(folder, 2, "")
    page = (folder.path / "report.html").read_text()
    row = '<td class="number">2</td><th scope="row">node0, node2</th><td>8 x NVIDIA H100 80GB HBM3 79.6 GiB</td>'
    assert f"{row}<td>550.90.07</td><td>Xeon, 96 cores</td>" in page
    assert "<td>8 x 400 Gbit/s infiniband, 1 x ethernet (down)</td>" in page
    assert '<th scope="row">node1</th>' in page


def test_the_report_command_draws_them_again(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder.path)]) == 0
    assert drawn(folder) == SVG
    assert "2 SVG files in" in capsys.readouterr().out


def test_a_run_ends_with_a_page_that_has_its_plots(folder: RunFolder, ending: Ending) -> None:
    assert ending.finish(folder, 0, "") == 0
    page = (folder.path / "report.html").read_text()
    assert page.count("<svg") == len(SVG)
    assert "all_reduce-world: all_reduce in world, over the message size" in page
    assert f"page {folder.path}/report.html" in " ".join(told(ending).split())


def test_the_page_goes_where_it_is_asked_for(folder: RunFolder, tmp_path: Path) -> None:
    place = tmp_path / "for" / "the vendor.html"
    assert ending_with(place).finish(folder, 1, "") == 1
    assert "</html>" in place.read_text()
    assert not (folder.path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_told_and_the_run_does_not_exit_0(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    ending = ending_with(tmp_path / "file" / "page.html")
    assert ending.finish(folder, 0, "") == 1
    assert f"{tmp_path}/file/page.html: cannot be written: {tmp_path}/file is not a folder" in told(ending)
    assert (folder.path / "junit.xml").exists() and drawn(folder) == SVG


def test_a_page_that_cannot_be_made_takes_nothing_with_it(
    folder: RunFolder, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(told: object) -> str:
        raise KeyError("quantity")

    monkeypatch.setattr(reporting, "html_report", fails)
    assert ending.finish(folder, 0, "") == 1
    assert "report.html: could not be made: KeyError: 'quantity'" in told(ending)
    assert (folder.path / "junit.xml").exists() and drawn(folder) == SVG


def test_tests_without_a_record_and_those_left_out_are_on_the_page(folder: RunFolder, ending: Ending) -> None:
    folder.select({
        "test_memory[ddp]": Selected(criterion="memory"),
        "test_fabric[x-rails]": Selected(criterion="fabric", inapplicable="there is one NIC a node"),
    })  # fmt: skip
    ending.finish(folder, 0, "")
    page = (folder.path / "report.html").read_text()
    assert "although asked for: ddp." in page
    assert "1 test: there is one NIC a node" in page


def test_the_report_command_makes_the_page_again(folder: RunFolder, tmp_path: Path) -> None:
    assert main(["report", str(folder.path)]) == 0
    again = tmp_path / "again.html"
    assert main(["report", str(folder.path), "--out", str(again)]) == 0
    assert again.read_bytes() == (folder.path / "report.html").read_bytes()


def test_the_report_command_says_which_page_it_could_not_write(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no folder")
    assert main(["report", str(folder.path), "--out", str(tmp_path / "file" / "page.html")]) == 4
    assert f"cannot be written: {tmp_path / 'file'} is not a folder; name another place" in capsys.readouterr().err
