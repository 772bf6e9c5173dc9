"""The end of a run, from its folder alone: reports, what is missing, the exit status. And SIGTERM as a way to it."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_clusterqual import units
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.record import Record, Verdict, by_test, verdict_of
from pytest_clusterqual.recorded import deciding
from pytest_clusterqual.recorded.baseline import baseline_lines
from pytest_clusterqual.recorded.outcomes import asked_of, exit_code, unanswered, unwell
from pytest_clusterqual.recorded.reporting import PAGE, write_junit, write_page
from pytest_clusterqual.report import plots, terminal
from pytest_clusterqual.report.network_map import traffic_lines
from pytest_clusterqual.report.overall import missing_tests
from pytest_clusterqual.run.asked import Asked

_LAST_FAILED = "cache/lastfailed"  # where pytest's cache keeps what `--lf` runs again


class Ending:
    """What is told of a run once nothing writes its folder any more."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._folder: RunFolder | None = None
        self._problem = ""
        self._plots, self._note, self._page = 0, "", ""
        self._decision: Decision | None = None
        self._summarized = False
        self._passed = False

    def finish(self, folder: RunFolder, exitstatus: int, problem: str) -> int:
        """Write the reports; pytest's 0 stands only if the run is well, all its attempts together."""
        self._folder, self._problem, self._passed = folder, problem, exitstatus == pytest.ExitCode.OK
        try:
            write_junit(folder)
        except (OSError, ClusterQualError) as error:
            self._problem = problem or f"no JUnit report: {error}"
        try:
            self._decision = deciding.conclude(folder, self._asked.project.decision)
        except RunFolderError as error:
            self._problem = self._problem or str(error)
        drawn: list[plots.Plot] = []
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # who interrupts a run wants it to end
            drawn, self._note = plots.write_plots(
                folder.records(), folder.measurements(quick=True), folder.path / "plots", budget=plots.BUDGET
            )
            self._plots = len(drawn)
        else:
            self._note = (
                f"no plot was drawn, for the run did not end; clusterqual report {_relative(folder.path)} draws them"
            )
        self._write_page(folder, drawn)
        if self._passed:
            self._note_end(folder)
        return exitstatus or (1 if self._problem else exit_code(folder.tests, folder.records()))

    def _note_end(self, folder: RunFolder) -> None:
        try:
            folder.end()
        except RunFolderError as error:
            self._problem = self._problem or str(error)

    def _write_page(self, folder: RunFolder, drawn: Sequence[plots.Plot]) -> None:
        path = self._asked.report or folder.path / PAGE
        try:
            write_page(folder, path, plots=drawn, note=self._note, decision=self._decision)
            self._page = _relative(path)
        except RunFolderError as error:
            self._problem = self._problem or str(error)

    def print_summary(self, reporter: pytest.TerminalReporter) -> None:
        """The table of verdicts, and what is missing; once."""
        if self._folder is None or self._summarized:
            return
        self._summarized = True
        records, tests = self._folder.records(), self._folder.tests
        if records:
            self._print_table(reporter, self._folder, records)
        for line in _asides(self._asked, tests):
            reporter.write_line(line)
        for why in (*unanswered(tests, records), *self._unwell_before(records)):
            reporter.write_line(f"{why}, so this run does not exit 0", red=True)
        if "replay_of" not in self._folder.environment and missing_tests(records, asked_of(tests)):
            reporter.write_line(
                f"what is missing follows with --qual-resume {_relative(self._folder.path)}", yellow=True
            )
        if self._note:
            reporter.write_line(self._note, yellow=True)
        if self._problem:
            reporter.write_line(self._problem, red=True)

    def _print_table(self, reporter: pytest.TerminalReporter, folder: RunFolder, records: Sequence[Record]) -> None:
        tw = reporter._tw
        text = terminal.summary(
            records, run_folder=_relative(folder.path), simulated=folder.simulated, width=tw.fullwidth,
            color=tw.hasmarkup, plots=self._plots, decision=self._decision, page=self._page,
            asked=asked_of(folder.tests), replay_of=str(folder.environment.get("replay_of", "")),
        )  # fmt: skip
        reporter.section("qualification", sep="=")
        reporter.write(text.rstrip() + "\n")

    def _unwell_before(self, records: Sequence[Record]) -> list[str]:
        """What is unwell of an earlier attempt; what failed just now pytest has told."""
        return [f"{test} is {verdict}" for test, verdict in unwell(records).items()] if self._passed else []

    def remember_blocked(self, config: pytest.Config) -> None:
        """pytest forgets what was skipped; a BLOCKED test is one that `--lf` runs again, with its gate mended."""
        cache = getattr(config, "cache", None)
        if cache is None or self._folder is None or hasattr(config, "workerinput"):
            return
        tests = by_test(self._folder.records())
        if blocked := [test for test, group in tests.items() if verdict_of(group) is Verdict.BLOCKED]:
            cache.set(_LAST_FAILED, {**cache.get(_LAST_FAILED, {}), **dict.fromkeys(blocked, True)})


class Sigterm:
    """End in order on SIGTERM (a scheduler's time limit): ranks ended, records kept, reports written."""

    def __init__(self) -> None:
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self.restore()
        pytest.exit("SIGTERM received; the records so far are kept", returncode=128 + number)

    def restore(self) -> None:
        """Give the signal back its old meaning. May be called again."""
        if self._before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)
            self._before = None


def _asides(asked: Asked, tests: Mapping[str, Selected]) -> Iterator[str]:
    """What stands under the table: traffic of the layouts, what the baseline did not hold, what was left out."""
    if any(test.criterion == "fabric" for test in tests.values()):
        yield from (f"traffic  {line}" for line in traffic_lines(asked.network_map))
    if asked.project.baseline:
        yield from baseline_lines(asked.project.baseline, tests)
    for reason, count in Counter(test.inapplicable for test in tests.values() if test.inapplicable).items():
        yield f"left out: {units.show_count(count, 'test')}: {reason}"


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
