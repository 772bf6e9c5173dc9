"""A world of real ranks, shared by the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.world import World

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    made = World(
        launcher, launcher.nodes(2, 1), 1, logs=tmp_path_factory.mktemp("logs"), start_timeout=120,
        path=[HERE], tell=lambda progress: None,
    )  # fmt: skip
    yield made
    made.close()


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
