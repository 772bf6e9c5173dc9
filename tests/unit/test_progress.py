"""How long a job still takes, as its progress line tells."""

from __future__ import annotations

import pytest

from pytest_clusterqual.run.progress import Pace
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
