"""Verdicts, and the line of a run folder that holds one."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_clusterqual.model.conditions import Conditions

SCHEMA = 1


class Verdict(str, enum.Enum):
    """What is concluded from an interval and a requirement; see `docs/verdicts.md`."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"
    BLOCKED = "BLOCKED"
    ERROR = "ERROR"
    MEASURED = "MEASURED"

    def __str__(self) -> str:
        return self.value


# From best to worst: a test with several verdicts is as good as its worst one. MEASURED stands
# before PASS, so that a number without a requirement never turns a verdict into none.
SEVERITY = (
    Verdict.MEASURED,
    Verdict.PASS,
    Verdict.BLOCKED,
    Verdict.UNDECIDED,
    Verdict.FAIL,
    Verdict.ERROR,
)
GOOD = (Verdict.PASS, Verdict.MEASURED)  # those that stand in nobody's way


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Where the value lies, and what kind of statement that is.

    median: order statistics of independent samples at `level`; mean: Student's, of independent
    samples at `level`; bootstrap: of a ratio of medians at `level`; variance: of a share of variance
    at `level`; maximum: the worst of all samples, which bounds itself; poisson: of what follows from a
    rate of `samples` counted events at `level`; resolution: one event, known to the resolution of the
    clocks that saw it; count: an exact count.
    """

    low: float
    high: float
    kind: Literal["median", "mean", "bootstrap", "variance", "maximum", "poisson", "resolution", "count"]
    level: float | None = None
    samples: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A named suspect (node, link, rank, setting). It points; it proves no cause.

    A `note` is worth knowing and accuses nobody. `size` is the message size in bytes and `interval`
    how much slower the suspect is, as a ratio to its peers, where that was measured.
    """

    suspect: str
    kind: str
    evidence: str
    check_next: str
    level: Literal["note", "suspect"] = "suspect"
    size: int | None = None
    interval: Interval | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """A requirement as it was applied: absolute, with where its level comes from."""

    op: str
    value: float
    unit: str
    text: str
    source: str
    expected_from: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """One quantity, judged. `margin` is the distance of the value to the bound as a share of the
    bound, positive on the good side. `label` tells cases of one test apart, e.g. ``1 MiB``.
    `expected` is the level that the topology should give, in `unit`, where one is known, and
    `expected_why` its arithmetic in words.
    `samples` are the reduced samples behind the value (slowest rank taken); `per_rank` a figure a rank.
    `parts` are what the value is made of, in `unit` and signed: they add up to it.
    """

    quantity: str
    label: str
    value: float | None
    unit: str
    interval: Interval | None
    verdict: Verdict
    reason: str
    requirement: Demand | None = None
    margin: float | None = None
    expected: float | None = None
    expected_why: str = ""
    samples: tuple[float, ...] = ()
    per_rank: Mapping[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One line of ``records.jsonl``: a judgement with its conditions. `measurement` names the raw one.

    `exception` is the reason for which the project file accepted a failure of this test on the day it was
    measured, `until` the last day of that; `expired` is the reason of an exception whose last day `until` was over.
    `attempt` counts how often the run was begun or resumed; `earlier` are the verdicts that the test had in earlier
    attempts, the first one first. `gates_not_run` are the criteria that this one needs and nobody had asked for.
    `of` is how many records were written together with this one, itself included: where fewer are there, none counts.
    """

    schema: int
    run: str
    test: str
    criterion: str
    judgement: Judgement
    conditions: Conditions | None
    measurement: str | None
    started: float
    seconds: float
    exception: str = ""
    attempt: int = 1
    until: str = ""
    expired: str = ""
    earlier: tuple[Verdict, ...] = ()
    gates_not_run: tuple[str, ...] = ()
    of: int = 1


def worst(verdicts: list[Verdict] | tuple[Verdict, ...]) -> Verdict:
    """The verdict of a whole from the verdicts of its parts; no parts is an ERROR, never a PASS."""
    return max(verdicts, key=SEVERITY.index) if verdicts else Verdict.ERROR


def by_test(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Test -> its records, in the order in which tests begin."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.test, []).append(record)
    return groups


def verdict_of(group: Iterable[Record]) -> Verdict:
    """The verdict of a test from its records."""
    return worst([record.judgement.verdict for record in group])


def verdicts(records: Iterable[Record]) -> dict[str, Verdict]:
    """Test -> its verdict."""
    return {test: verdict_of(group) for test, group in by_test(records).items()}


def accepted(group: Sequence[Record]) -> bool:
    """True of a test that failed as its project file accepts by name; what did not run is never accepted."""
    return bool(group[0].exception) and verdict_of(group) in (Verdict.FAIL, Verdict.UNDECIDED)
