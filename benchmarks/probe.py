"""What the probe costs a step, and its import a day: ``python benchmarks/probe.py [--folder DIR] [--quick]``.

Each round times a loop that does nothing, the same loop under a span for data and one for the step, and once more
with a probe that is off; the difference of a round is one sample. Printed is the median over rounds with its 95 %
interval, in us a step, the lines of the step as they stand on the disk, and the verdict against 20 us: as for any
figure here, the whole interval must be below. Writes go to DIR (the temporary folder), so try the storage you mean.

Then days of made steps, a second each, are imported, of two ranks and of more: the time a rank takes, and by how much
the memory grows with the ranks. With ``--ranks N`` only a day of so many is imported, by one process for each core, and
what a thousand ranks would take is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from pytest_clusterqual.commands.probe_import import import_probe
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.probe import Probe

LIMIT = 20e-6  # seconds a step


def main(folder: Path, *, quick: bool) -> int:
    rounds, steps = (11, 1_000) if quick else (41, 5_000)
    probe, off = Probe(folder), Probe()
    assert probe.on, "nothing would be written"
    assert not off.on, "unset CLUSTERQUAL_PROBE"
    costs: dict[str, list[float]] = {"writing": [], "off": []}
    for _ in range(rounds):
        bare = seconds_bare(steps)
        costs["writing"].append((seconds_probed(probe, steps) - bare) / steps)
        costs["off"].append((seconds_probed(off, steps) - bare) / steps)
    probe.close()
    (file,) = folder.iterdir()
    print(f"{file.stat().st_size / (rounds * steps):.0f} bytes a step in {folder}")
    for name, samples in costs.items():
        within = median_interval(samples)
        assert within is not None, "rounds are enough for an interval"
        told = f"{median(samples) * 1e6:.2f} us a step [{within.low * 1e6:.2f}, {within.high * 1e6:.2f}], n={rounds}"
        print(f"{name:<8} {told}, want < {LIMIT * 1e6:.0f} us: {'met' if within.high < LIMIT else 'MISSED'}")
    return 0 if max(map(median, costs.values())) < LIMIT else 1


def import_days(folder: Path, ranks: int, steps: int, *, processes: int = 1) -> int:
    """Print what `ranks` of that many steps take; bytes of memory at most so far."""
    made = time.perf_counter()
    make_days(folder, ranks, steps)
    print(f"made in {time.perf_counter() - made:.0f} s")
    size = sum(file.stat().st_size for file in folder.iterdir())
    begin, busy = time.perf_counter(), core_seconds()
    ledger = import_probe(folder, processes=processes)
    took, busy = time.perf_counter() - begin, core_seconds() - busy
    assert ledger.kept == steps
    peak, child = (resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(
        f"import   {ranks} ranks x {steps} steps, {size / 1e6:.0f} MB, {processes} processes: {took:.1f} s, "
        f"{busy / ranks:.2f} s of a core a rank; memory at most {peak / 1e6:.0f} MB here"
        + (f" and {child / 1e6:.0f} MB in each of the others" if processes > 1 else "")
    )
    if processes > 1:
        minutes = busy / ranks * 1000 / processes / 60
        print(f"so 1,000 ranks, {size / ranks / 1e6:.1f} GB, take {minutes:.1f} min on {processes} idle cores")
    return peak


def core_seconds() -> float:
    """Of this process and of those that it has waited for; what others do on the machine is not in it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def make_days(folder: Path, ranks: int, steps: int) -> None:
    """Steps of a second, in which each rank waits for its data for up to a millisecond."""
    for rank in range(ranks):
        start = {
            "probe": 1, "rank": rank, "world": ranks, "attempt": 0, "restart": 0, "host": "made", "clock": "made",
            "pid": 1, "began": 0.0, "at": 0.0, "wall": 0.0,
        }  # fmt: skip
        stalls = [1e-3 * random.random() for _ in range(steps)]
        with (folder / f"rank{rank}-attempt0.jsonl").open("w") as file:
            print(json.dumps(start), file=file)
            file.writelines(
                f'{{"what":"data","at":{step:.6f},"seconds":{stall:.6f}}}\n'
                f'{{"what":"step","at":{step + stall:.6f},"seconds":{1 - stall:.6f},"step":{step},"tokens":65536}}\n'
                for step, stall in enumerate(stalls, 1)
            )


def seconds_bare(steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        pass
    return time.perf_counter() - begin


def seconds_probed(probe: Probe, steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        with probe.data():
            pass
        with probe.step(tokens=65_536):
            pass
    return time.perf_counter() - begin


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    arguments.add_argument("--folder", type=Path, default=None)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--ranks", type=int, default=0)
    given = arguments.parse_args()
    if given.ranks:
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            import_days(Path(made), given.ranks, 86_400, processes=len(os.sched_getaffinity(0)))
        sys.exit()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        missed = main(Path(made), quick=given.quick)
    peaks = []
    for ranks in (2, 6):
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            peaks.append(import_days(Path(made), ranks, 8_640 if given.quick else 86_400))
    print(f"memory for three times the ranks: x {peaks[1] / peaks[0]:.2f}")
    sys.exit(missed)
