"""Who waited for whom: the same collective on the traces of several ranks, without synchronized clocks.

Nobody has its result before all have come. So the rank that needed least came last and only transferred;
what another needed more is waiting.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytest_clusterqual.model.trace import Arrivals, Trace

# Sends and receives are of two ranks and have other names on both sides.
_OF_ALL = ("reduce", "gather", "scatter", "toall", "broadcast", "barrier")
_Key = tuple[object, ...]


def arrivals(traces: Sequence[Trace]) -> tuple[Arrivals | None, ...]:
    """Transfer and wait of each trace, over the collectives that all traces of their group have.

    They are found again by group and name, and by their number in the group or, where a trace does
    not tell it, by their order in the step; such a step is left out if ranks disagree on how many there are.
    None for a trace of which no collective could be compared.
    """
    found = [[0, 0, 0, 0] for _trace in traces]  # collectives, transfer and wait (ns), last to arrive
    for durations in _compared(traces):
        transfer = min(durations.values())
        for place, duration in durations.items():
            seen = found[place]
            seen[0] += 1
            seen[1] += transfer
            seen[2] += duration - transfer
            seen[3] += duration == transfer < max(durations.values())
    return tuple(
        Arrivals(collectives=count, transfer=transfer * 1e-9, wait=wait * 1e-9, last=last) if count else None
        for count, transfer, wait, last in found
    )


def _compared(traces: Sequence[Trace]) -> Iterator[dict[int, int]]:
    """Durations (ns) of one collective, by the place of the trace."""
    instances: dict[_Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    members: dict[str, set[int]] = defaultdict(set)
    for place, trace in enumerate(traces):
        for group, key, duration in _collectives(trace):
            instances[key][place].append(duration)
            members[group].add(place)
    members[""] = set(range(len(traces)))
    for key, of in instances.items():
        if of.keys() == members[str(key[0])] and len(of) > 1 and len({len(some) for some in of.values()}) == 1:
            for durations in zip(*of.values(), strict=True):
                yield dict(zip(of, durations, strict=True))


def _collectives(trace: Trace) -> Iterator[tuple[str, _Key, int]]:
    """Group, what identifies it on other ranks, and duration (ns), in the order of the device."""
    numbers: list[int | None] = [step.number for step in trace.steps] or [None]
    events = trace.communication
    rows = zip(events.start, events.end, events.step, events.kind, trace.sequence, strict=True)
    for start, end, step, kind, number in sorted(rows):
        collective = trace.collectives[kind]
        if (not trace.steps or step >= 0) and any(word in collective.name.lower().replace("_", "") for word in _OF_ALL):
            place = ("number", number) if number >= 0 else ("step", numbers[step] if trace.steps else None)
            yield collective.group, (collective.group, collective.name, *place), end - start
