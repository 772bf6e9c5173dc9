"""The records of a whole run on a large simulated cluster: all criteria, some of whose tests do not pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from fabric_made import cluster, swept
from made import MIB, conditions, demand, finding, record, without_value

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.record import Finding, Interval, Record, Verdict
from pytest_clusterqual.model.telemetry import NodeTelemetry, Range
from pytest_clusterqual.report.plots import Measurements

PARTS = {"parameters": 0.25, "gradients": 0.25, "optimizer": 0.375, "activations": 0.09375, "other": 0.03125}
STATES = {
    "init": 40.0, "load": 12.0, "warm-up": 6.0, "kept": 900.0, "exposed transfer": 120.0, "wait": 30.0,
    "checkpoint": 25.0, "lost": 60.0, "detection": 5.0, "restart": 45.0, "residual": 0.4,
}  # fmt: skip
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Told = tuple[list[Record], Measurements]


def whole_cluster(nodes: int, per_node: int, tests: int, *, samples: bool = True, seed: int = 1) -> Told:
    """So many `tests` on nodes x ranks: one of the nodes criterion, half of the rest of Fabric, and the others.

    With `samples`, the measurements of Memory.
    """
    random, at = Random(seed), with_telemetry(cluster(nodes, per_node, layout=None, workload=None))
    records: list[Record] = list(_of_nodes(at))
    measurements: dict[str, MemoryMeasurement] = {}
    for number in range(1, tests):
        name = f"m{number + 1:04d}"
        kind = number % 10
        if kind < 5:
            made = _of_fabric(number, at, random)
        elif kind < 7:
            made = _of_memory(number, at, random)
            measurements |= {name: _held(made[0])} if samples else {}
        elif kind < 9:
            made = _of_scaling(number, at, random)
        else:
            made = _of_full_run(number, at, random)
        records += [replace(each, measurement=name) for each in made]
    records.append(without_value("test_scaling[last]", "scaling", Verdict.BLOCKED, "fabric did not pass"))
    records.append(without_value("test_memory[last]", "memory", Verdict.ERROR, "rank 17 died: signal 9"))
    return records, {name: (f"t{name}", "memory", measured) for name, measured in measurements.items()}


def with_telemetry(at: Conditions) -> Conditions:
    told = tuple(
        NodeTelemetry(
            node=node, samples=30, ranges={
                "cpu_busy": Range(low=0.1, high=0.8), "memory_available": Range(low=9e11, high=1e12),
                "gpu_clock": Range(low=1.2e9, high=1.98e9), "gpu_temperature": Range(low=41.0, high=78.0),
                "gpu_power": Range(low=90.0, high=700.0),
            },
            counts={"ib0.rx_bytes": 10**12} | ({"ib0.symbol_error": 1200} if number == 2 else {}),
            throttle={"GPU3": ("HW thermal slowdown",)} if number == 3 else {},
        )
        for number, node in enumerate(dict.fromkeys(at.rank_nodes))
    )  # fmt: skip
    return replace(at, telemetry=told)


def _of_nodes(at: Conditions) -> Iterator[Record]:
    for name in ("gpus per node", "driver", "version torch", "nic rate"):
        yield record(
            "test_nodes[all]", "nodes", under=at, quantity=name, label="", value=0.0, unit="nodes",
            interval=Interval(low=0, high=0, kind="count", samples=at.nodes), verdict=Verdict.PASS, requirement=None,
            margin=None, reason=f"all {at.nodes} nodes are alike", findings=(), per_rank={}, samples=(),
        )  # fmt: skip


def _of_fabric(number: int, at: Conditions, random: Random) -> Iterator[Record]:
    collective = _COLLECTIVES[number % len(_COLLECTIVES)]
    here = replace(at, collective=collective, group="world")
    slow = number % 7 == 0
    rates = {str(rank): 370e9 * random.uniform(0.98, 1.02) for rank in range(at.ranks)}
    for each in swept(
        f"test_fabric[{collective}-world-{number}]", here, plateau=250e9 if slow else 370e9, seed=number
    ):  # fmt: skip
        told = each.judgement
        named = (_slow_node(at),) if told.verdict is Verdict.FAIL else ()
        told = replace(told, findings=named, per_rank=rates if told.quantity == "busbw" else told.per_rank)
        yield replace(each, judgement=told)


def _slow_node(at: Conditions) -> Finding:
    return finding(suspect=f"NIC mlx5_3 of {at.hosts[-1]}", kind="slow NIC")


def _of_memory(number: int, at: Conditions, random: Random) -> list[Record]:
    under = _job(at, number)
    peaks = {str(rank): float((40 + rank % 5) * 1024 * MIB) for rank in range(at.ranks)}
    highest, test = max(peaks.values()), f"test_memory[{under.layout}]"
    usual: dict[str, Any] = {
        "under": under, "label": "", "findings": (), "samples": (highest,), "verdict": Verdict.PASS, "reason": "well",
    }  # fmt: skip
    peak = record(
        test, "memory", quantity="peak", value=highest, unit="B", margin=0.4, per_rank=peaks,
        interval=Interval(low=highest, high=highest, kind="maximum", samples=2 * at.ranks),
        requirement=demand("<= 72 GiB", 72.0 * 1024 * MIB, "B", 9),
        parts={name: highest * share for name, share in PARTS.items()}, **usual,
    )  # fmt: skip
    headroom = record(
        test, "memory", quantity="headroom", value=0.44, unit="1", margin=3.4,
        interval=Interval(low=0.44, high=0.44, kind="maximum", samples=at.ranks),
        requirement=demand(">= 10 %", 0.1, "1", 9),
        per_rank={rank: 0.44 + random.uniform(0, 0.01) for rank in peaks}, **usual,
    )  # fmt: skip
    return [peak, headroom]


def _held(told: Record) -> MemoryMeasurement:
    """The samples behind the peaks of a record."""
    assert told.conditions is not None
    ranks = tuple(
        RankMemory(
            rank=int(rank), step_peaks=(int(peak) - MIB, int(peak)), reserved_peaks=(), device_used=int(peak) + MIB,
            limit=80 * 1024 * MIB, limit_from="GPU memory", counted="allocated tensors", losses=(5.5, 5.4),
            data_digest="3fb1", parts={name: int(peak * share) for name, share in PARTS.items()},
        )
        for rank, peak in told.judgement.per_rank.items()
    )  # fmt: skip
    return MemoryMeasurement(conditions=told.conditions, ranks=ranks, started=told.started, seconds=20.0)


def _of_scaling(number: int, at: Conditions, random: Random) -> Iterator[Record]:
    under, test = _job(at, number), f"test_scaling[job{number}-{at.nodes}nodes]"
    base, label = max(at.nodes // 8, 1), f"{at.nodes} nodes"
    share = 0.55 if number % 11 == 0 else 0.85
    speedup, step = share * at.nodes / base, 0.4
    steps = {str(rank): step * random.uniform(0.98, 1.02) for rank in range(at.ranks)}
    for quantity, name, value, unit, verdict, more in (
        ("time_to_fixed_work", f"{base} nodes", 300.0, "s", Verdict.MEASURED, {}),
        ("time_to_fixed_work", label, 300.0 / speedup, "s", Verdict.MEASURED, {}),
        ("step_time", label, step, "s", Verdict.MEASURED, {"per_rank": steps}),
        ("speedup", label, speedup, "1", Verdict.MEASURED, {}),
        ("efficiency", label, share, "1", Verdict.PASS if share > 0.7 else Verdict.FAIL, {
            "requirement": demand(">= 0.7", 0.7, "1", 30), "margin": share / 0.7 - 1}),
        ("lost_time", label, 0.06, "s", Verdict.MEASURED, {
            "parts": {"compute loss": 0.01, "exposed transfer": 0.035, "wait": 0.02, "residual": -0.005}}),
    ):  # fmt: skip
        yield record(test, "scaling", under=under, **{
            "quantity": quantity, "label": name, "value": value, "unit": unit, "verdict": verdict, "requirement": None,
            "margin": None, "findings": (), "per_rank": {}, "reason": f"{quantity} of {test}",
            "interval": Interval(low=value * 0.97, high=value * 1.03, kind="bootstrap", level=0.95, samples=6), **more,
        })  # fmt: skip


def _of_full_run(number: int, at: Conditions, random: Random) -> Iterator[Record]:
    under, test = _job(at, number), f"test_full_run[job{number}]"
    goodput = record(
        test, "full_run", under=under, quantity="goodput", label="", value=0.71, unit="1", findings=(),
        interval=Interval(low=0.7099, high=0.7101, kind="resolution", samples=1), verdict=Verdict.PASS,
        requirement=demand(">= 60 %", 0.6, "1", 40), margin=0.183, reason="goodput 71 %", per_rank={},
    )  # fmt: skip
    yield goodput
    for name, seconds in STATES.items():
        yield record(
            test, "full_run", under=under, quantity="time", label=name, value=seconds, unit="s", findings=(),
            interval=Interval(low=seconds, high=seconds, kind="resolution", samples=1), verdict=Verdict.MEASURED,
            requirement=None, margin=None, reason=f"time {seconds} s",
            per_rank={str(rank): seconds * random.uniform(0.99, 1.01) for rank in range(at.ranks)},
        )  # fmt: skip


def _job(at: Conditions, number: int) -> Conditions:
    return replace(at, layout=f"job{number}", workload="9f2c41d07a55e310")


def hostile(names: tuple[str, ...]) -> Told:
    """A small run whose hosts, layouts, devices, reasons and findings have these names."""
    name = "".join(names)
    at = conditions(
        nodes=len(names), ranks=len(names), hosts=names, rank_nodes=names, device_name=name, backend=name, layout=name,
        workload=name, group=name, collective="all_reduce", versions={name: name}, simulated=False,
    )  # fmt: skip
    at = replace(at, telemetry=(NodeTelemetry(node=name, samples=1, throttle={name: (name,)}, counts={name: 1}),))
    accused = finding(suspect=name, kind=name, evidence=name, check_next=name)
    per_rank = {str(rank): 1e6 * (rank + 1) for rank in range(len(names))}
    told: dict[str, Any] = {"under": at, "reason": name, "findings": (accused,), "per_rank": per_rank}
    demanded = replace(demand(">= 500 MB/s", 0.5e9, "B/s"), text=name, source=name)
    return [
        record(f"test_fabric[{name}]", requirement=demanded, **told),
        record(f"test_memory[{name}]", "memory", quantity="peak", value=1e6, unit="B", parts={name: 1e6},
               interval=None, **told),
        record(f"test_full_run[{name}]", "full_run", quantity="time", label=name, value=3.0, unit="s",
               interval=None, requirement=None, **told),
        without_value(f"test_{name}[{name}]", "scaling", Verdict.ERROR, name),
    ], {}  # fmt: skip
