"""The reports of a run folder, at the end of a run and by `clusterqual report`."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_clusterqual.errors import UNFORESEEN, RunFolderError
from pytest_clusterqual.folder import lines
from pytest_clusterqual.folder.places import is_run
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.recorded.outcomes import asked_of
from pytest_clusterqual.report import junit
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.plots import Plot

if TYPE_CHECKING:
    from pytest_clusterqual.model.decision import Decision

JUNIT = "junit.xml"
PAGE = "report.html"  # in the run folder, where nobody names another place


def write_junit(folder: RunFolder) -> None:
    """Write ``junit.xml``, whose suite says which run of which project it is, and whether its nodes were real.

    Raises:
        RunFolderError: it could not be written.
    """
    told = {"run": folder.run, "project": folder.environment.get("project"), "simulated": str(folder.simulated).lower()}
    properties = {f"{junit.PREFIX}{key}": str(value) for key, value in told.items() if value}
    junit.write_junit(folder.records(), folder.path / JUNIT, suite="clusterqual", properties=properties)


def check_place(path: Path, *, run: Path | None = None) -> None:
    """That a report may go to `path`: not onto a folder, a link or a device, nor into a run folder, where only the
    page of `run` itself has its place. Folders that are missing on the way will be made.

    Raises:
        RunFolderError: it may not.
    """
    if os.path.lexists(path) and not stat.S_ISREG(kind := os.lstat(path).st_mode):
        what = "folder" if stat.S_ISDIR(kind) else "link" if stat.S_ISLNK(kind) else "device or pipe"
        raise RunFolderError(f"{path}: cannot be written: it is a {what}; name another file for the report")
    folder = Path(os.path.realpath(path.parent))
    above = (folder, *folder.parents)
    there = next(each for each in above if os.path.lexists(each))
    if not there.is_dir():
        raise RunFolderError(f"{path}: cannot be written: {there} is not a folder; name another place for the report")
    own = run and Path(os.path.realpath(run))
    if (folder, path.name) == (own, PAGE):
        return
    if inside := next((each for each in above if each == own or is_run(each)), None):
        raise RunFolderError(
            f"{path}: cannot be written: the run folder {inside} holds evidence, and {PAGE} alone for people's "
            "reports; name a place outside of it"
        )


def write_page(folder: RunFolder, path: Path, *, plots: Sequence[Plot], note: str, decision: Decision | None) -> None:
    """Write the page, whole or not at all; `note` says which plots are missing.

    Raises:
        RunFolderError: it could not be made or written.
    """
    check_place(path, run=folder.path)
    tests = folder.tests
    told = Told(
        run=folder.run, simulated=folder.simulated, environment=folder.environment, records=folder.records(),
        decision=decision, plots=plots, note=note, asked=asked_of(tests), nodes=_nodes(folder),
        left_out={test: selected.inapplicable for test, selected in tests.items() if selected.inapplicable},
    )  # fmt: skip
    try:
        page = html_report(told).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines.replace(path, page)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}; name another place for it") from error
    except UNFORESEEN as error:  # a page that cannot be made must not take the end of a run with it
        raise RunFolderError(f"{path}: could not be made: {type(error).__name__}: {error}") from error


def _nodes(folder: RunFolder) -> Sequence[NodeHardware]:
    """What the nodes were made of when they were last asked; nothing where nobody asked."""
    names = [record.measurement for record in folder.records() if record.criterion == "nodes" and record.measurement]
    kept = folder.measurements(quick=True).get(names[-1]) if names else None
    return kept[2].nodes if kept and isinstance(kept[2], NodesMeasurement) else ()
