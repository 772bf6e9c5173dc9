"""`clusterqual compare`: two runs of the same tests, or more of them as a trend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_clusterqual.errors import MeasurementError, RunFolderError
from pytest_clusterqual.folder import lines
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.judge.comparison import compare, requirable
from pytest_clusterqual.judge.trend import FEWEST, trends
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.comparison import RunsCompared, Trends
from pytest_clusterqual.model.record import Record, worst
from pytest_clusterqual.report.comparison_table import comparison_report
from pytest_clusterqual.report.plot_style import svg
from pytest_clusterqual.report.plot_trend import trend_picture
from pytest_clusterqual.report.trend_table import trend_report


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """`pairs` are the later runs against the first, `trend` is all of them in the order of their time.

    Two runs have no trend. With as many as tell a change from what runs differ by anyway, the trend says more than
    pairs do, and there are none.
    """

    pairs: tuple[RunsCompared, ...]
    trend: Trends | None

    @property
    def worse(self) -> bool:
        """A figure is, or a test came to a worse verdict without being merely flaky."""
        changes = [figure.change for pair in self.pairs for figure in pair.figures]
        changes += [figure.change for figure in self.trend.trends] if self.trend else []
        if "worse" in changes:
            return True
        turned = [(each.old, each.new) for pair in self.pairs for each in pair.turned if each.explained is not False]
        for history in self.trend.histories if self.trend and not self.pairs else ():
            told = [verdict for verdict in history.verdicts if verdict]
            turned += [(told[0], told[-1])] if history.explained is not False else []
        return any(old is not new and worst([old, new]) is new for old, new in turned)


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Compare the runs of two folders or more: pairs with the first one, a trend in the order of their time.

    Raises:
        RunFolderError: one of them is no run folder, or holds no record.
        MeasurementError: two of them have nothing that could be compared.
    """
    if len({path.resolve() for path in paths}) < len(paths):
        raise RunFolderError("one run is given twice: give each of them once")
    first, *others = runs = [_records(path) for path in paths]
    if not any(map(requirable, runs)):
        raise MeasurementError("no run has a test of a criterion: tests of your own are not compared")
    pairs = []
    for path, records in zip(paths[1:], others, strict=True):
        if len(runs) < FEWEST:
            try:
                pairs.append(compare(first, records))
            except MeasurementError as error:
                raise MeasurementError(f"{paths[0]} and {path}: {error}") from None
    return Comparison(pairs=tuple(pairs), trend=_trend(runs, needed=not pairs) if len(runs) > 2 else None)


def _trend(runs: Sequence[Sequence[Record]], *, needed: bool) -> Trends | None:
    """Runs that have figures in common by twos may have none in common by all."""
    try:
        return trends(runs)
    except MeasurementError:
        if needed:
            raise
        return None


def _records(path: Path) -> Sequence[Record]:
    records = RunFolder.open(path).records()
    if not records:
        raise RunFolderError(f"{path}: holds no record: the run ended before any test was concluded")
    return records


def as_text(found: Comparison, *, width: int, color: bool) -> str:
    """The trend, if there is one, and a table a pair."""
    parts = [trend_report(found.trend, width=width, color=color)] if found.trend else []
    return "\n\n".join([*parts, *(comparison_report(each, width=width, color=color) for each in found.pairs)])


def as_json(found: Comparison) -> str:
    """All figures."""
    return json.dumps(to_json(found), indent=1)


def write_plot(found: Comparison, file: Path) -> None:
    """The trend as SVG.

    Raises:
        MeasurementError: there is none.
        RunFolderError: the file cannot be written.
    """
    if found.trend is None:
        raise MeasurementError("there is no trend to plot: give three runs or more of the same tests, or no --plot")
    try:
        lines.replace(file, svg(trend_picture(found.trend)).encode())
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be written: {error.strerror}; give --plot another place") from error
