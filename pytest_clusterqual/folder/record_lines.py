"""The lines of ``records.jsonl`` as records: what is long on many nodes stands in the first one of a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_clusterqual.folder.lines import Line, strictly
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import Record

SAID_ONCE = ("rank_nodes", "telemetry")  # of the conditions


def records_of(told: Iterable[Line]) -> Iterator[Record]:
    """The records of these lines. What one leaves out of its conditions is as in the one before of its measurement.

    All records of a measurement share its conditions: those of a thousand nodes are larger than all else.
    """
    last: dict[str, Conditions] = {}
    for line in told:
        record = strictly(Record, line.value, line.where)
        if record.measurement and record.conditions is not None:
            before = last.get(record.measurement, record.conditions)
            left_out = {name: getattr(before, name) for name in SAID_ONCE if name not in line.value["conditions"]}
            here = replace(record.conditions, **left_out)
            last[record.measurement] = before if here == before else here
            record = replace(record, conditions=last[record.measurement])
        yield record


def when(line: Line) -> tuple[float, float]:
    """Attempt and time of a record; what is no number is refused later, by name."""
    attempt, started = line.value.get("attempt"), line.value.get("started")
    return attempt if isinstance(attempt, int) else 0, started if isinstance(started, (int, float)) else 0
