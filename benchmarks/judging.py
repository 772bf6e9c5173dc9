"""What judging costs: ``python benchmarks/judging.py``.

A sweep of a million simulated samples is judged, findings included, and `clusterqual --help` is timed as a whole
process. Bars: 5 s, and 0.2 s.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pytest_clusterqual.judge.fabric.verdict import judge_fabric
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import CollectiveTiming, FabricMeasurement, RankFabric
from pytest_clusterqual.model.project import FabricPlan

RANKS, SIZES, ROUNDS, SAMPLES, CALLS = 64, 13, 24, 10, 40
JUDGED, HELP = 5.0, 0.2  # seconds


def sweep() -> FabricMeasurement:
    """64 ranks that pass 24 times over 13 sizes; ten samples and forty single calls each time."""
    drawn = random.Random(1)
    rounds = []
    for _ in range(ROUNDS):
        timings: list[list[CollectiveTiming]] = [[] for _ in range(RANKS)]
        for size in range(SIZES):
            transfer = 20e-6 + (4096 << size) / 40e9
            samples = [transfer * drawn.lognormvariate(0, 0.03) for _ in range(SAMPLES)]
            calls = [transfer * drawn.lognormvariate(0, 0.03) for _ in range(CALLS)]
            for rank in range(RANKS):
                late = drawn.random() * 0.02
                timings[rank].append(
                    CollectiveTiming(
                        bytes=4096 << size, iterations=10, wrong=0,
                        seconds=tuple(sample * (1 - late) for sample in samples),
                        instances=tuple(call * (1 - late) for call in calls),
                    )
                )  # fmt: skip
        rounds.append(
            tuple(RankFabric(rank=rank, group_size=RANKS, timings=tuple(timings[rank])) for rank in range(RANKS))
        )
    conditions = Conditions(
        nodes=8, nproc_per_node=8, ranks=RANKS, hosts=tuple(f"node{node}" for node in range(8)),
        rank_nodes=tuple(f"node{rank // 8}" for rank in range(RANKS)), simulated=False, oversubscribed=False,
        device="cuda", device_name="simulated", backend="nccl", versions={}, collective="all_reduce", group="world",
    )  # fmt: skip
    return FabricMeasurement(
        conditions=conditions, rounds=tuple(rounds), started=0.0, seconds=1.0, groups=(tuple(range(RANKS)),)
    )


def main() -> int:
    measurement = sweep()
    count = RANKS * SIZES * ROUNDS * (SAMPLES + CALLS)
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        judgements = judge_fabric(measurement, FabricPlan(sizes=tuple(4096 << size for size in range(SIZES))))
        taken.append(time.perf_counter() - began)
    judged = statistics.median(taken)
    print(
        f"{count:,} samples of {RANKS} ranks judged in {judged:.2f} s: {len(judgements)} judgements; at most {JUDGED} s"
    )
    command = Path(sys.executable).with_name("clusterqual")
    waited = []
    for _ in range(11):
        began = time.perf_counter()
        subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
        waited.append(time.perf_counter() - began)
    shown = statistics.median(waited)
    print(f"clusterqual --help: {shown:.3f} s, median of 11 [{min(waited):.3f}, {max(waited):.3f}]; at most {HELP} s")
    return 0 if judged <= JUDGED and shown <= HELP else 1


if __name__ == "__main__":
    sys.exit(main())
