"""What the probe costs a step, and its import a day: ``python benchmarks/probe.py [--folder DIR] [--quick]``.

Each round times a loop that does nothing, the same loop under a span for data and one for the step, and once more
with a probe that is off; the difference of a round is one sample. Printed is the median over rounds with its 95 %
interval, in us a step, the lines of the step as they stand on the disk, and the verdict against 20 us: as for any
figure here, the whole interval must be below. Writes go to DIR (the temporary folder), so try the storage you mean.

Then days of made steps, a second each, are imported, of two ranks and of more: the time a rank takes, and by how much
the memory grows with the ranks.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.probe_import import import_probe

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


def import_days(folder: Path, ranks: int, steps: int) -> int:
    """Print what `ranks` of that many steps take; bytes of memory at most so far."""
    for rank in range(ranks):
        start = {
            "probe": 1, "rank": rank, "world": ranks, "attempt": 0, "restart": 0, "host": "made", "clock": "made",
            "pid": 1, "began": 0.0, "at": 0.0, "wall": 0.0,
        }  # fmt: skip
        with (folder / f"rank{rank}-attempt0.jsonl").open("w") as file:
            print(json.dumps(start), file=file)
            for step in range(1, steps + 1):
                stall, at = 1e-3 * random.random(), float(step)
                print(f'{{"what":"data","at":{at:.6f},"seconds":{stall:.6f}}}', file=file)
                print(
                    f'{{"what":"step","at":{at + stall:.6f},"seconds":{1 - stall:.6f},"step":{step},"tokens":65536}}',
                    file=file,
                )
    size = sum(file.stat().st_size for file in folder.iterdir())
    begin = time.perf_counter()
    ledger = import_probe(folder)
    took = time.perf_counter() - begin
    assert ledger.kept == steps
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"import   {ranks} ranks x {steps} steps, {size / 1e6:.0f} MB: {took / ranks:.2f} s a rank, "
        f"{peak / 1e6:.0f} MB of memory at most"
    )
    return peak


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
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        missed = main(Path(made), quick=given.quick)
    peaks = []
    for ranks in (2, 6):
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            peaks.append(import_days(Path(made), ranks, 8_640 if given.quick else 86_400))
    print(f"memory for three times the ranks: x {peaks[1] / peaks[0]:.2f}")
    sys.exit(missed)
