"""How far a run goes: a number of steps, or as many as take a given time."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable
from pathlib import Path


class Until:
    """Rank 0's clock decides on time, and tells the others with the loss of a step, which is the last one then.

    With `seconds` they count from the first step of the first attempt, so that a failure and what it costs are in them.
    `logs` is where the attempts before have written, if there were any.
    """

    def __init__(self, steps: int, seconds: float | None, logs: Path) -> None:
        self._steps, self._seconds = steps, seconds
        self._passed = _seconds_since_first_step(logs) if seconds is not None else 0.0
        self._began = time.monotonic()
        self._ended = False

    def after(self, done: int) -> Iterable[int]:
        """The steps that are still to be done, or more."""
        return range(done + 1, self._steps + 1) if self._seconds is None else itertools.count(done + 1)

    def begin(self) -> None:
        """The next step is the first one of this attempt."""
        self._began = time.monotonic()

    @property
    def over(self) -> bool:
        """By this rank's clock: the step under way is to be the last one."""
        return self._seconds is not None and self._elapsed >= self._seconds

    def end(self) -> None:
        """Rank 0 has said that it is over."""
        self._ended = True

    def reached(self, step: int) -> bool:
        """Whether the work is done after `step`."""
        return self._ended if self._seconds is not None else step >= self._steps

    def progress(self, step: int) -> tuple[float, float]:
        """How much is done of how much: steps, or minutes."""
        if self._seconds is None:
            return step, self._steps
        return round(min(self._elapsed, self._seconds) / 60, 1), round(self._seconds / 60, 1)

    @property
    def _elapsed(self) -> float:
        return self._passed + time.monotonic() - self._began


def _seconds_since_first_step(logs: Path) -> float:
    """By the wall clock, as rank 0 may go on with another host's monotonic one; 0 if it has not begun yet."""
    for path in sorted(logs.glob("rank0-attempt*.jsonl")):
        start, *lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] or [None]
        first = next((line["at"] for line in lines if line["what"] == "step"), None)
        if first is not None:
            return max(time.time() - (start["wall"] + first - start["at"]), 0.0)
    return 0.0
