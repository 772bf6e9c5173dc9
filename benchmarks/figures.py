"""Print the figures this project promises: ``python benchmarks/figures.py [cost] [dispatch] [fidelity] [run]``.

Ratios are taken inside one run, A B A B; every figure is a median with its range. Nothing is
asserted here: a shared machine may be slow, and the figures say how slow.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


def show(what: str, values: Sequence[float], unit: str) -> None:
    low, middle, high = statistics.quantiles(values, n=4)
    print(f"{what}: median {middle:.4g} {unit}, quartiles {low:.4g} to {high:.4g}, n={len(values)}", flush=True)


def wall(command: Sequence[str], cwd: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def cost() -> None:
    """What the installed plugin adds to a pytest run that has nothing to do with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_other.py").write_text("def test_other(): pass\n")
        for what, args in (("pytest --version", ["--version"]), ("pytest with one test", [])):
            base = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
            without = [*base, "-p", "no:clusterqual", "-p", "no:pytest_clusterqual.fixtures"]
            pairs = [(wall(base, folder), wall(without, folder)) for _ in range(21)]
            show(f"{what}, added by the plugin", [(a - b) * 1e3 for a, b in pairs], "ms")
    script = "import sys, pytest; pytest.main(sys.argv[1:]); print('MODULES', *sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", script, "qualification/", "--collect-only", "-q", "--nodes", "2"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    modules = {module.partition(".")[0] for module in out.rpartition("MODULES")[2].split()}
    print("collect-only imports torch:", "torch" in modules, " matplotlib:", "matplotlib" in modules)


def world(nodes: int, nproc: int):  # type: ignore[no-untyped-def]  # a script
    from pytest_clusterqual.launch.local import LocalLauncher
    from pytest_clusterqual.session.world import World

    launcher = LocalLauncher(oversubscribe=True)
    return World(
        launcher, launcher.nodes(nodes, nproc), nproc, device=launcher.device, logs=Path(tempfile.mkdtemp()),
        start_timeout=120, path=[str(ROOT / "benchmarks")], tell=lambda progress: None,
    )  # fmt: skip


def dispatch() -> None:
    """An empty job to 4 warm ranks and back."""
    from pytest_clusterqual.session.world import Job

    began = time.perf_counter()
    ranks = world(2, 2)
    try:
        ranks.ready()
        print(f"launch of 4 ranks until the first job can run: {time.perf_counter() - began:.1f} s")
        job = Job(name="pytest_clusterqual.rank.jobs:empty", ranks=(0, 1, 2, 3), timeout=60)
        show("empty job on 4 warm ranks", [timed(lambda: ranks.run(job)) * 1e3 for _ in range(500)][50:], "ms")
    finally:
        ranks.close()


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def fidelity() -> None:
    """The product's busbw against a bare loop, in turn inside one job on the same ranks; steps: `step_time.py`."""
    from fabric_fidelity import compared

    ranks = world(2, 1)
    try:
        for size in (65536, 1 << 20, 4 << 20, 16 << 20):
            print(compared(ranks, "all_reduce", size, pairs=60), flush=True)
    finally:
        ranks.close()


def run() -> None:
    """The default qualification: wall time against the time inside measured windows."""
    folder = Path(tempfile.mkdtemp()) / "run"
    began = time.perf_counter()
    code = subprocess.run(
        [sys.executable, "-m", "pytest", "qualification/", "--nodes", "2", "--qual-run-dir", str(folder)], cwd=ROOT,
        check=False,
    ).returncode  # fmt: skip
    seconds = time.perf_counter() - began
    measured = sum(json.loads(line)["measurement"]["seconds"] for line in (folder / "measurements.jsonl").open())
    print(
        f"default run: exit {code}, {seconds:.0f} s, {measured:.0f} s inside measurements: x {seconds / measured:.2f}"
    )
    shutil.rmtree(folder.parent)


if __name__ == "__main__":
    for name in sys.argv[1:] or ("cost", "dispatch", "fidelity", "run"):
        print(f"-- {name}", flush=True)
        {"cost": cost, "dispatch": dispatch, "fidelity": fidelity, "run": run}[name]()
