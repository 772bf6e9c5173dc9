"""Reports replace no evidence: not what is in a run folder, and nothing but files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from asked_made import LAUNCHER, Options
from recorded_made import PROJECT, recorded

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.recorded.reporting import check_place
from pytest_clusterqual.run.asked import read_asked


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two run folders, a project file, and what is no file."""
    for name in ("run", "other"):
        recorded(tmp_path / name)
    (tmp_path / "run" / "report.html").write_text("old")
    (tmp_path / "other" / "report.html").write_text("old")
    (tmp_path / "link.html").symlink_to("clusterqual.yaml")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "clusterqual.yaml").write_text(
        PROJECT.replace("  data: {path: not-on-this-machine.bytes}\n", "") + LAUNCHER
    )
    return tmp_path


REFUSED = [
    ("run/records.jsonl", r"the run folder .*/run holds evidence, .*; name a place outside of it"),
    ("run/plots/new/page.html", r"the run folder .*/run holds evidence"),
    ("other/report.html", r"the run folder .*/other holds evidence"),
    (".", r"it is a folder; name another file"),
    ("link.html", r"it is a link; name another file"),
    ("pipe", r"it is a device or pipe; name another file"),
    ("clusterqual.yaml/page.html", r".*clusterqual.yaml is not a folder; name another place"),
    ("loop/page.html", r".*loop is not a folder; name another place"),
]


@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_places_that_no_report_may_have(place: Path, name: str, why: str) -> None:
    with pytest.raises(RunFolderError, match=rf"cannot be written: {why}"):
        check_place(place / name, run=place / "run")


@pytest.mark.parametrize("name", ["run/report.html", "new/folder/page.html", "clusterqual.yaml"])
def test_places_that_a_report_may_have(place: Path, name: str) -> None:
    check_place(place / name, run=place / "run")


def test_a_run_that_is_yet_to_begin_holds_nothing_but_its_page(place: Path) -> None:
    check_place(place / "next" / "report.html", run=place / "next")
    with pytest.raises(RunFolderError, match=r"the run folder .*/next holds evidence"):
        check_place(place / "next" / "records.jsonl", run=place / "next")


def test_a_run_is_refused_before_it_begins(place: Path) -> None:
    for named in ("run/records.jsonl", "."):
        config: Any = Options(place, nodes=2, qual_run_dir="next", qual_report=named)
        with pytest.raises(RunFolderError, match="cannot be written"):
            read_asked(config)


def test_commands_touch_nothing_before_they_refuse(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    files = sorted(place.rglob("*"))
    evidence = Path("run/records.jsonl").read_bytes()
    for command in (("report", "run", "--out"), ("compare", "run", "other", "--plot")):
        assert main([*command, "run/records.jsonl"]) == 4
        told = capsys.readouterr()
        assert "the run folder" in told.err and not told.out
    assert main(["compare", "run", "other", "--plot", "run/report.html"]) == 4, "a plot is no page"
    assert Path("run/records.jsonl").read_bytes() == evidence
    assert sorted(place.rglob("*")) == files
