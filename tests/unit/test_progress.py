"""How long a job still takes, as its progress line tells."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from _pytest.config import create_terminal_writer

from pytest_clusterqual.run import progress
from pytest_clusterqual.run.progress import Pace, ProgressLine
from pytest_clusterqual.session.world import Progress


def told(*seen: tuple[float, float]) -> list[float | None]:
    """What is left after each pair of units done and seconds, of 10 units."""
    pace = Pace()
    return [pace.left(Progress("job", 2, done, 10), now) for done, now in seen]


def test_a_slow_start_is_not_taken_for_the_pace() -> None:
    assert told((0, 5.0), (1, 30.0), (1, 30.5), (2, 31.0), (6, 35.0)) == [None, None, None, 8.0, 4.0]


def test_a_job_that_is_done_has_nothing_left() -> None:
    assert told((1, 1.0), (10, 10.0))[-1] == 0.0


def test_a_job_that_falls_back_is_paced_from_there() -> None:
    *_, last_step, back, next_step = told((4, 4.0), (6, 6.0), (3, 60.0), (4, 61.0))
    assert last_step == 4.0
    assert back is None
    assert next_step == pytest.approx(6.0)


def test_in_a_log_a_line_stands_alone_and_tells_only_what_is_new(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called every minute, between the letters of results."""
    clock = iter(range(0, 6000, 60))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    file = io.StringIO()
    writer = create_terminal_writer(pytestconfig, file)
    reporter = SimpleNamespace(_tw=writer, isatty=False)
    plugins = {"terminalreporter": reporter, "capturemanager": None}
    config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=plugins.get), getoption=lambda *_: 0)
    line = ProgressLine(cast(Any, config))
    for done in (0, 0, 0, 0, 20, 20, 40):
        writer.write("" if done else ".")
        line(Progress("full run", 2, done, 40))
    writer.write("F")
    told = file.getvalue().splitlines()
    assert [each.split(",")[0] for each in told] == [
        "..", "full run on 2 ranks: 0 of 40", "..", "full run on 2 ranks: 20 of 40",
        "full run on 2 ranks: 40 of 40", "F",
    ]  # fmt: skip
