"""Conditions, judgements, records and measurements as a small real run makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory
from pytest_clusterqual.model.record import SCHEMA, Demand, Finding, Interval, Judgement, Record, Verdict

RUN = "20261130T014824Z"
STARTED = 1_796_003_304.0
MIB = 1024 * 1024
SUITE = "qualification/test_qualification.py::"


def conditions(**changes: Any) -> Conditions:
    usual = Conditions(
        nodes=2,
        nproc_per_node=1,
        ranks=2,
        hosts=("node0", "node1"),
        simulated=True,
        oversubscribed=False,
        device="cpu",
        device_name="AMD EPYC 9654",
        backend="gloo",
        versions={"torch": "2.13.0", "python": "3.11.2"},
    )
    made = replace(usual, **changes)
    places = tuple(f"node{rank // made.nproc_per_node}" for rank in range(made.ranks))
    return replace(made, rank_nodes=changes.get("rank_nodes", places))


def demand(text: str, value: float, unit: str, line: int = 14, expected_from: str | None = None) -> Demand:
    return Demand(
        op=text.split(maxsplit=1)[0],
        value=value,
        unit=unit,
        text=text,
        source=f"clusterqual.yaml:{line}",
        expected_from=expected_from,
    )


def finding(**changes: Any) -> Finding:
    usual = Finding(
        suspect="link of node1",
        kind="slow rank",
        evidence="rank 1 arrives last in 11 of 12 rounds, 1.8 x the median of the others",
        check_next="the NIC counters and cable of node1",
    )
    return replace(usual, **changes)


def judgement(**changes: Any) -> Judgement:
    usual = Judgement(
        quantity="busbw",
        label="1 MiB",
        value=0.41e9,
        unit="B/s",
        interval=Interval(low=0.39e9, high=0.43e9, kind="median", level=0.95, samples=12),
        verdict=Verdict.FAIL,
        reason="busbw 410 MB/s [390 MB/s, 430 MB/s] is below the required >= 500 MB/s",
        requirement=demand(">= 500 MB/s", 0.5e9, "B/s"),
        margin=-0.18,
        samples=(0.40e9, 0.41e9, 0.42e9),
        per_rank={"0": 0.41e9, "1": 0.41e9},
        findings=(finding(),),
    )
    return replace(usual, **changes)


def record(
    test: str = "test_fabric[all_reduce-world]",
    criterion: str = "fabric",
    *,
    under: Conditions | None = None,
    measurement: str | None = "m0001",
    seconds: float = 4.25,
    started: float = STARTED,
    **changes: Any,
) -> Record:
    """A failing fabric record, with `changes` to its judgement."""
    return Record(
        schema=SCHEMA,
        run=RUN,
        test=SUITE + test,
        criterion=criterion,
        judgement=judgement(**changes),
        conditions=under or conditions(),
        measurement=measurement,
        started=started,
        seconds=seconds,
    )


def passed(test: str, criterion: str, **changes: Any) -> Record:
    return record(test, criterion, verdict=Verdict.PASS, findings=(), **changes)


def without_value(test: str, criterion: str, verdict: Verdict, reason: str) -> Record:
    """BLOCKED or ERROR: nothing was measured."""
    made = record(
        test,
        criterion,
        quantity="",
        label="",
        value=None,
        unit="1",
        interval=None,
        verdict=verdict,
        reason=reason,
        requirement=None,
        margin=None,
        samples=(),
        per_rank={},
        findings=(),
        measurement=None,
        seconds=0.0,
    )
    return replace(made, conditions=None)


def sizes(first: int, count: int, factor: int = 4) -> list[int]:
    return [first * factor**i for i in range(count)]


def size_label(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"


def measured_sizes(test: str, first: int, count: int, rate: float) -> list[Record]:
    """Sizes without a requirement, each a bit faster than the one before."""
    return [
        record(
            test,
            label=size_label(size),
            value=rate * (i + 1),
            verdict=Verdict.MEASURED,
            requirement=None,
            margin=None,
            interval=Interval(low=rate * (i + 0.9), high=rate * (i + 1.1), kind="median", level=0.95, samples=12),
            reason="no requirement in the project file",
            findings=(),
            measurement="m0002",
        )
        for i, size in enumerate(sizes(first, count))
    ]


def whole_run() -> list[Record]:
    """Four criteria on two simulated nodes: memory passes, fabric fails, scaling waits, recovery is too slow."""
    maximum = Interval(low=412 * MIB, high=412 * MIB, kind="maximum", samples=6)
    ddp = conditions(layout="ddp", workload="9f2c41d07a55e310")
    whole = [
        passed(
            "test_memory[ddp]",
            "memory",
            under=ddp,
            quantity="peak",
            label="",
            value=412.0 * MIB,
            unit="B",
            interval=maximum,
            reason="peak 412 MiB is within the required <= 2 GiB",
            requirement=demand("<= 2 GiB", 2048.0 * MIB, "B", 9),
            margin=0.799,
        ),
        passed(
            "test_memory[ddp]",
            "memory",
            under=ddp,
            quantity="headroom",
            label="",
            value=0.874,
            unit="1",
            interval=Interval(low=0.874, high=0.874, kind="maximum", samples=6),
            reason="headroom 87.4 % is within the required >= 10 %",
            requirement=demand(">= 10 %", 0.1, "1", 9),
            margin=7.74,
        ),
        record(measurement="m0002"),
        record(
            measurement="m0002",
            label="4 MiB",
            value=0.512e9,
            verdict=Verdict.UNDECIDED,
            findings=(),
            interval=Interval(low=0.47e9, high=0.55e9, kind="median", level=0.95, samples=12),
            margin=0.024,
            reason="busbw 512 MB/s [470 MB/s, 550 MB/s] straddles the required >= 500 MB/s: about 20 more rounds",
        ),
        *measured_sizes("test_fabric[all_reduce-world]", 4096, 4, 20e6),
        passed(
            "test_fabric[all_reduce-world]",
            "fabric",
            measurement="m0002",
            quantity="wrong_elements",
            label="",
            value=0.0,
            unit="1",
            interval=Interval(low=0, high=0, kind="count", samples=72),
            requirement=None,
            margin=None,
            reason="no wrong element in 72 checks",
        ),
        *[
            passed(
                "test_fabric[send_recv-inter_node]",
                "fabric",
                measurement="m0003",
                label=size_label(size),
                value=rate,
                interval=Interval(low=rate * 0.98, high=rate * 1.03, kind="median", level=0.95, samples=12),
                requirement=demand(">= 80 % of expected", 0.32e9, "B/s", 15, "1 NIC x 400 MB/s"),
                margin=rate / 0.32e9 - 1,
                reason="above",
            )
            for size, rate in zip(sizes(MIB, 3), (0.345e9, 0.371e9, 0.384e9), strict=True)
        ],
        without_value(
            "test_scaling[ddp-2]",
            "scaling",
            Verdict.BLOCKED,
            "fabric did not pass: test_fabric[all_reduce-world] is FAIL",
        ),
        passed(
            "test_full_run[ddp-async]",
            "full_run",
            under=ddp,
            measurement="m0005",
            quantity="goodput",
            label="",
            value=0.4632,
            unit="1",
            interval=Interval(low=0.4629, high=0.4635, kind="resolution"),
            requirement=demand(">= 40 %", 0.4, "1", 20),
            margin=0.158,
            reason="one run",
        ),
        passed(
            "test_full_run[ddp-async]",
            "full_run",
            under=ddp,
            measurement="m0005",
            label="",
            value=3.84,
            unit="s",
            quantity="checkpoint_completion",
            interval=Interval(low=3.74, high=3.94, kind="resolution"),
            requirement=demand("<= 20 s", 20.0, "s", 20),
            margin=0.808,
            reason="one run",
        ),
    ]
    return whole


def loaded(other_cpu: float, node: str = "node1") -> Conditions:
    return conditions(load=Load(other_cpu=other_cpu, node=node))


def memory_measurement(*, losses: tuple[float, ...] = (5.55, 5.41)) -> MemoryMeasurement:
    rank = RankMemory(
        rank=0,
        step_peaks=(400 * MIB, 412 * MIB),
        reserved_peaks=(),
        device_used=600 * MIB,
        limit=4096 * MIB,
        limit_from="cgroup",
        counted="allocated tensors",
        parts={"parameters": 8 * MIB, "gradients": 8 * MIB},
        losses=losses,
        data_digest="3fb1",
    )
    return MemoryMeasurement(
        conditions=conditions(layout="ddp"), ranks=(rank, replace(rank, rank=1)), started=STARTED, seconds=12.5
    )
