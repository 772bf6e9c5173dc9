"""Estimated against measured memory, layout by layout: ``python benchmarks/estimate.py [--only NAME ...]``.

Both are the peak bytes of tensors on the fullest rank: estimated as `clusterqual plan` does it, measured
as the criterion Memory does it, on CPU with gloo. Where experts lie on different ranks, the measured one
is the mean over ranks: the router fills some more, and the estimate takes it to be even. After that the
bytes of each part that are estimated too many.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from pytest_clusterqual import units
from pytest_clusterqual.commands.estimating import PROGRAM, estimates
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.estimate import Estimate
from pytest_clusterqual.model.memory import RankMemory, Rung
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload

BAR = 0.02
WORK = Workload(
    model=ModelShape(layers=4, hidden=256, heads=4, kv_heads=2, ffn=1024, vocab=1024),
    optimizer=Optimizer(name="adamw", lr=3e-4), precision="fp32", sequence_length=128, microbatch=4, global_batch=32,
    steps=3, seed=1,
)  # fmt: skip
WIDE = replace(WORK, model=ModelShape(layers=2, hidden=128, heads=8, kv_heads=8, ffn=256, vocab=16384))
DEEP = replace(WORK, model=ModelShape(layers=12, hidden=64, heads=2, kv_heads=1, ffn=128, vocab=256), microbatch=8)
MIXED = replace(WORK, model=replace(WORK.model, layers=2, experts=4, top_k=2))
STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job on `ranks` of one node."""

    name: str
    ranks: int
    workload: Workload = WORK
    layout: dict[str, Any] = field(default_factory=dict)

    @property
    def rung(self) -> Rung:
        layout = Layout(name=self.name, **self.layout)
        return Rung(
            name=self.name, kind="shard", nodes=1, per_node=self.ranks, microbatch=self.workload.microbatch,
            layout=layout,
        )  # fmt: skip


def case(name: str, ranks: int, workload: Workload = WORK, **layout: Any) -> Case:
    return Case(name=name, ranks=ranks, workload=workload, layout=layout)


CASES = (
    case("one", 1),
    case("one-large-microbatch", 1, replace(WORK, microbatch=16)),
    case("one-selective", 1, activation_checkpointing="selective"),
    case("one-full", 1, activation_checkpointing="full"),
    case("one-wide", 1, WIDE),
    case("one-deep", 1, DEEP),
    case("one-foreach", 1, replace(WORK, optimizer=replace(WORK.optimizer, implementation="foreach"))),
    case("one-fused", 1, replace(WORK, optimizer=replace(WORK.optimizer, implementation="fused"))),
    case("one-bf16", 1, replace(WORK, precision="bf16")),
    case("ddp", 2),
    case("ddp-no-accumulation", 2, replace(WORK, global_batch=8)),
    case("fsdp", 2, fsdp="full"),
    case("fsdp-wide", 2, WIDE, fsdp="full"),
    case("fsdp-deep-full", 4, DEEP, fsdp="full", activation_checkpointing="full"),
    case("fsdp-selective", 2, fsdp="full", activation_checkpointing="selective"),
    case("fsdp-bf16", 2, replace(WORK, precision="bf16"), fsdp="full"),
    case("fsdp-fp16", 2, replace(WORK, precision="fp16"), fsdp="full"),
    case("grad-op", 2, fsdp="grad-op"),
    case("tensor", 2, tensor=2),
    case("tensor-selective", 2, tensor=2, activation_checkpointing="selective"),
    case("tensor-fsdp-full", 4, tensor=2, fsdp="full", activation_checkpointing="full"),
    case("pipeline", 2, pipeline=2),
    case("pipeline-gpipe", 4, pipeline=4, schedule="gpipe"),
    case("pipeline-interleaved", 2, pipeline=2, schedule="interleaved", stages_per_rank=2),
    case("pipeline-fsdp", 4, pipeline=2, fsdp="full"),
    case("context", 2, context=2),
    case("context-fsdp-full", 2, context=2, fsdp="full", activation_checkpointing="full"),
    case("experts", 2, MIXED),
    case("experts-fsdp", 4, MIXED, expert=2, fsdp="full"),
)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from figures import world

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[each.name for each in CASES], metavar="NAME")
    names = parser.parse_args().only
    chosen = [each for each in CASES if each.name in names]
    estimated = _estimated(chosen)
    print(f"{'case':22} {'ranks':>5}  {'estimate':>10}  {'measured':>10}  estimate / measured", flush=True)
    ratios = {}
    for count in sorted({each.ranks for each in chosen}):
        ranks = world(1, count)
        try:
            for each in chosen:
                if each.ranks == count:
                    ratios[each.name] = _compared(each, estimated[each.name], _measured(ranks, each))
        finally:
            ranks.close()
    worst = max(ratios, key=lambda name: abs(ratios[name] - 1))
    outside = [name for name in ratios if abs(ratios[name] - 1) > BAR]
    print(f"worst of {len(ratios)}: {worst}, {ratios[worst] - 1:+.2%}; outside of {BAR:.0%}: {outside or 'none'}")


def _estimated(cases: Sequence[Case]) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for workload in dict.fromkeys(each.workload for each in cases):
        alike = [each for each in cases if each.workload == workload]
        answers = estimates(workload, [each.rung for each in alike], "cpu", PROGRAM)
        found |= {each.name: answer for each, answer in zip(alike, answers, strict=True)}
    return found


def _measured(ranks: Any, each: Case) -> list[RankMemory]:
    """All ranks, in fresh processes."""
    from pytest_clusterqual.session.world import Job

    ranks.fresh()
    ranks.ready()
    args = {"workload": to_json(each.workload), "layout": to_json(each.rung.layout), "steps": STEPS}
    job = Job(name="pytest_clusterqual.rank.memory:measure", ranks=tuple(range(each.ranks)), timeout=600, args=args)
    return [from_json(RankMemory, result.value) for result in ranks.run(job)]


def _compared(each: Case, estimate: Estimate, measured: list[RankMemory]) -> float:
    """Print one line; the estimated peak over the measured one."""
    peaks = [max(rank.step_peaks) for rank in measured]
    peak = fmean(peaks) if each.rung.layout.expert > 1 else max(peaks)
    fullest = measured[peaks.index(max(peaks))]
    sizes = [f"{units.show(size, units.BYTES):>10}" for size in (estimate.peak, peak)]
    parts = "  ".join(f"{name} {estimate.parts[name] - fullest.parts[name]:+}" for name in estimate.parts)
    ratio = estimate.peak / peak
    print(f"{each.name:22} {each.ranks:5}  {'  '.join(sizes)}  {ratio:.4f}  {parts}  {estimate.reason}", flush=True)
    return ratio


if __name__ == "__main__":
    main()
