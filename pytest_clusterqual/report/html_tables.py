"""The other tables of the page: the decision's worksheet, what nodes said of themselves, the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pytest_clusterqual import units
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.model.telemetry import NodeTelemetry
from pytest_clusterqual.report import text

_NODES = 32  # of the telemetry
_COUNTERS = 4  # of a node
_LISTED = 12  # of a list in the environment
_TRAFFIC = ("_bytes", "_wait")  # counters that grow on a healthy node
_GAUGES = {
    "cpu_busy": "CPU busy", "cpu_steal": "CPU stolen", "memory_available": "memory available", "gpu_clock": "GPU clock",
    "gpu_temperature": "GPU temperature", "gpu_power": "GPU power",
}  # fmt: skip
_NOT_LISTED = ("argv", "project_file", "baseline", "decision", "schema", "run", "simulated")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """One part of the worksheet: label, words, and the lines of ``records.jsonl`` they rest on."""

    name: str
    lines: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Telemetry:
    """A row a node: its name, a range for each of the `gauges`, the counters that grew, what throttled it."""

    gauges: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str], str, str]]
    rest: int


def decision_tables(decision: Decision | None) -> list[Sheet]:
    lines = decision.lines if decision else ()
    return [
        Sheet(name=name, lines=[(line.label, line.text, text.ranges(line.records)) for line in group])
        for name, group in groupby(lines, key=lambda line: line.section)
    ]


def symptoms(decision: Decision | None) -> list[tuple[str, str, str]]:
    """What was seen, what to check first, on which records."""
    found = decision.symptoms if decision else ()
    return [(symptom.seen, symptom.check_first, text.ranges(symptom.records)) for symptom in found]


def telemetry(records: Iterable[Record]) -> Telemetry:
    """Every node over all measurements; throttled ones first, then those whose counters of errors grew."""
    nodes: dict[str, list[NodeTelemetry]] = {}
    for record in {(r.test, r.measurement): r for r in records if r.measurement and r.conditions}.values():
        for told in record.conditions.telemetry if record.conditions else ():
            nodes.setdefault(told.node, []).append(told)
    gauges = list(dict.fromkeys(name for told in nodes.values() for each in told for name in each.ranges))
    gauges.sort(key=lambda name: list(_GAUGES).index(name) if name in _GAUGES else len(_GAUGES))
    order = sorted(nodes, key=lambda node: (not _throttled(nodes[node]), -sum(_grown(nodes[node]).values())))
    rows = [
        (node, [_range(nodes[node], gauge) for gauge in gauges], _counters(nodes[node]), _throttled(nodes[node]))
        for node in order[:_NODES]
    ]
    return Telemetry(
        gauges=[_GAUGES.get(name, name) for name in gauges], rows=rows, rest=max(len(order) - _NODES, 0)
    )  # fmt: skip


def _range(told: Sequence[NodeTelemetry], gauge: str) -> str:
    ranges = [each.ranges[gauge] for each in told if gauge in each.ranges]
    if not ranges:
        return ""
    low, high = (_shown(gauge, end) for end in (min(r.low for r in ranges), max(r.high for r in ranges)))
    return low if low == high else f"{low} to {high}"


def _shown(gauge: str, value: float) -> str:
    if gauge in ("cpu_busy", "cpu_steal"):
        return units.show_share(value)
    if gauge == "memory_available":
        return units.show(value, units.BYTES)
    if gauge == "gpu_clock":
        return f"{value / 1e6:.0f} MHz"
    return f"{value:.4g}" + {"gpu_temperature": " °C", "gpu_power": " W"}.get(gauge, "")


def _grown(told: Sequence[NodeTelemetry]) -> Counter[str]:
    """What counters of trouble grew by, largest first."""
    grown: Counter[str] = Counter()
    for each in told:
        grown.update({name: count for name, count in each.counts.items() if not name.endswith(_TRAFFIC)})
    return grown


def _counters(told: Sequence[NodeTelemetry]) -> str:
    grown = _grown(told)
    return units.show_some([f"{name} +{count}" for name, count in grown.most_common()], _COUNTERS)


def _throttled(told: Sequence[NodeTelemetry]) -> str:
    devices: dict[str, dict[str, None]] = {}
    for device, reasons in ((device, reasons) for each in told for device, reasons in each.throttled.items()):
        devices.setdefault(device, {}).update(dict.fromkeys(reasons))
    return "; ".join(f"{device}: {', '.join(reasons)}" for device, reasons in devices.items())


def counted(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Each reason once, and how many tests it is that of."""
    return list(Counter(reasons).items())


def environment(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whatever ``environment.json`` says, but what the page has elsewhere."""
    return list(_lines({name: value for name, value in found.items() if name not in _NOT_LISTED}))


def _lines(found: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        label = above + name if above else name.replace("_", " ")
        if isinstance(value, Mapping):
            yield from _lines(value, f"{label}: ")
        elif isinstance(value, (list, tuple)) and value:
            yield label, units.show_some(value, _LISTED)
        elif value not in (None, "", [], ()):
            yield label, str(value)
