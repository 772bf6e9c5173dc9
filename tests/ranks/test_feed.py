"""Reading ahead: the same steps whoever reads, no more than was asked for, and nobody left behind."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_harness import DDP, FSDP, TINY, run_ranks, until

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.training import RankTraining
from pytest_clusterqual.model.workload import Loader
from pytest_clusterqual.rank.data import Data
from pytest_clusterqual.rank.feed import feed
from pytest_clusterqual.rank.training import fixed_work

READERS = {
    "on demand": Loader(prefetch=0), "thread": Loader(), "a process": Loader(workers=1, prefetch=1),
    "processes": Loader(workers=2, prefetch=2),
}  # fmt: skip
AHEAD = {name: loader for name, loader in READERS.items() if loader.prefetch}
FOR_EVER = 3600.0


class Numbers(Data):
    """The numbers themselves as samples. One from `breaks` on cannot be read, one from `hangs` on never comes."""

    digest = ""

    def __init__(self, noted: Path | None = None, *, breaks: int | None = None, hangs: int | None = None) -> None:
        super().__init__(TINY, torch.device("cpu"))
        self._noted, self._breaks, self._hangs = noted, breaks, hangs

    def read(self, numbers: Sequence[int]) -> torch.Tensor:
        if self._noted:
            with self._noted.open("a") as file:
                file.write(f"{os.getpid()} {numbers[0]}\n")
        if self._breaks is not None and numbers[0] >= self._breaks:
            raise ClusterQualError("the disk is gone")
        if self._hangs is not None and numbers[0] >= self._hangs:
            time.sleep(FOR_EVER)
        return torch.tensor(numbers)


def steps_read(noted: Path) -> int:
    """How many steps somebody has begun to read: one rank of one, TINY has four microbatches a step."""
    return len(noted.read_text().splitlines()) if noted.exists() else 0


ONE_READ_A_STEP = replace(TINY, microbatch=TINY.global_batch)


def alone(data: Numbers) -> Numbers:
    data._workload = ONE_READ_A_STEP
    return data


@pytest.fixture(autouse=True)
def nobody_stays() -> Iterator[None]:
    threads = threading.active_count()
    yield
    assert until(lambda: threading.active_count() <= threads)  # one of an earlier test may have ended meanwhile
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("loader", READERS.values(), ids=READERS)
def test_every_reader_gives_the_same_steps_in_their_order(loader: Loader) -> None:
    data = Numbers()
    with feed(data, range(1, 8), loader, rank=1, world_size=2) as batches:
        got = [[batch.tolist() for batch in step] for step in batches]
        assert next(batches, None) is None, "and again"
    wanted = [data.batches(step, rank=1, world_size=2) for step in range(1, 8)]
    assert got == [[batch.tolist() for batch in step] for step in wanted]
    assert got[0] == [[10, 11], [14, 15]]


@pytest.mark.parametrize("loader", AHEAD.values(), ids=AHEAD)
def test_as_many_steps_are_prepared_ahead_as_the_file_says(tmp_path: Path, loader: Loader) -> None:
    noted = tmp_path / "noted"
    ahead = loader.prefetch * max(loader.workers, 1)
    with feed(alone(Numbers(noted)), itertools.count(1), loader, rank=0, world_size=1) as batches:
        assert until(lambda: steps_read(noted) == ahead)
        next(batches)
        assert until(lambda: steps_read(noted) == ahead + 1)
        time.sleep(0.1)  # time enough to read one too many
        assert steps_read(noted) == ahead + 1


def test_on_demand_nothing_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    with feed(alone(Numbers(noted)), itertools.count(1), READERS["on demand"], rank=0, world_size=1) as batches:
        assert steps_read(noted) == 0
        next(batches)
        assert steps_read(noted) == 1


@pytest.mark.parametrize("loader", READERS.values(), ids=READERS)
def test_what_goes_wrong_is_told_to_whoever_asks(loader: Loader) -> None:
    broken = alone(Numbers(breaks=3 * TINY.global_batch))
    with feed(broken, itertools.count(1), loader, rank=0, world_size=1) as batches:
        for _ in range(2):
            next(batches)
        with pytest.raises(ClusterQualError, match="the disk is gone") as kept:
            next(batches)
    assert kept.tb is not None
    assert multiprocessing.active_children() == [], "though the error knows where it came from"


@pytest.mark.parametrize("loader", AHEAD.values(), ids=AHEAD)
def test_whoever_reads_ends_when_the_steps_are_left(loader: Loader) -> None:
    def fail() -> None:
        with feed(alone(Numbers()), itertools.count(1), loader, rank=0, world_size=1) as batches:
            next(batches)
            assert len(multiprocessing.active_children()) == loader.workers
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_process_that_hangs_in_a_read_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # how long torch waits for it
    hanging = alone(Numbers(hangs=2 * TINY.global_batch))
    with feed(hanging, itertools.count(1), Loader(workers=1, prefetch=2), rank=0, world_size=1) as batches:
        next(batches)
        (process,) = multiprocessing.active_children()
    assert process.exitcode is not None


def test_the_numbers_that_the_job_draws_are_its_own() -> None:
    drawn = []
    for loader in READERS.values():
        torch.manual_seed(7)
        with feed(alone(Numbers()), range(1, 3), loader, rank=0, world_size=1) as batches:
            next(batches)
        drawn.append(torch.rand(2).tolist())
    assert drawn == [drawn[0]] * len(drawn)


def hang_and_note(noted: Path) -> None:
    with feed(alone(Numbers(noted, hangs=0)), itertools.count(1), READERS["processes"], rank=0, world_size=1) as steps:
        next(steps)


def readers_of(noted: Path) -> set[int]:
    lines = noted.read_text().splitlines() if noted.exists() else []
    return {int(line.split()[0]) for line in lines}


def test_readers_are_gone_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    rank = multiprocessing.get_context("fork").Process(target=hang_and_note, args=(noted,))
    rank.start()
    assert until(lambda: len(readers_of(noted)) == 2)
    readers = readers_of(noted)
    assert all(Path(f"/proc/{pid}").exists() for pid in readers)
    rank.kill()
    rank.join()
    assert until(lambda: not any(alive(pid) for pid in readers))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_that_is_to_end_in_order_keeps_its_readers() -> None:
    """A scheduler's SIGTERM goes to all processes, and there is a last step and a last checkpoint to do."""
    with feed(alone(Numbers()), itertools.count(1), READERS["processes"], rank=0, world_size=1) as batches:
        for process in multiprocessing.active_children():  # some of them have hardly begun
            os.kill(process.pid or 0, signal.SIGTERM)
        for _ in range(10):
            next(batches)
            for process in multiprocessing.active_children():
                os.kill(process.pid or 0, signal.SIGTERM)
        assert all(process.is_alive() for process in multiprocessing.active_children())


def by_every_reader(ctx: Any) -> list[Any]:
    workloads = [to_json(replace(TINY, loader=loader)) for loader in READERS.values()]
    return [fixed_work(ctx, workload=work, layout=layout, warmup=1) for layout in (DDP, FSDP) for work in workloads]


@pytest.mark.slow
def test_losses_are_the_same_whoever_reads(tmp_path: Path) -> None:
    for answers in run_ranks(by_every_reader, tmp_path, nodes=["a", "b"]):
        told = [from_json(RankTraining, answer) for answer in answers]
        for same in (told[: len(READERS)], told[len(READERS) :]):
            assert [result.losses for result in same] == [same[0].losses] * len(READERS)
        for result in told:
            assert all(0 < data < step for data, step in zip(result.data_seconds, result.step_seconds, strict=True))
