"""Records as a whole run leaves them, for the decision: every part can be replaced by another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from made import RUN, STARTED, conditions, demand, finding

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.record import SCHEMA, Demand, Finding, Interval, Judgement, Record, Verdict

JOB = "9f2c41d07a55e310"
SUITE = "qualification/test_"
UNITS = {
    "speedup": "1", "efficiency": "1", "goodput": "1", "gain": "1", "headroom": "1", "fits": "1", "price": "1",
    "data_stall": "1", "step_time": "s", "lost_time": "s", "time_to_fixed_work": "s", "time_to_train": "s",
    "recovery": "s", "time": "s", "detection": "s", "restart": "s", "rendezvous": "s", "checkpoint_load": "s",
    "checkpoint_blocking": "s", "latency": "s", "throughput": "tokens/s", "peak": "B", "busbw": "B/s",
    "pair_busbw": "B/s", "first_fit": "nodes",
}  # fmt: skip


def on(nodes: int = 2, layout: str | None = "ddp", **changes: Any) -> Conditions:
    usual: dict[str, Any] = {
        "nodes": nodes, "nproc_per_node": 4, "ranks": 4 * nodes, "hosts": tuple(f"gpu{i:03}" for i in range(nodes)),
        "simulated": False, "device": "cuda", "device_name": "NVIDIA H100", "backend": "nccl", "layout": layout,
        "workload": JOB,
    }  # fmt: skip
    return conditions(**{**usual, **changes})


def row(
    test: str,
    quantity: str,
    value: float | None = None,
    *,
    want: str = "",
    verdict: Verdict | None = None,
    label: str = "",
    width: float = 0.04,
    reason: str = "",
    at: Conditions | None = None,
    exception: str = "",
    findings: tuple[Finding, ...] = (),
    **more: Any,
) -> Record:
    """One record of ``<criterion>[<case>]``; with `want`, such as ``>= 1.5``, it passes unless `verdict` says else."""
    criterion = test.partition("[")[0]
    required = _demand(want, UNITS.get(quantity, "1")) if want else None
    interval = None if value is None else Interval(
        low=value * (1 - width / 2), high=value * (1 + width / 2), kind="bootstrap", level=0.95, samples=6
    )  # fmt: skip
    judged = verdict or (Verdict.PASS if want else Verdict.MEASURED)
    return Record(
        schema=SCHEMA, run=RUN, test=f"{SUITE}{criterion}.py::test_{test}", criterion=criterion,
        judgement=Judgement(
            quantity=quantity, label=label, value=value, unit=UNITS.get(quantity, "1"), interval=interval,
            verdict=judged, reason=reason or f"{quantity} {label or 'alone'} is {judged}", requirement=required,
            findings=findings, **more,
        ),
        conditions=at, measurement=None if value is None else "m0001", started=STARTED, seconds=1.0,
        exception=exception,
    )  # fmt: skip


def _demand(text: str, unit: str) -> Demand:
    return demand(text, float(text.split()[1]), unit)


def nothing_run(test: str, verdict: Verdict, reason: str) -> list[Record]:
    """A test that ended before it measured anything."""
    return [row(test, test.partition("[")[0], verdict=verdict, reason=reason)]


def memory(layout: str = "ddp", *, nodes: int = 2, **changes: Any) -> list[Record]:
    test, at = f"memory[{layout}-{nodes}nodes]", on(nodes, layout)
    return [row(test, "peak", 20e9, at=at, **{"want": "<= 70e9", **changes}), row(test, "headroom", 0.5, at=at)]


def fabric(*, nodes: int = 2, **changes: Any) -> list[Record]:
    at = on(nodes, None, collective="all_reduce", group="world", workload=None)
    return [
        row("fabric[all_reduce-world]", "busbw", 330e9, label="64 MiB", at=at, **{"want": ">= 300e9", **changes}),
        row("fabric[all_reduce-world]", "busbw", 90e9, label="1 MiB", at=at),
    ]


def scaling(
    layout: str = "ddp",
    speedup: float | None = 1.8,
    *,
    nodes: int = 2,
    base: int = 1,
    one: float = 100.0,
    want: str = ">= 1.5",
    verdict: Verdict | None = None,
    width: float = 0.04,
    target: Mapping[str, Any] | None = None,
    at: Conditions | None = None,
    **of_speedup: Any,
) -> list[Record]:
    """`one` is the time to the fixed work (s) on `base` nodes; the step takes a tenth of a percent of it.

    `target` says what is asked of ``time_to_train``, which is ten thousand times as long.
    """
    test, at = f"scaling[{layout}-{nodes}nodes]", at or on(nodes, layout)
    times = {base: one, nodes: one / (speedup or 1.8)}
    records = []
    for count, seconds in times.items():
        label = f"{count} node" + ("s" if count > 1 else "")
        figures = {"step_time": seconds / 1000, "throughput": 1e7 / seconds, "time_to_fixed_work": seconds}
        records += [
            row(test, name, value, label=label, at=at, width=width, samples=(value,) * 6)
            for name, value in figures.items()
        ]
        if target is not None:
            asked = target if count == nodes else {}
            records.append(row(test, "time_to_train", 1e4 * seconds, label=label, at=at, width=width, **asked))
    gained = {"label": f"{nodes} nodes", "at": at, "want": want, "verdict": verdict, "width": width, **of_speedup}
    efficiency = None if speedup is None else speedup * base / nodes
    return [
        *records, row(test, "speedup", speedup, **gained),
        row(test, "efficiency", efficiency, label=f"{nodes} nodes", at=at, width=width),
    ]  # fmt: skip


def full_run(
    layout: str = "ddp", *, nodes: int = 2, recovery: Verdict | None = None, gain: Mapping[str, Any] | None = None,
    **changes: Any,
) -> list[Record]:  # fmt: skip
    """`gain` is what is said of the gain over one node; without it one node did not do such a run."""
    test, at = f"full_run[{layout}-{nodes}nodes]", on(nodes, layout)
    left = [] if gain is None else [row(test, "gain", at=at, **{"width": 0.001, **gain})]
    return [
        *left,
        row(test, "goodput", 0.92, at=at, **{"want": ">= 0.9", **changes}),
        row(test, "throughput", 1.6e5, at=at),
        row(test, "recovery", 40.0, want="<= 60", verdict=recovery, at=at),
    ]


def ladder(fits: Mapping[str, float | None], *, first_fit: float | None = None) -> list[Record]:
    """`fits` is by rung: 1, 0, or None for one that was not tried; `first_fit` the nodes of the first that does."""
    at, test = on(2, None), "memory[ladder]"
    first = [row(test, "first_fit", first_fit, at=at)] if first_fit else []
    rungs = [row(test, "fits", value, label=rung, at=at, width=0.0) for rung, value in fits.items()]
    return [*first, *rungs, *[row(test, "price", 1.3, label=r, at=at) for r, value in fits.items() if value == 1.0]]


# No way inside a node of four devices holds the job, two nodes do.
NEEDS_TWO = {
    "one device": 0.0, "microbatch 1": 0.0, "recompute full": 0.0, "shard": 0.0, "shard, recompute": 0.0,
    "tensor 4": 0.0, "2 nodes": 1.0,
}  # fmt: skip
NODES = [row("nodes[2nodes]", "version torch", 0.0, want="<= 0", at=on(2, None, workload=None))]


def run(**parts: list[Record] | None) -> dict[int, Record]:
    """A run in which two nodes do the job as asked, with some criteria replaced; None leaves one out."""
    usual: dict[str, list[Record] | None] = {
        "nodes": NODES, "memory": memory(), "fabric": fabric(), "scaling": scaling(), "full_run": full_run(),
    }  # fmt: skip
    records = [record for part in {**usual, **parts}.values() if part for record in part]
    return dict(enumerate(records, 1))


def slow_link(**changes: Any) -> Finding:
    return finding(suspect="node1", kind="slow link of a node", check_next="its cable and port", **changes)
