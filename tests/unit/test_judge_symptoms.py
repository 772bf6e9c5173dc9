"""What is seen in records and what to check first: each symptom where it is, and not in a run without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from decision_made import fabric, full_run, memory, on, row, run, scaling
from made import finding

from pytest_clusterqual.judge.decision.evidence import Evidence
from pytest_clusterqual.judge.decision.symptoms import RULES, symptoms
from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.model.conditions import Load
from pytest_clusterqual.model.decision import Symptom
from pytest_clusterqual.model.record import Interval, Record, Verdict
from pytest_clusterqual.model.telemetry import NodeTelemetry

FAIL = Verdict.FAIL
PARTS = {
    "compute loss": 1e-3, "exposed transfer": 1e-3, "wait": 1e-3, "pipeline bubble": 1e-3, "data stall": 1e-3,
    "host gaps": 0.0, "residual": 1e-3,
}  # fmt: skip


def seen(**parts: list[Record] | None) -> tuple[Symptom, ...]:
    return symptoms(Evidence.of_run(run(**parts)))


def lost(part: str, *, speedup: float = 1.2) -> list[Record]:
    """Two nodes gain too little, and one part of the lost time is larger than the others."""
    parts = {**PARTS, part: 9e-3}
    told = row("scaling[ddp-2nodes]", "lost_time", sum(parts.values()), label="2 nodes", at=on(), parts=parts)
    return [*scaling(speedup=speedup, verdict=FAIL), told]


def pointed(kind: str, test: str = "fabric[all_reduce-world]", **more: Any) -> list[Record]:
    found = finding(kind=kind, suspect="rank 3 on node1", **more)
    return [*fabric(), row(test, "busbw", 1e9, label="4 MiB", at=on(2, None), findings=(found,))]


def telling(**conditions: Any) -> list[Record]:
    return [replace(record, conditions=on(**conditions)) for record in scaling()]


def swept(collective: str, group: str = "world", **more: Any) -> Record:
    at = on(2, None, collective=collective, group=group, workload=None)
    return row(f"fabric[{collective}-{group}]", "busbw", 1e11, at=at, **{"label": "64 MiB", **more})


def sizes(*rates: float) -> list[Record]:
    at = on(2, None, collective="all_gather", group="world", workload=None)
    labels = ("1 MiB", "64 MiB", "4 GiB")
    return [
        row("fabric[all_gather-world]", "busbw", rate, label=label, at=at)
        for label, rate in zip(labels, rates, strict=True)
    ]


def ledger(**seconds: float) -> list[Record]:
    at = on()
    spent = {
        "kept": 50.0, "exposed transfer": 40.0, "wait": 30.0, "bubble": 30.0, "init": 1.0, "checkpoint": 1.0,
        "lost": 1.0, "data": 1.0, "load": 1.0, **seconds,
    }  # fmt: skip
    times = [row("full_run[ddp-2nodes]", "time", value, label=name, at=at) for name, value in spent.items()]
    return [*full_run(verdict=FAIL), *times]


def recovery(**seconds: float) -> list[Record]:
    parts = {"detection": 2.0, "restart": 2.0, "rendezvous": 2.0, "checkpoint_load": 2.0, **seconds}
    told = [row("full_run[ddp-2nodes]", name, value, at=on()) for name, value in parts.items()]
    return [*full_run(recovery=FAIL), *told]


def counted(**counts: int) -> list[Record]:
    return telling(telemetry=(NodeTelemetry(node="node1", samples=9, counts={k.replace("__", "."): v
                                            for k, v in counts.items()}),))  # fmt: skip


# What is in the records, and words of the symptom and of what to check first.
SEEN: dict[str, tuple[dict[str, list[Record] | None], str, str]] = {
    "transfer": ({"scaling": lost("exposed transfer")}, "is exposed transfer: 9 ms", "GPUDirect"),
    "wait": ({"scaling": lost("wait")}, "is wait: 9 ms", "the rank that comes last"),
    "stall": ({"scaling": lost("data stall")}, "is data stall: 9 ms", "read-ahead"),
    "compute": ({"scaling": lost("compute loss")}, "is compute loss: 9 ms", "memory bandwidth"),
    "bubble": ({"scaling": lost("pipeline bubble")}, "is pipeline bubble: 9 ms", "microbatches of a replica"),
    "host": ({"scaling": lost("host gaps")}, "is host gaps: 9 ms", "the host between kernels"),
    "too little work": ({"scaling": lost("exposed transfer", speedup=0.2)}, "while Fabric passes", "larger microbatch"),
    "data": (
        {"scaling": [*scaling(), row("scaling[ddp-2nodes]", "data_stall", 0.3, label="2 nodes", want="<= 0.05",
                                     verdict=FAIL, at=on())]},
        "waits for data 30 %", "workers",
    ),
    "jitter": ({"scaling": scaling(width=0.5)}, "varies from run to run", "daemons"),
    "load": ({"scaling": telling(load=Load(other_cpu=0.4, node="node1"))}, "40 % of the cores' time on node1", "idle"),
    "throttling": (
        {"scaling": telling(telemetry=(NodeTelemetry(node="node1", samples=9, throttle={"GPU2": ("HW slowdown",)}),))},
        "GPU2 of node1 was slowed down: HW slowdown", "power limits",
    ),
    "above the level": ({"fabric": pointed("above the bound")}, "above the bound", "NCCL_ALGO=Ring"),
    "pairs": (
        {"fabric": [*fabric(), row("fabric[pairs]", "pair_busbw", 1e9, want=">= 2e9", verdict=FAIL, at=on(2, None))]},
        "the slowest pair is slow", "cable, port and switch",
    ),
    "all-to-all": (
        {"fabric": [*fabric(), swept("all_to_all", want=">= 2e11", verdict=FAIL)]},
        "where all_reduce passes", "NCCL_CROSS_NIC",
    ),
    "small": (
        {"fabric": [*fabric(), row("fabric[all_reduce-world]", "latency", 1e-3, label="4 KiB", want="<= 1e-4",
                                   verdict=FAIL, at=on(2, None, collective="all_reduce", group="world"))]},
        "small messages are slow, large ones pass", "NCCL_PROTO",
    ),
    "largest": ({"fabric": [*fabric(), *sizes(1e11, 2e11, 1e11)]}, "less than", "memory registration"),
    "late": ({"fabric": pointed("late rank")}, "rank 3 on node1 (late rank)", "before the call"),
    "common": ({"fabric": pointed("common cause")}, "(common cause)", "what all ranks share"),
    "contention": ({"fabric": pointed("contention")}, "(contention)", "in common"),
    "placement": ({"fabric": pointed("slow placement")}, "(slow placement)", "the rank map"),
    "errors": ({"scaling": counted(mlx5_0__symbol_error=7)}, "mlx5_0.symbol_error of node1 grew by 7", "cable"),
    "wrong data": ({"fabric": pointed("wrong data")}, "(wrong data)", "ECC"),
    "layout": (
        {"memory": [*memory(verdict=FAIL), *memory("fsdp")]}, "on the nodes where fsdp does", "shards or recomputes",
    ),
    "imbalance": ({"fabric": pointed("memory imbalance")}, "(memory imbalance)", "uneven shards"),
    "growth": ({"fabric": pointed("growth")}, "(growth)", "not detached"),
    "blocking": (
        {"full_run": [*full_run(), row("full_run[ddp-2nodes]", "checkpoint_blocking", 9.0, want="<= 2", verdict=FAIL,
                                       at=on())]},
        "checkpoint blocking of ddp-2nodes: 9 s", "asynchronous saves",
    ),
    "detection": ({"full_run": recovery(detection=30.0)}, "most of it detection: 30 s", "time-outs"),
    "restart": ({"full_run": recovery(restart=30.0)}, "most of it restart: 30 s", "ends the old processes"),
    "rendezvous": ({"full_run": recovery(rendezvous=30.0)}, "most of it rendezvous: 30 s", "imports"),
    "load of a checkpoint": ({"full_run": recovery(checkpoint_load=30.0)}, "checkpoint load: 30 s", "read rate"),
    "start-up": ({"full_run": ledger(init=20.0)}, "goodput 92 % [90.2, 93.8]; what takes most beside its steps is "
                 "init: 20 s", "a longer full run"),
    "coming back": ({"full_run": ledger(rendezvous=20.0)}, "is rendezvous: 20 s", "starting and ending"),
    "warming up": ({"full_run": ledger(**{"re-warm-up": 20.0})}, "is re-warm-up: 20 s", "compilation"),
    "reading back": ({"full_run": ledger(reload=20.0)}, "is reload: 20 s", "the checkpoint interval"),
    "last save": ({"full_run": ledger(**{"hook last save": 20.0})}, "is hook last save: 20 s", "the write rate"),
    "lost steps": ({"full_run": ledger(lost=20.0)}, "is lost: 20 s", "the checkpoint interval"),
    "stalls of a run": ({"full_run": ledger(data=20.0)}, "is data: 20 s", "load of a whole run"),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_a_symptom_is_seen_where_it_is(name: str) -> None:
    parts, told, check = SEEN[name]
    records = run(**parts)
    (found,) = [s for s in symptoms(Evidence.of_run(records)) if told in s.seen]
    assert check in found.check_first
    assert found.records
    assert set(found.records) <= set(records)


def test_a_run_without_trouble_has_none() -> None:
    assert seen() == ()


def test_every_rule_is_seen_by_some_test() -> None:
    checked = {symptom.check_first for parts, _, _ in SEEN.values() for symptom in seen(**parts)}
    assert {check for _, check in RULES} - checked == {
        "the spread of single steps and the loads of the nodes; measure again"  # below
    }
    assert "the spread of single steps" in seen(scaling=lost("residual"))[0].check_first


def test_too_little_work_does_not_blame_the_fabric() -> None:
    """A network that does what it should is not at fault because a small job has nothing to hide its messages in."""
    small = lost("exposed transfer", speedup=0.2)
    assert not any("GPUDirect" in symptom.check_first for symptom in seen(scaling=small))
    slow = seen(scaling=small, fabric=fabric(verdict=FAIL))
    assert any("GPUDirect" in symptom.check_first for symptom in slow)
    assert not any("larger microbatch" in symptom.check_first for symptom in slow)


def test_what_is_lost_is_no_symptom_where_the_gain_is_as_asked() -> None:
    told = row("scaling[ddp-2nodes]", "lost_time", 0.02, label="2 nodes", at=on(), parts={**PARTS, "wait": 0.01})
    assert seen(scaling=[*scaling(), told]) == ()


@pytest.mark.parametrize(
    "parts",
    [
        {"fabric": [*fabric(), swept("all_to_all", "rails", want=">= 2e11", verdict=FAIL)]},  # another group
        {
            "fabric": [
                *fabric(),
                swept("all_reduce", label="4 MiB", want=">= 2e11", verdict=FAIL),
                swept("all_to_all", want=">= 2e11", verdict=FAIL),
            ]
        },  # all_reduce does not pass everywhere either
        {"fabric": [*fabric(), *sizes(1e11, 2e11, 1.9e11)]},
        {"fabric": [*fabric(), *sizes(0.5e11, 1e11, 2e11)]},
        {"scaling": counted(eth0__rx_bytes=10**9)},
        {"scaling": telling(load=Load(other_cpu=0.1, node="node1"))},
    ],
)
def test_what_only_looks_like_a_symptom(parts: dict[str, list[Record]]) -> None:
    assert seen(**parts) == ()


def test_of_many_sightings_the_first_is_told_and_the_others_are_counted() -> None:
    counters = seen(scaling=counted(eth0__rx_errors=1, eth0__tx_errors=2))
    assert counters[0].seen == "eth0.rx_errors of node1 grew by 1 while it was measured (and 1 more)"


def test_the_largest_size_must_fall_for_sure() -> None:
    wide = sizes(1e11, 2e11, 1.7e11)
    vague = replace(wide[2].judgement, interval=Interval(low=1.5e11, high=2.1e11, kind="median", level=0.95))
    assert seen(fabric=[*fabric(), *wide])
    assert seen(fabric=[*fabric(), *wide[:2], replace(wide[2], judgement=vague)]) == ()


def test_a_symptom_stands_in_for_a_suspect_of_its_record() -> None:
    decision = decide(run(scaling=lost("wait")), None)
    assert decision.outcome == "one-node"
    (line,) = [line for line in decision.lines if line.label == "check first"]
    assert "the rank that comes last" in line.text
