"""What is said of runs over time, and how often wrongly: ``python benchmarks/over_time.py [--quick]``.

Healthy runs of each length and noise, at fixed shapes, must raise no alarm in 99 of 100; what is planted must be
found under its name. Runs whose work varies are judged per work, or not at all. Exit status 1 if a bar is missed.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import beta
from simulated_runs import NOISES, Noise, Planted, Simulated

from pytest_clusterqual.judge.over_time.verdict import over_time
from pytest_clusterqual.model.over_time import OverTime

LENGTHS = (300, 1_000, 4_000, 20_000)
RANKS = (1, 2, 8, 32)
PLANTS: dict[str, tuple[str, Callable[[np.random.Generator], Planted]]] = {
    "drift of 5 %": ("drift", lambda _: Planted(drift=0.05)),
    "change of 5 %": ("change", lambda draw: Planted(change=0.05, where=draw.uniform(0.15, 0.85))),
    "5 % for a while": ("change", lambda _: Planted(change=0.05, where=0.35, until=0.65)),
    "stall every 50": ("periodic stall", lambda _: Planted(stall=0.5, every=50)),
    "slow rank, 5 %": ("slow rank", lambda _: Planted(slow=1, slower=0.05)),
    "slow data, 5 %": ("slow rank", lambda _: Planted(slow=1, data=0.05)),
}  # fmt: skip
FALSE, FOUND = 0.01, 0.95


def main(quick: bool) -> int:
    random = np.random.default_rng(11)
    met = [
        healthy(random, runs=4 if quick else 25),
        planted(random, runs=2 if quick else 5),
        varying(random, runs=10 if quick else 50),
    ]
    return 0 if all(met) else 1


def healthy(random: np.random.Generator, *, runs: int) -> bool:
    """Alarms of any kind, by noise and length, over all numbers of ranks."""
    print("healthy runs, fixed shapes: alarms of runs, silent for too much noise" + "")
    print(f"{'noise':<16}" + "".join(f"{steps:>18} steps" for steps in LENGTHS))
    alarms = count = 0
    kinds: Counter[str] = Counter()
    for noise in NOISES:
        cells = []
        for steps in LENGTHS:
            seen = [
                judged(Simulated(steps=steps, ranks=ranks, noise=noise, random=random))
                for ranks in RANKS for _ in range(runs if ranks < 32 else max(runs // 4, 1))
            ]  # fmt: skip
            wrong = sum(bool(one.findings) for one in seen)
            kinds.update(finding.kind for one in seen for finding in one.findings)
            alarms, count = alarms + wrong, count + len(seen)
            cells.append(f"{wrong} of {len(seen)}, {sum(one.drift is None for one in seen)}")
        print(f"{noise:<16}" + "".join(f"{cell:>24}" for cell in cells))
    most = float(beta.ppf(0.95, alarms + 1, count - alarms))
    print(f"by kind: {dict(kinds)}")
    return bar("false alarms", alarms / count, FALSE, f"of {count} runs (at 95 % below {most:.2%})", below=True)


def planted(random: np.random.Generator, *, runs: int) -> bool:
    """What was found where something is wrong, 8 ranks: the right kind, and for ranks the right one."""
    print("\nplanted, 8 ranks: found under its name, of runs in which anything could be said")
    lengths: Sequence[int] = (1_000, 4_000, 20_000)
    print(f"{'':<18}{'noise':<16}" + "".join(f"{steps:>12} steps" for steps in lengths))
    right = said = 0
    for name, (kind, plant) in PLANTS.items():
        for noise in NOISES:
            cells = []
            for steps in lengths:
                seen = [
                    judged(Simulated(steps=steps, ranks=8, noise=noise, random=random, planted=plant(random)))
                    for _ in range(runs)
                ]
                hits = sum(is_found(one, kind) for one in seen)
                open_ = [one for one in seen if kind not in ("drift", "change") or one.drift is not None]
                cells.append(f"{hits} of {len(open_)}")
                if noise in REALISTIC and steps >= 4_000:
                    right, said = right + hits, said + len(open_)
            print(f"{name:<18}{noise:<16}" + "".join(f"{cell:>18}" for cell in cells))
    return bar("found", right / said, FOUND, f"of {said}: {', '.join(REALISTIC)}, from 4,000 steps on")


REALISTIC: tuple[Noise, ...] = ("quiet", "lognormal", "heavy tails", "spikes")


def varying(random: np.random.Generator, *, runs: int) -> bool:
    """Steps of different work: per work where they vary from step to step, silence where they grow with the run."""
    print("\nhealthy runs whose work varies, 2,000 steps of 8 ranks")
    met = True
    for name, shapes, grows in (("varies by 20 %", 0.2, False), ("grows with the run", 0.0, True)):
        seen = [
            judged(Simulated(steps=2_000, ranks=8, noise="lognormal", random=random, shapes=shapes, grows=grows))
            for _ in range(runs)
        ]
        silent = sum(one.drift is None for one in seen)
        wrong = sum(bool(one.findings) for one in seen)
        met &= bar(f"{name}: false alarms", wrong / runs, FALSE, f"of {runs}, silent in {silent}", below=True)
    found = sum(
        is_found(judged(Simulated(steps=2_000, ranks=8, noise="lognormal", random=random, shapes=0.2,
                                  planted=Planted(change=0.05))), "change")
        for _ in range(runs)
    )  # fmt: skip
    return met & bar("varies by 20 %, and a change of 5 %: found", found / runs, FOUND, f"of {runs}")


def judged(run: Simulated) -> OverTime:
    return over_time(run.course())


def is_found(seen: OverTime, kind: str) -> bool:
    if kind == "slow rank":
        return [finding.suspect for finding in seen.findings if finding.kind == kind] == ["rank 1 on node0"]
    return any(finding.kind == kind for finding in seen.findings)


def bar(what: str, share: float, wanted: float, of: str, *, below: bool = False) -> bool:
    met = share <= wanted if below else share >= wanted
    print(f"{what} {share:.2%} {of}, want {'<=' if below else '>='} {wanted:.0%}: {'met' if met else 'MISSED'}")
    return met


if __name__ == "__main__":
    began = time.monotonic()
    status = main("--quick" in sys.argv[1:])
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
