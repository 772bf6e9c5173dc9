"""What a save takes of the host's memory, apart from what a step does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from rank_harness import until

from pytest_clusterqual.rank import host_memory
from pytest_clusterqual.rank.host_memory import HostMemory

SIZE = 64 << 20
SMALL = 16 << 20  # what an interpreter may do meanwhile


class Counted(HostMemory):
    looks = 0

    def _look(self, *, still: bool = False) -> None:
        super()._look(still=still)
        self.looks += 1

    def wait(self) -> None:
        """Until the thread that watches has looked; a look that is under way may have begun before."""
        enough = self.looks + 2
        assert until(lambda: self.looks >= enough)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "EVERY", 0.02)


def taken() -> np.ndarray:
    """Memory that is really there."""
    return np.ones(SIZE, dtype=np.uint8)


def test_a_copy_that_is_there_while_training_stands_still_is_counted() -> None:
    memory = Counted()
    memory.begin()
    copy = taken()
    memory.wait()
    del copy
    assert abs(memory.end() - SIZE) < SMALL


def test_what_a_step_has_beside_the_save_is_not() -> None:
    memory = Counted()
    memory.begin()
    copy = taken()
    memory.goes_on()
    activations = taken()
    memory.wait()
    del activations
    memory.between_steps()
    del copy
    assert abs(memory.end() - SIZE) < SMALL
    later = taken()
    memory.between_steps()
    assert later[0] == 1
    memory.begin()
    assert memory.end() < SMALL, "what was there before the save"


def test_what_is_left_between_two_steps_is_the_saves() -> None:
    memory = HostMemory()
    memory.begin()
    memory.goes_on()
    written = taken()
    memory.between_steps()
    del written
    assert abs(memory.end() - SIZE) < SMALL


@pytest.fixture
def saver() -> Iterator[int]:
    held = f"held = bytearray({SIZE}); print('there', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", held], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_that_saves_is_counted_as_a_whole(saver: int) -> None:
    memory = HostMemory([saver])
    memory.begin()
    memory.goes_on()
    assert SIZE <= memory.end() < SIZE + SMALL + (32 << 20)


def test_a_process_that_has_ended_has_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    memory = HostMemory([process.pid])
    memory.begin()
    assert memory.end() < SMALL
