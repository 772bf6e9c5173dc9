"""The traces of a job's ranks, taken together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.step.arrivals import arrivals
from pytest_clusterqual.judge.step.exposed import added, inflation, step_parts, together
from pytest_clusterqual.model.trace import RankTimes, StepParts, Trace, TraceTimes

_MOST_NAMED = 8


def trace_times(traces: Sequence[Trace]) -> TraceTimes:
    """Where the time of each rank went, in the order of ranks, and what the steps of all cost together.

    Raises:
        MeasurementError: a rank is there twice, the traces are of different worlds, or have no step
            in common.
    """
    _check(traces)
    ordered = sorted(traces, key=lambda trace: (trace.rank is None, trace.rank, trace.file))
    steps = [step_parts(trace) for trace in ordered]
    common = _common(ordered, steps)
    ranks = tuple(
        RankTimes(
            rank=trace.rank, file=trace.file, steps=of, parts=added([step.parts for step in of]),
            inflation=inflation(trace), arrivals=arrived,
        )
        for trace, of, arrived in zip(ordered, steps, arrivals(ordered), strict=True)
    )  # fmt: skip
    return TraceTimes(
        world=ordered[0].world,
        steps=common,
        ranks=ranks,
        together=together([[step.parts for step in of if step.number in common] for of in steps]),
        warnings=tuple(_warnings(ordered, ranks, common)),
    )


def _check(traces: Sequence[Trace]) -> None:
    worlds = {trace.world: trace.file for trace in traces}
    if len(worlds) > 1:
        told = ", ".join(f"{file} is of {world or 'an unknown number of'} ranks" for world, file in worlds.items())
        raise MeasurementError(f"the traces are of different worlds: {told}; give those of one run")
    by_rank: dict[int, str] = {}
    for trace in traces:
        if trace.rank is not None:
            if trace.rank in by_rank:
                raise MeasurementError(
                    f"rank {trace.rank} is in {by_rank[trace.rank]} and in {trace.file}; give one trace a rank"
                )
            by_rank[trace.rank] = trace.file


def _common(traces: Sequence[Trace], steps: Sequence[Sequence[StepParts]]) -> tuple[int | None, ...]:
    having = Counter(step.number for of in steps for step in of)
    common = tuple(number for number, count in having.items() if count == len(steps))
    if not common:
        told = "; ".join(
            f"{t.name}: {units.show_some([step.number for step in t.steps], _MOST_NAMED) or 'none'}" for t in traces
        )
        raise MeasurementError(f"the traces have no step in common ({told}); give those of the same steps")
    return common


def _warnings(traces: Sequence[Trace], ranks: Sequence[RankTimes], common: Sequence[int | None]) -> Iterator[str]:
    known = {trace.rank for trace in traces}
    if missing := [rank for rank in range(traces[0].world or 0) if rank not in known]:
        yield (
            f"{len(missing)} of {traces[0].world} ranks have no trace here ({units.show_some(missing, _MOST_NAMED)}): "
            "what they do, and waiting for them, is not seen"
        )
    if other := sorted({step.number for of in ranks for step in of.steps} - {*common}, key=str):
        yield f"not all traces have step {units.show_some(other, _MOST_NAMED)}: left out of what ranks cost together"
    if len(ranks) > 1 and all(rank.arrivals is None for rank in ranks) and any(t.collectives for t in traces):
        yield "no collective was found on all traces of its group: waiting cannot be told from transfer"
    if len(ranks) > 1 and any(not collective.group for trace in traces for collective in trace.collectives):
        yield "process groups are not named: each collective is taken as one of all ranks, also to tell waiting"
    problems = dict.fromkeys(problem for trace in traces for problem in trace.problems)
    for problem in problems:
        of = [trace.name for trace in traces if problem in trace.problems]
        yield problem if len(of) == len(traces) else f"{units.show_some(of, _MOST_NAMED)}: {problem}"
