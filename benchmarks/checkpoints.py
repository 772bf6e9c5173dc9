"""Blocking and completion time of saves, as the product tells them, against a bare script that saves the same state.

``python benchmarks/checkpoints.py [--quick]``. Both call torch.distributed.checkpoint on the same ranks in one launch,
in turn. Printed are the ratios of the medians with their 95 % intervals, of the slowest rank each, and of the 10th
percentiles, which other work on the machine disturbs less. A blocking time is told right where its interval is within
5 %, or where the two differ by less than 1 ms.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import world

from pytest_clusterqual import units
from pytest_clusterqual.judge.statistics import ratio_interval
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.workload import ModelShape, Optimizer, Workload
from pytest_clusterqual.session.world import Job, World

CLOSE, SMALL = 0.05, 1e-3
MODES = ("sync", "async", "async-process")
# 26 million parameters: with the optimizer's state 313 MB, of which each of two ranks writes half.
WORK = Workload(
    model=ModelShape(layers=8, hidden=512, heads=8, kv_heads=8, ffn=1408, vocab=256),
    optimizer=Optimizer(name="adamw", lr=3e-4), precision="fp32", sequence_length=32, microbatch=1, global_batch=2,
    steps=1, seed=1,
)  # fmt: skip


def main(quick: bool) -> int:
    folder = Path(tempfile.mkdtemp())
    ranks = world(2, 1)
    try:
        missed = sum(compared(ranks, mode, folder, pairs=6 if quick else 20) for mode in MODES)
    finally:
        ranks.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if missed else 0


def compared(ranks: World, mode: str, folder: Path, *, pairs: int) -> bool:
    """Print one mode; true if its blocking time is more than 5 % off."""
    args = {"workload": to_json(WORK), "layout": {"name": "fsdp", "fsdp": "full"}, "mode": mode, "pairs": pairs,
            "folder": str(folder)}  # fmt: skip
    ranks.ready()
    everyone = tuple(range(ranks.size))
    answers = [r.value for r in ranks.run(Job(name="bare_saves:save_pairs", ranks=everyone, timeout=900, args=args))]
    shutil.rmtree(folder / mode, ignore_errors=True)
    off = False
    for index, what in enumerate(("blocking", "completion")):
        ours, bare = (slowest(answers, name, index) for name in ("ours", "bare"))
        found = ratio_interval(ours, bare)
        assert found is not None, "a median of fewer pairs has no interval"
        mine, other = statistics.median(ours), statistics.median(bare)
        apart = (found.low > 1 + CLOSE or found.high < 1 - CLOSE) and abs(mine - other) > SMALL
        off = off or (what == "blocking" and apart)
        print(
            f"{mode:<13} {what:<10} {mine * 1e3:8.1f} ms, bare script {other * 1e3:8.1f} ms, ratio of the medians "
            f"{mine / other:.3f} [{found.low:.3f}, {found.high:.3f}], of the 10th percentiles "
            f"{tenth(ours) / tenth(bare):.3f}, n={pairs}",
            flush=True,
        )
    size = max(answer["size"] for answer in answers)
    completion = statistics.median(slowest(answers, "ours", 1))
    print(
        f"{mode:<13} {units.show(size, units.BYTES)} a rank at {units.show(size / completion, units.RATE)}, "
        f"{max(a['prepared'] for a in answers):.1f} s to prepare",
        flush=True,
    )
    return off


def tenth(values: list[float]) -> float:
    return statistics.quantiles(values, n=10)[0]


def slowest(answers: list[dict[str, Any]], name: str, index: int) -> list[float]:
    return [max(each[index] for each in one) for one in zip(*(answer[name] for answer in answers), strict=True)]


if __name__ == "__main__":
    sys.exit(main("--quick" in sys.argv[1:]))
