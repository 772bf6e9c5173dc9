"""What the criteria ask of a session alike, and how a measurement is begun, continued and read from the ranks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.rank_map import Arrangement
from pytest_clusterqual.model.topology import RankPlace
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import RankResult

T = TypeVar("T")


class Continued(Protocol):
    """A measurement to which more samples are added."""

    @property
    def conditions(self) -> Conditions: ...
    @property
    def started(self) -> float: ...
    @property
    def seconds(self) -> float: ...


class Clock:
    """When a measurement was `started`, in seconds since 1970, and the `seconds` spent on it and the one `before`."""

    def __init__(self, before: Continued | None = None) -> None:
        self.started = before.started if before else time.time()
        self._before = before.seconds if before else 0.0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + (time.monotonic() - self._began)


def begin(session: Session, before: Continued | None = None) -> Clock:
    """Begin a measurement, or go on with the one `before`, to which belongs what the nodes have told meanwhile."""
    clock = Clock(before)
    if before is None:
        session.forget_samples()
    return clock


def section(plan: T | None) -> T:
    """A section of the project file: without it there is no case to be measured."""
    assert plan is not None
    return plan


def interleaved(points: Sequence[T], repeat: int) -> Sequence[T]:
    """A B, B A, A B ..., a repeat each: slow drift of the machine then cancels in the ratios."""
    return points if repeat % 2 == 0 else points[::-1]


def step_apart(
    session: Session,
    layout: Layout,
    *,
    rounds: int,
    least: int,
    seconds: float,
    limit: float,
    nodes: int | None = None,
    whole: bool = True,
    arrangement: Arrangement | None = None,
) -> tuple[list[RankResult], tuple[tuple[RankLadder, ...], ...]]:
    """The step of a layout taken apart by `rank.ladder:climb`: what the ranks returned, and of each round all ranks.

    It takes `seconds` at most; of steps too long for that there are `least` rounds, or what the `limit` allows.
    """
    args = {
        **job_args(session, layout), "rounds": rounds, "least": least, "seconds": min(seconds, limit), "limit": limit,
        "whole": whole,
    }  # fmt: skip
    results = session.run(
        "pytest_clusterqual.rank.ladder:climb", args, nodes=nodes, new_group=True, arrangement=arrangement,
        what=f"step of {layout.name} taken apart",
    )  # fmt: skip
    ladders = [parse(tuple[RankLadder, ...], result, session.places) for result in results]
    return results, tuple(zip(*ladders, strict=True))


def parse(kind: type[T], result: RankResult, places: Sequence[RankPlace]) -> T:
    """Read what a rank returned as `kind`.

    Raises:
        MeasurementError: names the rank, its node and the field that is missing or of another type.
    """
    try:
        return from_json(kind, result.value, where=f"{places[result.rank]} returned")
    except ValueError as error:
        raise MeasurementError(str(error)) from None


def job_args(session: Session, layout: Layout) -> dict[str, Any]:
    return {"workload": to_json(session.project.workload), "layout": to_json(layout)}


def fingerprint(session: Session, digests: Sequence[str], places: Sequence[RankPlace] | None = None) -> str:
    """That of the exact job, whose ranks read data with these digests.

    Raises:
        MeasurementError: the digests differ.
    """
    if len(set(digests)) != 1:
        raise MeasurementError(f"the ranks read different training data: digests {', '.join(sorted(set(digests)))}")
    versions = (places or session.places)[0].versions
    return session.project.workload.fingerprint(versions=versions, data_digest=digests[0])


def conditions_of(
    session: Session, results: Sequence[RankResult], before: Continued | None = None, **what: Any
) -> Conditions:
    """The conditions of a whole measurement, with what the nodes told of themselves meanwhile."""
    now = session.conditions(results, telemetry=session.telemetry(), **what)
    return heavier(now, before.conditions) if before else now


def heavier(now: Conditions, before: Conditions) -> Conditions:
    """The conditions of a continued measurement: the heavier load of its parts counts."""
    if before.load is None or (now.load and now.load.other_cpu >= before.load.other_cpu):
        return now
    return replace(now, load=before.load)


def map_name(arrangement: Arrangement | None) -> str | None:
    return arrangement if arrangement is None or isinstance(arrangement, str) else "explicit"
