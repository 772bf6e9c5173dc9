"""Two runs of the same tests, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.record import Interval, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """A test that two runs have in common and that cannot be compared: `what` differs, from `old` to `new`."""

    test: str
    what: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Turned:
    """A test with another verdict although its workload, topology and machine are the same.

    `explained` says that one of its figures has changed by more than chance; else the test is flaky.
    """

    test: str
    old: Verdict
    new: Verdict
    explained: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One figure of one test in both runs, `old` and `new` in `unit`.

    `ratio` is new / old, with its interval where both runs have samples enough; `chance` is how often runs that are
    alike differ as much, corrected for the number of figures compared, None where samples are missing. `change` says
    what that means: worse and better are more than chance, in the direction that is bad or good for this quantity.
    """

    test: str
    criterion: str
    quantity: str
    label: str
    unit: str
    old: float
    new: float
    ratio: float | None
    interval: Interval | None
    chance: float | None
    change: Literal["worse", "better", "alike", "open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsCompared:
    """`figures` with the worst first, `turned` the tests with another verdict. `only_old` and `only_new` are tests that
    the other run does not have.
    """

    old: str
    new: str
    figures: tuple[Compared, ...]
    turned: tuple[Turned, ...]
    refused: tuple[Refused, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
