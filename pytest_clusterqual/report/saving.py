"""Ways to save side by side, where a project file names several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import text

_SHOWN = {
    "checkpoint_blocking": "blocking", "checkpoint_completion": "completion", "checkpoint_inflation": "inflation",
    "goodput": "goodput",
}  # fmt: skip


def saving_lines(records: Sequence[Record]) -> Iterator[str]:
    """For each layout that was saved in several ways: these ways, the one that loses least of the time first."""
    by_job: dict[tuple[str, int], dict[str, Record]] = {}
    for record in records:
        if record.judgement.quantity == "checkpoint_loss" and record.conditions is not None:
            ways = by_job.setdefault((record.conditions.layout or "", record.conditions.nodes), {})
            ways.setdefault(text.visible(record.judgement.label), record)
    for (layout, nodes), ways in by_job.items():
        if len(ways) > 1:
            order = sorted(ways.items(), key=lambda way: way[1].judgement.value or 0.0)
            told = "; ".join(f"{name} {_way(record, records)}" for name, record in order)
            yield f"{text.visible(layout)}-{nodes}node{'s' if nodes > 1 else ''}: {told}"


def _way(record: Record, records: Sequence[Record]) -> str:
    found = {r.judgement.quantity: r.judgement for r in records if r.test == record.test}
    shown = {name: text.value_of(found[quantity]) for quantity, name in _SHOWN.items() if quantity in found}
    told = ", ".join(f"{name} {value}" for name, value in shown.items() if value)
    return f"loses {text.value_of(record.judgement)} ({told})"
