"""Step times of the product against a bare loop, layout by layout: ``python benchmarks/step_time.py [--quick]``.

Both train the same model on the same ranks in one job, one step each in turn. Printed are what the product told of its
steps against a clock around the very same ones, which no other work on the machine blurs; the ratio of the medians of
product and bare loop with its 95 % interval, which it does; and what the product's own loop costs a step, measured on
steps that do nothing. A layout is met where the first is within 1 %, the interval reaches 1 % around 1, and the loop
costs less than 0.5 %.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import world

from pytest_clusterqual.judge.statistics import ratio_interval
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.workload import ModelShape, Optimizer, Workload
from pytest_clusterqual.session.world import Job, World

CLOSE, CHEAP = 0.01, 0.005
SHAPE = ModelShape(layers=4, hidden=128, heads=4, kv_heads=2, ffn=256, vocab=256)
DENSE = Workload(
    model=SHAPE, optimizer=Optimizer(name="adamw", lr=3e-4), precision="fp32", sequence_length=128, microbatch=2,
    global_batch=16, steps=10, seed=1,
)  # fmt: skip
MIXED = replace(DENSE, model=replace(SHAPE, experts=4, top_k=2, ffn=128))
# Processes of a node -> layouts on two nodes, each with the workload it is made for.
LAYOUTS: dict[int, list[tuple[Workload, dict[str, Any]]]] = {
    1: [
        (DENSE, {"name": "ddp"}),
        (DENSE, {"name": "fsdp", "fsdp": "full"}),
        (DENSE, {"name": "fsdp-grad-op", "fsdp": "grad-op"}),
        (DENSE, {"name": "fsdp-ac", "fsdp": "full", "activation_checkpointing": "full"}),
        (DENSE, {"name": "ddp-selective", "activation_checkpointing": "selective"}),
        (DENSE, {"name": "tensor", "tensor": 2}),
        (DENSE, {"name": "context", "context": 2}),
        (DENSE, {"name": "pipeline", "pipeline": 2}),
        (DENSE, {"name": "pipeline-gpipe", "pipeline": 2, "schedule": "gpipe"}),
        (DENSE, {"name": "pipeline-interleaved", "pipeline": 2, "schedule": "interleaved", "stages_per_rank": 2}),
        (MIXED, {"name": "experts-ddp"}),
        (MIXED, {"name": "expert", "expert": 2}),
    ],
    2: [
        (DENSE, {"name": "hybrid", "fsdp": "hybrid"}),
        (DENSE, {"name": "tensor-fsdp", "tensor": 2, "fsdp": "full"}),
        (DENSE, {"name": "pipeline-fsdp", "pipeline": 2, "fsdp": "full"}),
        (DENSE, {"name": "pipeline-tensor", "pipeline": 2, "tensor": 2}),
        (MIXED, {"name": "expert-fsdp", "expert": 2, "fsdp": "full"}),
    ],
}  # fmt: skip


def main(quick: bool) -> int:
    missed = 0
    for nproc, layouts in LAYOUTS.items():
        ranks = world(2, nproc)
        try:
            cost = instrument(ranks)
            for work, layout in layouts:
                missed += compared(ranks, work, layout, cost, pairs=12 if quick else 60)
        finally:
            ranks.close()
    return 1 if missed else 0


def instrument(ranks: World) -> float:
    """Seconds that the product's loop adds to a step on the slowest rank."""
    answers = called(ranks, "instrument_seconds", steps=20_000, rounds=9)
    cost = max(statistics.median(answer) for answer in answers)
    print(f"2 x {ranks.nproc_per_node} ranks: the product's loop costs {cost * 1e6:.2f} us a step", flush=True)
    return cost


def compared(ranks: World, work: Workload, layout: dict[str, Any], cost: float, *, pairs: int) -> bool:
    """Print one layout; true if it is more than 1 % off, or costs more than 0.5 %."""
    answers = called(ranks, "step_pairs", workload=to_json(work), layout=layout, pairs=pairs)
    steps = list(zip(*answers, strict=True))
    ours, outside, bare = ([max(rank[which] for rank in pair) for pair in steps] for which in (0, 1, 2))
    found = ratio_interval(ours, bare)
    assert found is not None, "a median of fewer pairs has no interval"
    step, share = statistics.median(bare), cost / statistics.median(bare)
    same = statistics.median(told / seen for told, seen in zip(ours, outside, strict=True))
    met = same >= 1 - CLOSE and found.low <= 1 + CLOSE and found.high >= 1 - CLOSE and share <= CHEAP
    print(
        f"{'met' if met else 'MISSED':<6} {layout['name']:<21} {step * 1e3:7.1f} ms a step, told / seen from outside "
        f"{same:.4f}, product / bare {statistics.median(ours) / step:.4f} [{found.low:.3f}, {found.high:.3f}], "
        f"n={pairs}; loop {share:.4%}",
        flush=True,
    )
    return not met


def called(ranks: World, function: str, **args: Any) -> list[Any]:
    ranks.ready()
    everyone = tuple(range(ranks.size))
    return [r.value for r in ranks.run(Job(name=f"bare_jobs:{function}", ranks=everyone, timeout=600, args=args))]


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))
