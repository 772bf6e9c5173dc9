"""The parts of each step of one process: when it reached which of them, by its own clock."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_clusterqual.model.probe import HOOK, ProbeLine

BETWEEN, DATA, STEP = "between", "data", "step"


@dataclass(kw_only=True, slots=True)  # not frozen, which takes longer to make: there are as many as steps
class Reached:
    """A step from the end of the one before it, which was `at`, to its own end.

    Its parts are what lies between two steps, waiting for data, each stage that the script marked, and the rest of the
    step: seconds since `at` until each was `over`. `beside` are the names of saves and hooks meanwhile.
    """

    at: float
    between: float
    data: float
    marks: tuple[tuple[str, float], ...]
    over: float
    beside: tuple[str, ...]


class Stages:
    """Add every line of the main thread in their order; `close` with the line of each step that ended well."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._clear()

    def add(self, line: ProbeLine) -> None:
        """Take one more line that is no step."""
        if line.what == "data":
            self._data += line.seconds if line.own is None else line.own
            self._outside += 0.0 if line.nested else line.seconds
        elif line.what == "stage":
            self._marks.append((line.name, line.at))
        elif line.what == "hook":
            self._beside[HOOK + line.name] = None
        elif line.what in ("save", "load", "compile"):
            self._beside[line.what] = None

    def failed(self) -> None:
        """A step ended by an exception: what follows begins anew."""
        self._since = None
        self._clear()

    def close(self, line: ProbeLine) -> Reached:
        """The step that this line ends. The first one of a process has nothing before its data."""
        since = line.at - self._outside if self._since is None else self._since
        between = max(line.at - self._outside - since, 0.0)
        reached = Reached(
            at=since, between=between, data=between + self._data,
            marks=tuple((name, at - since) for name, at in self._marks),
            over=line.at + line.seconds - since, beside=tuple(self._beside),
        )  # fmt: skip
        self._since = line.at + line.seconds
        self._clear()
        return reached

    def _clear(self) -> None:
        self._data = self._outside = 0.0
        self._marks: list[tuple[str, float]] = []
        self._beside: dict[str, None] = {}
