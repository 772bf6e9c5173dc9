"""`clusterqual compare`: runs of the same tests, each against the first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pytest_clusterqual.errors import MeasurementError, RunFolderError
from pytest_clusterqual.judge.comparison import compare
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.comparison import RunsCompared
from pytest_clusterqual.report.comparison_table import comparison_report
from pytest_clusterqual.runs import RunFolder


def compare_runs(old: Path, others: Sequence[Path]) -> list[RunsCompared]:
    """Every one of `others` against `old`.

    Raises:
        RunFolderError: one of them is no run folder, or holds no record.
        MeasurementError: two of them have nothing that could be compared.
    """
    baseline = RunFolder.open(old)
    found = []
    for path in others:
        folder = RunFolder.open(path)
        for each in (baseline, folder):
            if not each.records():
                raise RunFolderError(f"{each.path}: holds no record: the run ended before any test was concluded")
        try:
            found.append(compare(baseline.records(), folder.records()))
        except MeasurementError as error:
            raise MeasurementError(f"{old} and {path}: {error}") from None
    return found


def as_text(found: Sequence[RunsCompared], *, as_json: bool, width: int, color: bool) -> str:
    """A table a run, or all figures as JSON."""
    if as_json:
        return json.dumps([to_json(each) for each in found], indent=1)
    return "\n\n".join(comparison_report(each, width=width, color=color) for each in found)
