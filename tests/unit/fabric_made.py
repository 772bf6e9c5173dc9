"""Records and measurements of fabric tests as a simulated cluster gives them, one of its nodes slow."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

from made import STARTED, conditions, demand, record

from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.model.conditions import Conditions, Load
from pytest_clusterqual.model.fabric import PairsMeasurement, PairTiming
from pytest_clusterqual.model.record import Interval, Record, Verdict

MIB = 1 << 20
WHY = "ring all-reduce over 16 nodes x 8 ranks: bound by 8 NICs x 400 Gbit/s = 400 GB/s each way; busbw <= 400 GB/s"


def cluster(nodes: int, nproc_per_node: int = 8, **changes: object) -> Conditions:
    """A real one, over NCCL."""
    names = tuple(f"gpu{number:03d}" for number in range(1, nodes + 1))
    made = conditions(
        nodes=nodes, nproc_per_node=nproc_per_node, ranks=nodes * nproc_per_node, hosts=names, simulated=False,
        device="cuda", device_name="NVIDIA H100 80GB HBM3", backend="nccl", collective="all_reduce", group="world",
        versions={"torch": "2.13.0", "nccl": "2.27.3"}, load=Load(other_cpu=0.02, node=names[0]),
        rank_nodes=tuple(name for name in names for _ in range(nproc_per_node)),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def swept(test: str, at: Conditions, *, plateau: float = 370e9, alpha: float = 28e-6, seed: int = 1) -> list[Record]:
    """4 KiB to 1 GiB: busbw required from 64 MiB on, latency at the smallest size, a wait at every size."""
    random, factor = Random(seed), busbw_factor(at.collective or "", at.ranks)
    records = []
    for size in [4096 * 4**power for power in range(10)]:
        seconds = (alpha + size * factor / plateau) * random.lognormvariate(0, 0.02)
        rate = size * factor / seconds
        interval = Interval(low=rate * 0.96, high=rate * 1.03, kind="median", level=0.95, samples=12)
        label = f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"
        if size >= 1024 * MIB:
            label = "1 GiB"
        required = demand(">= 80 % of expected", 320e9, "B/s", 15, WHY) if size >= 64 * MIB else None
        verdict = Verdict.MEASURED
        if required:
            verdict = (
                Verdict.PASS if interval.low >= 320e9 else Verdict.FAIL if interval.high < 320e9 else Verdict.UNDECIDED
            )
        records.append(record(
            test, under=at, label=label, value=rate, interval=interval, verdict=verdict, requirement=required,
            margin=rate / 320e9 - 1 if required else None, expected=400e9 if size >= 64 * MIB else None,
            expected_why=WHY, findings=(),
            reason=f"busbw {rate:.3g}",
        ))  # fmt: skip
        records.append(waited(test, at, label, late=11, share=0.3 * random.random(), seed=size))
    first = records[0].judgement
    seconds = 4096 * factor / (first.value or 1.0)
    records.append(record(
        test, under=at, quantity="latency", label="4 KiB", value=seconds, unit="s", findings=(),
        interval=Interval(low=seconds * 0.9, high=seconds * 1.2, kind="median", level=0.95, samples=12),
        verdict=Verdict.PASS, requirement=demand("<= 100 us", 100e-6, "s"), margin=0.5, reason="latency is fine",
    ))  # fmt: skip
    return records


def waited(test: str, at: Conditions, label: str, *, late: int, share: float, seed: int = 1) -> Record:
    """All ranks wait a `share` of the call for the `late` one."""
    random = Random(seed)
    shares = {rank: share * random.uniform(0.9, 1.0) for rank in range(at.ranks)}
    shares[late % at.ranks] = share * 0.02
    return record(
        test, under=at, quantity="wait", label=label, value=share, unit="1", findings=(), verdict=Verdict.MEASURED,
        interval=Interval(low=share * 0.9, high=share * 1.1, kind="median", level=0.95, samples=12),
        requirement=None, margin=None, reason="wait", per_rank={str(rank): wait for rank, wait in shares.items()},
    )  # fmt: skip


def exchanged_by(nodes: int, *, slow: str = "", factor: float = 0.5, partners: int | None = None) -> PairsMeasurement:
    """64 MiB between pairs of nodes, the slow one at `factor` times the rate of the others."""
    random, at = Random(nodes), cluster(nodes)
    names = list(dict.fromkeys(at.rank_nodes))
    ends = [
        (a, b)
        for (i, a), (j, b) in permutations(list(enumerate(names)), 2)
        if partners is None or min((i - j) % nodes, (j - i) % nodes) <= partners
    ]
    return PairsMeasurement(
        conditions=at, started=STARTED, seconds=30.0,
        pairs=tuple(
            PairTiming(
                sender=a, receiver=b, bytes=64 * MIB,
                seconds=tuple(
                    64 * MIB / (48e9 * (factor if slow in (a, b) else 1.0)) * random.lognormvariate(0, 0.02)
                    for _ in range(6)
                ),
            )
            for a, b in ends
        ),
    )  # fmt: skip
