"""What a rank's steps are fed with, read as the project file says: on demand, ahead in a thread, or by processes."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, Dataset

from pytest_clusterqual.model.workload import Loader
from pytest_clusterqual.rank.data import Batch, Data

CLOSING_SECONDS = 5.0

Read = Callable[[int], list[Batch]]


@contextmanager
def feed(
    data: Data, steps: Iterable[int], loader: Loader, *, rank: int, world_size: int
) -> Iterator[Iterator[list[Batch]]]:
    """The microbatches of one step after another, on the job's device; whoever asks waits for them.

    They are the same whatever the `loader`. On leaving, whoever read ahead has ended.
    """
    read: Read = partial(data.share, rank=rank, world_size=world_size)
    ahead: Ahead
    if loader.workers:
        ahead = Processes(read, steps, loader, data.device)
    elif loader.prefetch:
        ahead = Thread(read, steps, loader.prefetch, data.device)
    else:
        yield (data.on_device(read(step)) for step in steps)
        return
    with closing(ahead):
        yield map(data.on_device, ahead)


class Ahead(Protocol):
    """Steps in order, prepared before they are asked for."""

    def __iter__(self) -> Iterator[list[Batch]]: ...

    def __next__(self) -> list[Batch]:
        """The next step's, waiting for them if need be; raises what went wrong while they were read."""

    def close(self) -> None:
        """End who reads; what nobody took is dropped."""


class Thread:
    """Keeps `depth` steps ready that nobody has taken yet, for a job on `device`."""

    def __init__(self, read: Read, steps: Iterable[int], depth: int, device: torch.device) -> None:
        self._ready: queue.SimpleQueue[_Ready | BaseException] = queue.SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._closed = False
        self._thread = threading.Thread(target=self._fill, args=(read, steps, device), name="read ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[list[Batch]]:
        return self

    def __next__(self) -> list[Batch]:
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._ready.put(item)  # for whoever asks again
            raise item
        self._room.release()
        return item.batches

    def close(self) -> None:
        self._closed = True
        self._room.release()
        # A read that hangs must not keep the rank from saying what else went wrong; such a thread ends with it.
        self._thread.join(CLOSING_SECONDS)

    def _fill(self, read: Read, steps: Iterable[int], device: torch.device) -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # a thread begins with the first one of the node
            for step in steps:
                self._room.acquire()
                if self._closed:
                    return
                ready = _Ready(read(step))
                self._ready.put(ready.pin_memory() if device.type == "cuda" else ready)
        except BaseException as error:  # handed to whoever asks, who would wait for ever otherwise
            self._ready.put(error)
        else:
            self._ready.put(StopIteration())


class Processes:
    """torch's own loader: each of its workers keeps `prefetch` steps ready, and the order stays."""

    def __init__(self, read: Read, steps: Iterable[int], loader: Loader, device: torch.device) -> None:
        made = DataLoader(
            _Steps(read),
            batch_size=None,
            sampler=steps,
            num_workers=loader.workers,
            prefetch_factor=loader.prefetch,
            pin_memory=device.type == "cuda",
            worker_init_fn=_belong_to_the_rank,
            multiprocessing_context="fork",
            generator=torch.Generator(),  # else it would draw from the numbers that the job itself draws from
        )
        # Else a SIGTERM could kill a worker before it has come so far as to let it pass.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            self._ahead: Any = iter(made)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __iter__(self) -> Iterator[list[Batch]]:
        return self

    def __next__(self) -> list[Batch]:
        ready: _Ready = next(self._ahead)
        return ready.batches

    def close(self) -> None:
        # torch does so when nobody holds the iterator, but an error that comes out of it does: then it would wait
        # for the end of the interpreter, and there for its processes.
        self._ahead._shutdown_workers()
        for process in self._ahead._workers:
            process.kill()  # one that hangs in a read; the others have ended
            process.join(CLOSING_SECONDS)


class _Ready:
    """The microbatches of a step. torch's loader would make lists of their tuples, but leaves what it does not know."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def pin_memory(self) -> _Ready:
        return _Ready(tree_map_only(torch.Tensor, torch.Tensor.pin_memory, self.batches))


class _Steps(Dataset[Any]):
    def __init__(self, read: Read) -> None:
        self._read = read

    def __getitem__(self, step: int) -> _Ready:
        return _Ready(self._read(step))


def _belong_to_the_rank(_worker: int) -> None:
    """End when the rank ends, however that happens, and not before.

    By itself a worker looks every few seconds whether the rank is still there, and as long as it lives no peer notices:
    it has inherited the connections. A SIGTERM goes to all processes of a rank, which may want to end in order.
    """
    from pytest_clusterqual.rank.__main__ import follow_parent

    follow_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
