"""The progress line: on a terminal one line that rewrites itself, elsewhere a plain line now and then."""

from __future__ import annotations

import time

import pytest

from pytest_clusterqual.report.terminal import progress_line
from pytest_clusterqual.session.world import Progress

_QUIET = 2.0  # a job shorter than this shows nothing
_ON_TERMINAL, _ELSEWHERE = 0.5, 20.0


class Pace:
    """How fast a job goes on, from the first unit that is done: what comes before it is its start, paid once."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None  # units done, when

    def left(self, progress: Progress, now: float) -> float | None:
        """The seconds that are left; None before there is a pace. A job that falls back (a restart) is paced anew."""
        if progress.done <= 0:
            return None
        if self._first is None or progress.done < self._first[0]:
            self._first = progress.done, now
        done, since = self._first
        if progress.done == done:
            return None
        return (now - since) * (progress.total - progress.done) / (progress.done - done)


class ProgressLine:
    """Called often by the session; writes seldom."""

    def __init__(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._writer = reporter._tw if reporter is not None and not config.getoption("quiet", 0) else None
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._terminal = reporter is not None and bool(reporter.isatty)
        self._what, self._pace = "", Pace()
        self._since = self._last = time.monotonic()
        self._shown = 0
        self._said: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.what != self._what:
            self._what, self._since, self._pace = progress.what, now, Pace()
            # Something is waited for before anything runs: news, also where there is no terminal.
            if not progress.ranks:
                self._last = now - _ELSEWHERE
        left = self._pace.left(progress, now)
        every = _ON_TERMINAL if self._terminal else _ELSEWHERE
        if self._writer is None or now - self._since < _QUIET or now - self._last < every:
            return
        if not self._terminal and progress == self._said:  # a line that stays in a log is there for what is new
            return
        self._last, self._said = now, progress
        line = progress_line(progress.what, progress.ranks, progress.done, progress.total, left)
        if self._terminal:
            line = line[: self._writer.fullwidth - 1]
            self._write(f"\r{line.ljust(self._shown)}")
            self._shown = len(line)
        else:
            # On a line of its own: the letters of results stand before it and after it.
            begun = "\n" if self._writer.width_of_current_line else ""
            self._write(f"{begun}{line}\n")

    def clear(self) -> None:
        """Remove the line before pytest writes again."""
        self._what = ""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        assert self._writer is not None
        if self._capture is None:
            self._writer.write(text, flush=True)
            return
        with self._capture.global_and_fixture_disabled():
            self._writer.write(text, flush=True)
