"""The reports of a run folder, at the end of a run and by `clusterqual report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_clusterqual import lines
from pytest_clusterqual.errors import UNFORESEEN, RunFolderError
from pytest_clusterqual.report import junit
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.plots import Plot

if TYPE_CHECKING:
    from pytest_clusterqual.model.decision import Decision
    from pytest_clusterqual.runs import RunFolder

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


def write_page(folder: RunFolder, path: Path, *, plots: Sequence[Plot], note: str, decision: Decision | None) -> None:
    """Write the page, whole or not at all; `note` says which plots are missing.

    Raises:
        RunFolderError: it could not be made or written.
    """
    records, tests = folder.records(), folder.tests
    tested = {record.test for record in records}
    told = Told(
        run=folder.run, simulated=folder.simulated, environment=folder.environment, records=records,
        decision=decision, plots=plots, note=note,
        left_out={test: selected.inapplicable for test, selected in tests.items() if selected.inapplicable},
        missing=[test for test, selected in tests.items() if test not in tested and not selected.inapplicable],
    )  # fmt: skip
    try:
        page = html_report(told).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines.replace(path, page)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror}; name another place for it") from error
    except UNFORESEEN as error:  # a page that cannot be made must not take the end of a run with it
        raise RunFolderError(f"{path}: could not be made: {type(error).__name__}: {error}") from error
