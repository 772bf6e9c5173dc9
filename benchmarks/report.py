"""Seconds and memory of `clusterqual report` for a large run: ``python benchmarks/report.py [--nodes N] [--tests T]``.

The run is simulated as a real one would be (`large_run.py`): all criteria, the samples of every rank in
measurements.jsonl, the telemetry of every node. Measured is each command in a process of its own, from reading the run
folder to the page, junit.xml and plots. Bars for the report, on a machine that does nothing else: 30 s, and 2 GB; exit
code 1 beyond. `--judge` judges all of it again as well, which takes long and has no bar.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
SECONDS, MEMORY = 30.0, 2e9
_COMMAND = "import sys; from pytest_clusterqual.cli import main; sys.exit(main())"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument(
        "--folder", type=Path, help="where to make the run, or where it was left (default: a temporary one)"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = asked.folder or Path(name) / "run"
        if not folder.exists():
            _make(folder, asked)
        for file in sorted(folder.glob("*.jsonl")):
            print(f"{file.name}: {file.stat().st_size / 1e6:.0f} MB", flush=True)
        taken = [_timed(folder, "report") for _ in range(asked.repeats)]
        page, plots = folder / "report.html", list((folder / "plots").glob("*.svg"))
        print(f"a page of {page.stat().st_size / 1e6:.2f} MB, {len(plots)} plots", flush=True)
        if asked.judge:
            _timed(folder, "judge")
    slow, large = (max(figures) for figures in zip(*taken, strict=True))
    missed = [f"{slow:.1f} s"] * (slow > SECONDS) + [f"{large / 1e9:.2f} GB"] * (large > MEMORY)
    print(f"bars of {SECONDS:g} s and {MEMORY / 1e9:g} GB: " + (f"missed by {', '.join(missed)}" if missed else "held"))
    return 1 if missed else 0


def _make(folder: Path, asked: argparse.Namespace) -> None:
    """In a process of its own, whose memory is none of this one."""
    from subprocess import PIPE, run

    script = "import sys, large_run; from pathlib import Path; print(large_run.write(Path(sys.argv[1]), " \
        "nodes=int(sys.argv[2]), per_node=int(sys.argv[3]), tests=int(sys.argv[4])))"  # fmt: skip
    numbers = [str(number) for number in (asked.nodes, asked.per_node, asked.tests)]
    count = run(
        [sys.executable, "-c", script, str(folder), *numbers], cwd=ROOT / "benchmarks", check=True,
        stdout=PIPE, text=True,
    ).stdout.strip()  # fmt: skip
    print(f"{asked.tests} tests on {asked.nodes} x {asked.per_node} ranks: {count} records", flush=True)


def _timed(folder: Path, command: str) -> tuple[float, float]:
    """Seconds and the most bytes of memory of `clusterqual COMMAND`."""
    began = time.perf_counter()
    with open(os.devnull, "wb") as nowhere:
        argv = [sys.executable, "-c", _COMMAND, command, str(folder)]
        pid = os.posix_spawn(
            sys.executable, argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        )
        _, status, used = os.wait4(pid, 0)
    seconds, memory = time.perf_counter() - began, used.ru_maxrss * 1024.0
    print(f"clusterqual {command}: exit {os.waitstatus_to_exitcode(status)}, {seconds:.1f} s "
          f"({used.ru_utime + used.ru_stime:.1f} s of a core), peak {memory / 1e9:.2f} GB", flush=True)  # fmt: skip
    return seconds, memory


if __name__ == "__main__":
    sys.exit(main())
