"""Traces of the PyTorch profiler (`.json`, `.json.gz`), one a rank.

A trace with device work is read by its device events alone. One without is of a job on CPUs: there
operators stand for computing, and what Gloo does on threads of its own for communication.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.trace import Activity, Collective, Step, Trace
from pytest_clusterqual.read.trace_events import scan_events
from pytest_clusterqual.read.trace_sorting import Events, Sorting


def read_trace(path: Path) -> Trace:
    """When the device of one rank (or its CPU) computed, communicated and copied.

    Raises:
        ReadError: not a whole trace of the PyTorch profiler, or one without any work in it.
    """
    sorting = Sorting(cpu=False)
    about = scan_events(path, sorting.take, needless=sorting.needless)
    work = sorting.work()
    if not any(map(len, work)):
        _check_without_device(path, about)
        sorting = Sorting(cpu=True)
        scan_events(path, sorting.take, needless=sorting.needless)
        work = sorting.work()
    usable = [events[np.isfinite(events["start"]) & (events["length"] >= 0)] for events in work]
    if not any(map(len, usable)):
        raise ReadError(f"{path}: no work of a device and no operators, want a trace of the PyTorch profiler")
    unusable = sum(map(len, work)) - sum(map(len, usable))
    return _trace(str(path), _distributed(about), sorting, usable, unusable)


def _check_without_device(path: Path, about: dict[str, Any]) -> None:
    backend = _distributed(about).get("backend")
    if backend == "nccl" or (about.get("deviceProperties") and backend != "gloo"):
        raise ReadError(f"{path}: no work of a device, though there is one: profile with ProfilerActivity.CUDA as well")


def _distributed(about: dict[str, Any]) -> dict[str, Any]:
    told = about.get("distributedInfo")
    return told if isinstance(told, dict) else {}


def _trace(file: str, distributed: dict[str, Any], sorting: Sorting, work: Sequence[Events], unusable: int) -> Trace:
    compute, communication, memory = work
    if sorting.cpu:
        compute = compute[~np.isin(compute["stream"], list(sorting.gloo_threads))]
    clock = _Clock(sorting, (compute, communication, memory))
    kinds, collectives = _named(sorting, communication["kind"], clock.asked(communication))
    rank, world = (_natural(distributed.get(key)) for key in ("rank", "world_size"))
    return Trace(
        file=file,
        rank=rank,
        world=world,
        cpu=sorting.cpu,
        steps=clock.steps,
        compute=clock.activity(compute),
        communication=replace(clock.activity(communication), kind=kinds),
        memory=clock.activity(memory),
        kernels=tuple(sorting.kernels),
        collectives=collectives,
        sequence=_plain(communication["number"]),
        problems=tuple(_problems(sorting, unusable)),
    )


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _named(
    sorting: Sorting, kinds: npt.NDArray[np.float64], asked: npt.NDArray[np.float64]
) -> tuple[array[int], tuple[Collective, ...]]:
    """A collective of no named group gets its name from the host's call that asked for it, if there is one.

    Without that, all that NCCL makes of sends and receives would have one name.
    """
    known, calls = tuple(sorting.collectives), sorted(sorting.calls)
    begins = [begin for begin, _end, _name in calls]
    named, places = array("q"), dict[Collective, int]()
    for kind, at in zip(kinds.astype(int), asked.tolist(), strict=True):
        collective, call = known[kind], bisect_right(begins, at) - 1
        if not collective.group and call >= 0 and at <= calls[call][1]:
            collective = replace(collective, name=calls[call][2])
        named.append(places.setdefault(collective, len(places)))
    return named, tuple(places)


class _Clock:
    """Whole nanoseconds since the first event, and which step asked for what."""

    def __init__(self, sorting: Sorting, work: tuple[Events, ...]) -> None:
        steps = sorted((start, end, number) for number, (start, end) in sorting.steps.items())
        self._begins = [start for start, _end, _number in steps]
        self._zero = min([*self._begins, *(events["start"].min() for events in work if len(events))])
        self.steps = tuple(
            Step(number=number, start=round(self._since(start)), end=round(self._since(end)))
            for start, end, number in steps
        )
        self._launches = np.sort(sorting.launches.all(), order="link")

    def activity(self, events: Events) -> Activity:
        start = np.rint(self._since(events["start"]))
        return Activity(
            start=_plain(start),
            end=_plain(start + np.rint(events["length"] * 1000)),
            step=_plain(np.searchsorted(self._begins, self.asked(events), side="right") - 1),
            kind=_plain(events["kind"]),
        )

    def asked(self, events: Events) -> npt.NDArray[np.float64]:
        """When the host asked for each event, µs; where that is not told, when it started.

        What a stream did before the first that is told was asked for before the trace began.
        """
        start, launches = events["start"], self._launches
        if not len(launches):
            return start
        place = np.minimum(np.searchsorted(launches["link"], events["link"]), len(launches) - 1)
        told = launches["link"][place] == events["link"]
        streams, of = np.unique(events["stream"], return_inverse=True)
        first = np.full(len(streams), np.inf)
        np.minimum.at(first, of[told], start[told])
        before = (start < first[of]) & np.isfinite(first[of])
        return np.where(told, launches["start"][place], np.where(before, -np.inf, start))

    def _since(self, micros: Any) -> Any:
        return (micros - self._zero) * 1000


def _plain(numbers: npt.NDArray[Any]) -> array[int]:
    return array("q", numbers.astype(np.int64).tobytes())


def _problems(sorting: Sorting, unusable: int) -> list[str]:
    problems = []
    if sorting.cpu:
        problems.append("on CPUs communication takes cores from computing: a trace understates what it costs")
    if not sorting.steps:
        problems.append("no ProfilerStep: taken as one step; call the profiler's step() after each step of the job")
    if len(sorting.devices) > 1:
        problems.append(f"work of {len(sorting.devices)} devices in one trace: taken as if of one")
    if unusable:
        problems.append(f"{unusable} events without a usable time are left out")
    return problems
