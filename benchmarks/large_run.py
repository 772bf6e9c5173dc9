"""The run folder of a large simulated cluster, as a real one would be: samples of every rank, telemetry of every node.

One test of each kind is measured by drawing samples and judged by the product itself; its lines are then written again
under other names until there are as many tests as wanted.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests" / "unit"), str(ROOT / "benchmarks")]

from fabric_made import cluster  # noqa: E402  # the path is set above
from full_run_made import KILLED, Rank  # noqa: E402
from simulated_cluster import Cause, Cluster  # noqa: E402

from pytest_clusterqual.folder.places import MEASUREMENT_LINES, RECORD_LINES  # noqa: E402
from pytest_clusterqual.folder.runs import RunFolder  # noqa: E402
from pytest_clusterqual.model.busbw import busbw_factor  # noqa: E402
from pytest_clusterqual.model.conditions import Conditions  # noqa: E402
from pytest_clusterqual.model.fabric import (  # noqa: E402
    CollectiveTiming,
    FabricMeasurement,
    PairsMeasurement,
    RankFabric,
    RankLadder,
)
from pytest_clusterqual.model.full_run import Checkpoints, FullRun, FullRunMeasurement, RankRun  # noqa: E402
from pytest_clusterqual.model.hardware import Gpu, Nic, NodeHardware  # noqa: E402
from pytest_clusterqual.model.hardware import Path as Between  # noqa: E402
from pytest_clusterqual.model.measurement import Measurement, NodesMeasurement  # noqa: E402
from pytest_clusterqual.model.memory import MemoryMeasurement, RankMemory  # noqa: E402
from pytest_clusterqual.model.telemetry import NodeTelemetry, Range  # noqa: E402
from pytest_clusterqual.model.training import RankTraining, ScalingMeasurement, ScalingRun  # noqa: E402
from pytest_clusterqual.recorded.judging import judge_again, own_project  # noqa: E402

PROJECT = """version: 1
project: simulated
workload:
  model: {{layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}}
  optimizer: {{name: adamw, lr: 3.0e-4}}
  precision: bf16
  sequence_length: 4096
  microbatch: 1
  global_batch: {ranks}
  steps: 20
  seed: 1
layouts: [{{name: ddp}}]
topology: {{}}
memory: {{require: [{{peak: "<= 72 GiB"}}, {{headroom: ">= 10 %"}}]}}
fabric:
  groups: [world, intra_node]
  sizes: {{from: 1 MiB, to: 256 MiB, factor: 4}}
  require: [{{group: world, from: 16 MiB, busbw: ">= 320 GB/s"}}]
scaling: {{points: [{half}, {nodes}], require: [{{nodes: {nodes}, efficiency: ">= 0.7"}}]}}
full_run:
  steps: 40
  checkpoint: {{every: 20, mode: async}}
  failure: {{kill_rank: 1, at_step: 25}}
  require: [{{goodput: ">= 40 %"}}, {{recovery: "<= 60 s"}}]
decision: {{}}
"""
SIZES = [4**power << 20 for power in range(5)]  # bytes
ROUNDS, SAMPLES, CALLS = 6, 3, 6  # of a sweep; so few single calls because there are so many ranks
STEPS, REPEATS, APART = 20, 6, 12
GIB = 1 << 30
# How many of 100 tests are of which kind; there is one of the nodes, and one of all pairs.
SHARES = {"memory": 12, "sweep": 40, "slow sweep": 6, "intra_node": 12, "scaling": 15, "full_run": 15}


def write(path: Path, *, nodes: int, per_node: int, tests: int) -> int:
    """Make the run folder, and say how many records it has."""
    text = PROJECT.format(ranks=nodes * per_node, half=max(nodes // 2, 1), nodes=nodes)
    environment = {"project": "simulated", "project_file": text, "nodes": nodes, "nproc_per_node": per_node}
    RunFolder.create(path, run="simulated", environment={**environment, "decision": {}}, simulated=False)
    made = dict(_kinds(nodes, per_node))
    kinds = ["nodes", "pairs", *itertools.islice(itertools.cycle(_in_turn()), max(tests - 2, 0))]
    records = 0
    with open(path / MEASUREMENT_LINES, "wb") as samples, open(path / RECORD_LINES, "wb") as judged:
        for kind in dict.fromkeys(kinds):
            with tempfile.TemporaryDirectory(dir=path.parent) as place:
                one = _one(Path(place) / "run", environment, made[kind], f"test_{kind}")
                for number in (number for number, each in enumerate(kinds, 1) if each == kind):
                    records += _again(one, number, samples, judged)
    return records


def _in_turn() -> list[str]:
    """The kinds of a hundred tests, well mixed."""
    places = [((number + 0.5) / count, kind) for kind, count in SHARES.items() for number in range(count)]
    return [kind for _, kind in sorted(places)]


def _one(path: Path, environment: dict[str, Any], make: Callable[[], tuple[str, Measurement]], test: str) -> Path:
    """A run folder with one test, measured and judged."""
    folder = RunFolder.create(path, run="simulated", environment=environment, simulated=False)
    criterion, measurement = make()
    folder.add_measurement(criterion, f"{test}[1]", measurement)
    for record in judge_again(folder, own_project(folder)):
        folder.add_record(record)
    return path


def _again(one: Path, number: int, samples: Any, judged: Any) -> int:
    """Its lines once more, as those of test `number`."""
    line = (one / MEASUREMENT_LINES).read_bytes()
    head = json.loads(line[: line.index(b', "criterion": ')] + b"}")
    old = json.dumps({"id": head["id"], "test": head["test"]}).encode()[1:-1]
    test = f"{head['test'].removesuffix('[1]')}[{number}]"
    new = json.dumps({"id": f"m{number:04d}", "test": test}).encode()[1:-1]
    begin = line.index(old)
    samples.writelines([line[:begin], new, memoryview(line)[begin + len(old) :]])
    lines = (one / RECORD_LINES).read_bytes().splitlines(keepends=True)
    for record in lines:
        named = record.replace(json.dumps(head["test"]).encode(), json.dumps(test).encode(), 1)
        judged.write(named.replace(b'"measurement": "m0001"', f'"measurement": "m{number:04d}"'.encode(), 1))
    return len(lines)


def _kinds(nodes: int, per_node: int) -> Iterator[tuple[str, Callable[[], tuple[str, Measurement]]]]:
    random = np.random.default_rng(1)
    at = _conditions(nodes, per_node)
    job = replace(at, layout="ddp", workload="9f2c41d07a55e310")
    world = (tuple(range(at.ranks)),)
    inside = tuple(tuple(range(first, first + per_node)) for first in range(0, at.ranks, per_node))
    yield "nodes", lambda: ("nodes", _nodes(at))
    yield "pairs", lambda: ("fabric", _pairs(at, random))
    yield "memory", lambda: ("memory", _memory(job, random))
    yield "sweep", lambda: ("fabric", _sweep(at, "world", world, 380e9, random))
    yield "slow sweep", lambda: ("fabric", replace(
        _sweep(at, "world", world, 200e9, random), pairs=_pairs(at, random).pairs))  # fmt: skip
    yield "intra_node", lambda: ("fabric", _sweep(at, "intra_node", inside, 400e9, random))
    yield "scaling", lambda: ("scaling", _scaling(job, random))
    yield "full_run", lambda: ("full_run", _full_run(job, random))


def _conditions(nodes: int, per_node: int) -> Conditions:
    """With what every node tells of itself: gauges, and the traffic of eight NICs."""
    names = tuple(f"node{number}" for number in range(nodes))
    told = tuple(
        NodeTelemetry(
            node=node, samples=30, ranges={
                name: Range(low=low * (1 + number / 1e5), high=high * (1 + number / 1e5))
                for name, low, high in (
                    ("cpu_busy", 0.1, 0.8), ("memory_available", 9e11, 1e12), ("gpu_clock", 1.2e9, 1.98e9),
                    ("gpu_temperature", 41.0, 78.0), ("gpu_power", 90.0, 700.0),
                )
            },
            counts={f"mlx5_{nic}.{way}_bytes": 10**12 + number for nic in range(8) for way in ("rx", "tx")},
        )
        for number, node in enumerate(names)
    )  # fmt: skip
    return cluster(
        nodes, per_node, hosts=names, rank_nodes=tuple(name for name in names for _ in range(per_node)),
        telemetry=told, collective=None, group=None,
    )  # fmt: skip


def _nodes(at: Conditions) -> NodesMeasurement:
    gpus = tuple(Gpu(index=i, model="H100", memory=80 * GIB, pcie_width=16, pcie_width_max=16) for i in range(8))
    nics = tuple(Nic(name=f"mlx5_{i}", kind="infiniband", label=f"NIC{i}", up=True, rate=50e9) for i in range(8))
    paths = tuple(
        Between(one=f"GPU{i}", other=f"NIC{j}", kind="PIX" if i == j else "SYS") for i in range(8) for j in range(8)
    )
    found = tuple(NodeHardware(node=name, host=name, gpus=gpus, nics=nics, paths=paths) for name in at.hosts)
    return NodesMeasurement(nodes=found, started=1_796_003_304.0, seconds=3.0)


def _pairs(at: Conditions, random: np.random.Generator) -> PairsMeasurement:
    """One link is slow; each node meets eight others on each of its NICs."""
    cause = Cause(kind="link", slower=2.0, nodes=(0, 1))
    drawn = Cluster(nodes=at.nodes, rails=at.nproc_per_node, noise=0.02, partners=8, cause=cause, random=random)
    return PairsMeasurement(conditions=at, pairs=drawn.tournament([]), started=1_796_003_304.0, seconds=60.0)


def _memory(at: Conditions, random: np.random.Generator) -> MemoryMeasurement:
    ranks = []
    for rank, peak in enumerate((random.normal(50, 1, at.ranks) * GIB).astype(int).tolist()):
        parts = {name: peak // 8 * share for name, share in (("parameters", 2), ("gradients", 2), ("optimizer", 3))}
        parts["activations"] = peak - sum(parts.values())
        ranks.append(RankMemory(
            rank=rank, step_peaks=(peak - 4096, peak, peak), reserved_peaks=(peak + GIB,) * 3,
            device_used=peak + 2 * GIB, limit=80 * GIB, limit_from="GPU memory", counted="allocated tensors",
            parts=parts, losses=(11.8, 11.7, 11.6), data_digest="3fb1",
        ))  # fmt: skip
    return MemoryMeasurement(conditions=at, ranks=tuple(ranks), started=1_796_003_304.0, seconds=40.0)


def _sweep(
    at: Conditions, kind: str, groups: tuple[tuple[int, ...], ...], plateau: float, random: np.random.Generator
) -> FabricMeasurement:
    """All-reduce; rank 17 is always late."""
    members = len(groups[0])
    transfer = np.array([30e-6 + size * busbw_factor("all_reduce", members) / plateau for size in SIZES])
    shape = (ROUNDS, at.ranks, len(SIZES))
    late = random.random((*shape, CALLS)) * 0.1
    late[:, 17 % at.ranks] = 0.0
    samples = (transfer[:, None] * np.exp(random.normal(0, 0.02, (*shape, SAMPLES)))).tolist()
    calls = (transfer[:, None] * (1.05 + late)).tolist()
    rounds = tuple(
        tuple(
            RankFabric(rank=rank, group_size=members, timings=tuple(
                CollectiveTiming(bytes=size, iterations=10, seconds=tuple(seconds), wrong=0, instances=tuple(single))
                for size, seconds, single in zip(SIZES, samples[r][rank], calls[r][rank], strict=True)
            ))
            for rank in range(at.ranks)
        )
        for r in range(ROUNDS)
    )  # fmt: skip
    here = replace(at, collective="all_reduce", group=kind)
    return FabricMeasurement(conditions=here, rounds=rounds, started=1_796_003_304.0, seconds=30.0, groups=groups)


def _scaling(at: Conditions, random: np.random.Generator) -> ScalingMeasurement:
    """The fixed work on half of the nodes and on all of them, in turn."""
    half = max(at.nodes // 2, 1)
    few = replace(
        at, nodes=half, ranks=half * at.nproc_per_node, hosts=at.hosts[:half],
        rank_nodes=at.rank_nodes[: half * at.nproc_per_node], telemetry=(),
    )  # fmt: skip
    runs = tuple(
        ScalingRun(conditions=replace(where, telemetry=()), ranks=_trained(where, step, random))
        for _ in range(REPEATS)
        for where, step in ((few, 2.0), (at, 1.1))
    )
    apart = random.normal(1.0, 0.01, (APART, at.ranks, 3, 4)).tolist()
    ladders = tuple(
        tuple(
            RankLadder(rank=rank, compute=tuple(own), barrier=(), payload=tuple(bytes_), step=tuple(step))
            for rank, (own, bytes_, step) in enumerate(made)
        )
        for made in apart
    )
    return ScalingMeasurement(
        conditions=at, runs=runs, started=1_796_003_304.0, seconds=400.0, apart=ladders if at.ranks > 1 else ()
    )


def _trained(at: Conditions, step: float, random: np.random.Generator) -> tuple[RankTraining, ...]:
    common = step * np.exp(random.normal(0, 0.01, STEPS))
    steps = (common + random.normal(0, 1e-4, (at.ranks, STEPS))).tolist()
    data = (0.01 * np.exp(random.normal(0, 0.1, (at.ranks, STEPS)))).tolist()
    losses = tuple((11.8 - 0.05 * np.arange(STEPS)).tolist())
    return tuple(
        RankTraining(
            rank=rank, warmup_seconds=(step * 3, step, step), step_seconds=tuple(steps[rank]),
            data_seconds=tuple(data[rank]), work_seconds=sum(steps[rank]), tokens_per_step=4096 * 8192, losses=losses,
            data_digest="3fb1", sequences_per_step=8192,
        )
        for rank in range(at.ranks)
    )  # fmt: skip


def _full_run(at: Conditions, random: np.random.Generator) -> FullRunMeasurement:
    """40 steps; rank 1 is killed when step 25 begins, and all go on from the checkpoint of step 20."""
    times = (1.1 * np.exp(random.normal(0, 0.01, 64))).tolist()
    waits = (0.01 * np.exp(random.normal(0, 0.1, (at.ranks, 64)))).tolist()
    run = FullRun(
        conditions=at, ranks=tuple(_life(rank, times, waits[rank], at.ranks) for rank in range(at.ranks)), steps=40,
        tokens_per_step=1000, sequences_per_step=8192, checkpoints=Checkpoints(every=20),
        failure=replace(KILLED, step=25),
    )  # fmt: skip
    return FullRunMeasurement(
        conditions=at, run=run, started=1_796_003_304.0, seconds=200.0, not_alone="full_run.alone: false",
        not_apart="full_run.apart: false",
    )  # fmt: skip


def _life(number: int, times: list[float], waits: list[float], world: int) -> RankRun:
    def steps(rank: Rank, first: int, last: int, drawn: int) -> Rank:
        for step in range(first, last + 1):
            wait = waits[drawn + step]
            rank.step(step, data=wait, seconds=times[drawn + step] - wait)
        return rank

    rank = Rank(number, world=world).ready()
    steps(steps(rank, 1, 20, 0).saves(20), 21, 24, 0)
    if number == 1:
        rank.mark("fault", 25, name="kill_rank").passes(5.0)
    else:
        rank.span("data", 0.25, step=24).breaks(after=0.5, step=25).ends("RuntimeError").passes(4.25)
    return steps(rank.back(after=20, builds=2.0), 21, 40, 23).saves(40, then=0.2).finishes().run()
