"""What a node said about itself while something was measured on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# At full load a GPU at its power limit is at work, not in trouble: this reason is kept, but alone it is no alarm.
POWER_CAP = "SW power cap"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeTelemetry:
    """One node over one measurement, from `samples` looks, about one a second.

    `ranges` holds the lowest and highest value of each quantity over all devices and looks:
    ``cpu_busy`` and ``cpu_steal`` (shares of the cores' time), ``memory_available`` (bytes),
    ``gpu_clock`` (Hz), ``gpu_temperature`` (degrees Celsius), ``gpu_power`` (watts). `counts` holds
    what a counter grew by, such as ``eth0.rx_errors``; one that stood still is not there. `throttle`
    holds the reasons seen on a device, and `spells` from when to when a device was slowed down against its will,
    seconds of the node's monotonic clock.
    """

    node: str
    samples: int
    ranges: dict[str, Range] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    throttle: dict[str, tuple[str, ...]] = field(default_factory=dict)
    spells: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    @property
    def throttled(self) -> dict[str, tuple[str, ...]]:
        """Device -> what slowed it down against its will; empty where nothing did."""
        found = {
            device: tuple(reason for reason in reasons if reason != POWER_CAP)
            for device, reasons in self.throttle.items()
        }
        return {device: reasons for device, reasons in found.items() if reasons}


def summarize(samples: Iterable[Mapping[str, Any]], *, node: str) -> NodeTelemetry:
    """The samples of one node (see `launch.telemetry`) as ranges and sums."""
    told = list(samples)
    values: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    throttle: dict[str, dict[str, None]] = {}
    looks = 0
    for sample in told:
        looks += 1
        for name, value in sample["gauges"].items():
            values.setdefault(name, []).extend(value if isinstance(value, list) else [value])
        counts.update(sample["counts"])
        for reason, gpus in sample["throttle"].items():
            for index in gpus:
                throttle.setdefault(f"GPU{index}", {})[reason] = None
    return NodeTelemetry(
        node=node,
        samples=looks,
        ranges={name: Range(low=min(found), high=max(found)) for name, found in values.items() if found},
        counts=dict(counts),
        throttle={device: tuple(reasons) for device, reasons in sorted(throttle.items())},
        spells=_spells(told),
    )


def _spells(samples: Iterable[Mapping[str, Any]]) -> dict[str, tuple[tuple[float, float], ...]]:
    """Device -> first and last look of each time that consecutive looks saw it throttled."""
    found: dict[str, list[tuple[float, float]]] = {}
    before: set[str] = set()
    for sample in samples:
        if (at := sample.get("at")) is None:  # it took too long to look
            continue
        now = {f"GPU{gpu}" for reason, gpus in sample["throttle"].items() if reason != POWER_CAP for gpu in gpus}
        for device in sorted(now):
            spells = found.setdefault(device, [])
            begin = spells.pop()[0] if device in before else at
            spells.append((begin, at))
        before = now
    return {device: tuple(spells) for device, spells in found.items()}
