"""The end of a run, from its folder alone: reports, what is missing, the exit status. And SIGTERM as a way to it."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.record import Verdict, by_test, verdict_of
from pytest_clusterqual.recorded import deciding
from pytest_clusterqual.recorded.baseline import baseline_lines
from pytest_clusterqual.recorded.outcomes import exit_code, unanswered, unwell
from pytest_clusterqual.recorded.reporting import PAGE, write_junit, write_page
from pytest_clusterqual.report import plots, terminal
from pytest_clusterqual.report.network_map import traffic_lines
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
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # who interrupts a run wants it to end
            drawn, self._note = plots.write_plots(
                folder.records(), folder.measurements(quick=True), folder.path / "plots", budget=plots.BUDGET
            )
            self._plots = len(drawn)
            self._write_page(folder, drawn)
        return exitstatus or (1 if self._problem else exit_code(folder.tests, folder.records()))

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
            reporter.section("qualification", sep="=")
            tw = reporter._tw
            text = terminal.summary(
                records, run_folder=_relative(self._folder.path), simulated=self._folder.simulated,
                width=tw.fullwidth, color=tw.hasmarkup, plots=self._plots, decision=self._decision,
                page=self._page,
            )  # fmt: skip
            reporter.write(text.rstrip() + "\n")
        if any(test.criterion == "fabric" for test in tests.values()):
            for line in traffic_lines(self._asked.network_map):
                reporter.write_line(f"traffic  {line}")
        if baseline := self._asked.project.baseline:
            for line in baseline_lines(baseline, tests):
                reporter.write_line(line)
        left_out = Counter(test.inapplicable for test in tests.values() if test.inapplicable)
        for reason, count in left_out.items():
            reporter.write_line(f"left out: {count} test{'s' if count > 1 else ''}: {reason}")
        # What failed just now pytest has told.
        before = [f"{test} is {verdict}" for test, verdict in unwell(records).items()] if self._passed else []
        for why in (*unanswered(tests, records), *before):
            reporter.write_line(f"{why}, so this run does not exit 0", red=True)
        if self._note:
            reporter.write_line(self._note, yellow=True)
        if self._problem:
            reporter.write_line(self._problem, red=True)

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


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
