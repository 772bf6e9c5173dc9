"""What a probe takes from around it: who launched the process, which saves are under way, the devices it has."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from probe_made import written

from pytest_clusterqual import probe as probing
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.read.probe import probe_files


@pytest.fixture(autouse=True)
def _no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    launchers = [name for both in probing._LAUNCHERS for name in both]
    for name in (*launchers, "TORCHELASTIC_RESTART_COUNT", "CLUSTERQUAL_PROBE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, (3, 8)),
        ({"PMI_RANK": "3", "PMI_SIZE": "8"}, (3, 8)),
        # mpirun starts one process on each node by srun, and torchrun may be started by either.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"},
         (3, 8)),
        ({"RANK": "0", "WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 8)),
        # In a batch script that starts no step: the tasks it may have are no ranks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 0)),
        ({}, (0, 0)),
    ],
)  # fmt: skip
def test_whoever_launched_it_tells_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: tuple[int, int]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Probe(tmp_path).close()
    ((file,),) = probe_files(tmp_path, pytest.fail).values()
    assert (file.start.rank, file.start.world) == told


@pytest.mark.parametrize("rank", ["node0", 1.0, -1, 2**63])
def test_a_rank_that_the_script_gives_and_that_is_none_is_named(tmp_path: Path, rank: Any) -> None:
    with pytest.raises(ClusterQualError, match=rf"^Probe\(rank=\.\.\.\): got '{rank}', want a whole number"):
        Probe(tmp_path, rank=rank)
    assert not list(tmp_path.iterdir())


def test_whatever_a_script_tells_can_be_read(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=np.int64(2))  # type: ignore[arg-type]
    for name in ("half \udcff", "x" * 100_000, "\0"):
        with probe.hook(name):
            probe.stage(name)
    probe.stage("never", at=math.nan)
    probe.stage("never", at=math.inf)
    probe.close()
    lines = written(tmp_path, rank=2)[:-1]
    assert [line.name for line in lines] == ["half ?"] * 2 + ["x" * 1000] * 2 + ["\0"] * 2


def test_while_it_is_off_nobody_waits_for_a_loss() -> None:
    Probe().loss(None)  # type: ignore[arg-type]


def test_a_background_save_is_complete_at_the_step_it_was_begun_for(tmp_path: Path) -> None:
    probe = Probe(tmp_path)

    def trains(steps: int) -> None:
        for _ in range(steps):
            with probe.step():
                pass

    def saves() -> None:
        with probe.checkpoint():
            pass

    trains(10)
    saves()
    trains(3)
    probe.saved()  # that of step 10
    trains(7)
    saves()
    trains(10)
    saves()
    writer = threading.Thread(target=lambda: (saves(), probe.saved(size=7)))  # a span of its own is no other save
    writer.start()
    writer.join()
    probe.saved(30)
    with pytest.raises(OSError, match="full"), probe.checkpoint():
        raise OSError("full")
    trains(5)
    saves()
    trains(1)
    probe.saved()
    probe.saved()  # none is under way: a script that opens no span
    probe.close()
    assert [(line.step, line.value) for line in written(tmp_path) if line.what == "saved"] == [
        (10, 0), (20, 7), (30, 0), (35, 0), (36, 0),
    ]  # fmt: skip


def test_the_peak_of_a_device_is_that_of_the_fullest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may name its device in every call, and leave the current one empty."""
    reserved = {0: 0, 1: 0, 2: 5 * 2**30}
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: len(reserved),
        max_memory_reserved=lambda device=0: reserved[device],
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    Probe(tmp_path).close()
    assert written(tmp_path)[-1].device_peak == 5 * 2**30
