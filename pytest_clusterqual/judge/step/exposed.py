"""Where the time of profiled steps went: computing, communication that nothing hides, copies, nothing.

Overlapping and nested work of one class counts once. All sums are of whole nanoseconds, so that parts
close to their step exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual.model.trace import Inflation, Parts, StepParts, Together, Trace

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Whole = npt.NDArray[np.int64]

NANO = 1e-9
LEAST_SAMPLES = 5  # of one kernel, alone and under communication


def step_parts(trace: Trace) -> tuple[StepParts, ...]:
    """The parts of every step of one rank, on the clock of its device.

    A device works on a step after the host has begun it and what was asked for before is computed;
    so the steps of a host that runs ahead are not cut where the host is.
    """
    import numpy as np

    starts, ends = (
        [np.asarray(getattr(work, side)) for work in (trace.compute, trace.communication, trace.memory)]
        for side in ("start", "end")
    )
    compute, communication, memory = (_union(start, end) for start, end in zip(starts, ends, strict=True))
    either = _union(*np.concatenate([compute, communication], axis=1))
    busy = _union(*np.concatenate([either, memory], axis=1))
    edges = _edges(trace, busy)
    at_work, talking, at_either, any_work = (
        np.diff(_measure(spans, edges)) for spans in (compute, communication, either, busy)
    )
    columns = (
        at_either - talking, at_work + talking - at_either, at_either - at_work, any_work - at_either,
        np.diff(edges) - any_work,
    )  # fmt: skip
    numbers: list[int | None] = [step.number for step in trace.steps] or [None]
    return tuple(
        StepParts(number=number, parts=_parts(row)) for number, row in zip(numbers, np.transpose(columns), strict=True)
    )


def added(parts: Sequence[Parts]) -> Parts:
    names = ("compute", "overlapped", "exposed", "memory", "idle")
    return Parts(**{name: sum(getattr(some, name) for some in parts) for name in names})


def together(ranks: Sequence[Sequence[Parts]]) -> Together:
    """What steps cost all ranks together, from the parts of the same steps, in order, of each rank.

    In every step the ranks wait for the one that is furthest behind. Summed up part by part, each
    rank is somewhere; a part costs what it moves the furthest of them. A mean or a maximum of each part would
    count the waiting of fast ranks beside the computing of the slow one.
    """
    total = [0.0] * 4
    for step in zip(*ranks, strict=True):
        reached = 0.0
        for place in range(len(total)):
            furthest = max(sum(_in_order(parts)[: place + 1]) for parts in step)
            total[place] += furthest - reached
            reached = furthest
    return Together(compute=total[0], exposed=total[1], memory=total[2], idle=total[3])


def inflation(trace: Trace) -> Inflation | None:
    """How much longer kernels take under communication, each kernel's median against its own alone.

    None if no kernel was seen often enough in both ways, and for CPUs, where operators of one
    name may be of any size.
    """
    import numpy as np

    if trace.cpu or not len(trace.compute.start):
        return None
    start, end, kind = (np.asarray(getattr(trace.compute, name)) for name in ("start", "end", "kind"))
    talking = _union(np.asarray(trace.communication.start), np.asarray(trace.communication.end))
    covered = _measure(talking, end) - _measure(talking, start)
    seconds, alone, under = (end - start) * NANO, covered == 0, 2 * covered > end - start
    before = after = 0.0
    compared = 0
    for place in np.unique(kind[under]):
        slow, fast = seconds[under & (kind == place)], seconds[alone & (kind == place)]
        if min(len(slow), len(fast)) >= LEAST_SAMPLES and np.median(fast) > 0:
            compared += 1
            before += len(slow) * float(np.median(fast))
            after += len(slow) * float(np.median(slow))
    return Inflation(ratio=after / before, kernels=compared) if compared else None


def _in_order(parts: Parts) -> tuple[float, ...]:
    return parts.compute + parts.overlapped, parts.exposed, parts.memory, parts.idle


def _parts(nanoseconds: Whole) -> Parts:
    compute, overlapped, exposed, memory, idle = (int(value) * NANO for value in nanoseconds)
    return Parts(compute=compute, overlapped=overlapped, exposed=exposed, memory=memory, idle=idle)


def _edges(trace: Trace, busy: Whole) -> Whole:
    """Where the device's steps begin, and where the last one ends."""
    import numpy as np

    if not trace.steps:
        return np.array([busy[0].min(), busy[1].max()])
    computed = np.full(len(trace.steps) + 1, np.iinfo(np.int64).min)
    np.maximum.at(computed, np.asarray(trace.compute.step) + 1, np.asarray(trace.compute.end))
    begins = np.maximum([step.start for step in trace.steps], np.maximum.accumulate(computed)[:-1])
    return np.append(begins, max(trace.steps[-1].end, busy[1].max(initial=begins[-1])))


def _union(start: Whole, end: Whole) -> Whole:
    """The same time as disjoint spans in order, shape (2, spans): starts and ends. Empty spans are left out."""
    import numpy as np

    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.append(True, start[1:] > end[:-1])[: len(start)]
    last = np.append(first[1:], True)[: len(start)]
    spans: Whole = np.array([start[first], end[last]], dtype=np.int64)
    return spans[:, spans[0] < spans[1]]


def _measure(spans: Whole, until: Whole) -> Whole:
    """How much of disjoint `spans` lies before each time of `until`."""
    import numpy as np

    if not spans.size:
        return np.zeros(len(until), dtype=np.int64)
    lengths = spans[1] - spans[0]
    passed = np.cumsum(lengths) - lengths
    at = np.maximum(np.searchsorted(spans[0], until, side="right") - 1, 0)
    measured: Whole = passed[at] + np.clip(until - spans[0][at], 0, lengths[at])
    return measured
