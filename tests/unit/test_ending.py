"""The reports of a run folder, at the end of a run and by `clusterqual report`: no plot decides anything."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fabric_made import cluster, swept
from made import RUN

from pytest_clusterqual.cli import main
from pytest_clusterqual.ending import Ending
from pytest_clusterqual.report import plots
from pytest_clusterqual.runs import RunFolder

SVG = ["all_reduce-world-sizes.svg", "all_reduce-world-waits.svg"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", run=RUN, environment={}, simulated=False)
    for record in swept("test_fabric[all_reduce-world]", cluster(2)):
        made.add_record(record)
    return made


@pytest.fixture
def ending() -> Ending:
    project = SimpleNamespace(name="demo", decision=None)
    return Ending(cast(Any, SimpleNamespace(project=project, network_map=lambda: (), report=None)))


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
    assert "plots" not in told(ending)


def test_the_report_command_draws_them_again(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder.path)]) == 0
    assert drawn(folder) == SVG
    assert "2 SVG files in" in capsys.readouterr().out
