"""Two runs of the same tests, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.conditions import Load
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
    """A test with another verdict although its workload and topology are the same.

    `explained` says that one of its figures has changed by more than chance. If none has, on the same hosts, the test
    is flaky. None where that cannot be told: some figures have too few samples, or the hosts are others.
    """

    test: str
    old: Verdict
    new: Verdict
    explained: bool | None


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
class Loaded:
    """A test that ran while other work kept a machine busy, in the old run or the new; None where it did not."""

    test: str
    old: Load | None
    new: Load | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsCompared:
    """`figures` with the worst first, `turned` the tests with another verdict. `only_old` and `only_new` are tests that
    the other run does not have. `loaded` are those that were compared though other work may have slowed them.
    """

    old: str
    new: str
    figures: tuple[Compared, ...]
    turned: tuple[Turned, ...]
    refused: tuple[Refused, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    loaded: tuple[Loaded, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """From this run on the figure is `ratio` times what it was in the runs since the change before.

    `since` is the place of that run in the values of its trend, `run` its name.
    """

    run: str
    since: int
    ratio: float
    interval: Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """One figure of one test over several runs: `values` in `unit`, of the runs at the places `at`, oldest first.

    `lows` and `highs` are the intervals inside the runs, the value itself where a run has none. `chance` is how often
    runs without a change look like this one, corrected for the number of figures; None where they are too few to say.
    Either `points` tell from which runs on the figure was another one, or `drift` is by how much a straight line has
    changed it from the first run to the last, as a ratio. `change` compares the last run with the first by that.
    """

    test: str
    criterion: str
    quantity: str
    label: str
    unit: str
    at: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    chance: float | None
    points: tuple[ChangePoint, ...]
    drift: float | None
    change: Literal["worse", "better", "alike", "open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The verdicts of a test that has not always had the same, a run each, None where it has none.

    `explained` says that one of its figures changed on the way; if none did, on the same hosts, the test is flaky. None
    where that cannot be told.
    """

    test: str
    verdicts: tuple[Verdict | None, ...]
    explained: bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trends:
    """Several runs of the same tests, oldest first: `started` is in seconds since the epoch.

    `gone` are tests of the oldest run that the latest one lacks, `come` are those that only later ones have.
    """

    runs: tuple[str, ...]
    started: tuple[float, ...]
    trends: tuple[Trend, ...]
    histories: tuple[History, ...]
    refused: tuple[Refused, ...]
    gone: tuple[str, ...]
    come: tuple[str, ...]
