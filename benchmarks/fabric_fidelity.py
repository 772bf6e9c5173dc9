"""The product's busbw against a bare loop, size by size: ``python benchmarks/fabric_fidelity.py``.

Both work in turn in the same ranks of one launch, so that whatever the machine does meets both
alike. The slowest rank of a sample counts, as in a verdict; waiting is not deducted.
"""

from __future__ import annotations

import argparse
from statistics import median, quantiles
from typing import Any

from pytest_clusterqual.judge.statistics import ratio_interval, slowest
from pytest_clusterqual.model.busbw import busbw_factor
from pytest_clusterqual.session.world import Job

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
HEAD = "collective        bytes    product       bare   product / bare, 95 % interval      of best tenths    n"


def compared(world: Any, collective: str, size: int, *, pairs: int, seconds: float = 0.01) -> str:
    """One line of the table: busbw in GB/s of both, and the ratio of their medians over all pairs."""
    ranks = tuple(place.rank for place in world.rank_map.places)
    args = {"collective": collective, "size": size, "pairs": pairs, "seconds": seconds}
    results = world.run(Job(name="bare_jobs:collective_pairs", ranks=ranks, timeout=600, args=args))
    ours, bare = (
        [median(slowest(samples)) for samples in zip(*([pair[side] for pair in r.value] for r in results), strict=True)]
        for side in (0, 1)
    )
    moved = size * busbw_factor(collective, len(ranks)) / 1e9
    ratio = ratio_interval(bare, ours)
    assert ratio is not None, f"got {pairs} pairs, want 6 or more"
    best = quantiles(bare, n=10)[0] / quantiles(ours, n=10)[0]
    return (
        f"{collective:14} {size:8}  {moved / median(ours):9.4f}  {moved / median(bare):9.4f}   "
        f"{median(bare) / median(ours):14.3f}  [{ratio.low:.3f}, {ratio.high:.3f}]  {best:14.3f}  {pairs:7}"
    )


def main() -> None:
    from figures import world

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collectives", nargs="*", default=COLLECTIVES, metavar="collective")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=60)
    asked = parser.parse_args()
    ranks = world(asked.ranks, 1)
    try:
        ranks.ready()
        print(HEAD)
        for collective in asked.collectives:
            for size in SIZES:
                print(compared(ranks, collective, size, pairs=asked.pairs), flush=True)
    finally:
        ranks.close()


if __name__ == "__main__":
    main()
