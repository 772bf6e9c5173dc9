"""Looking at processes from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.session.world import Progress, World

HERE = str(Path(__file__).parent)
PATIENCE = 120.0  # seconds; a machine may have other work to do


def alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ours(marker: str) -> list[int]:
    """Processes whose environment holds `marker`; this process itself is left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until(true: Callable[[], bool]) -> bool:
    """True as soon as it is; False if it never is."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def make_world(
    launcher: LocalLauncher,
    nodes: int,
    logs: Path,
    *,
    nproc_per_node: int = 1,
    start_timeout: float = 120.0,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> World:
    """So many ranks on each of so many simulated nodes, which find the jobs of this folder."""
    return World(
        launcher, launcher.nodes(nodes, nproc_per_node), nproc_per_node, device="cpu", logs=logs,
        start_timeout=start_timeout, path=[HERE], tell=tell,
    )  # fmt: skip
