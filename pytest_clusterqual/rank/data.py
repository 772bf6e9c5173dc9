"""Training data: the bytes of a file, memory-mapped; every byte is a token.

Which sample is taken depends only on the seed and the sample's number in the whole run, so the
global batch of a step is the same for any number of ranks and for every layout.
"""

from __future__ import annotations

import hashlib
import os
import queue
import struct
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import Workload

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

Batch = tuple[torch.Tensor, torch.Tensor]

BYTE_VALUES = 256
WHOLE_DIGEST_LIMIT = 64 * 2**20
DIGEST_SAMPLE = 2**20
DIGEST_SAMPLES = 16
CORPUS_LIMIT = 8 * 2**20
# Beside the modules at the top: packages that every full Python installation has.
CORPUS_PACKAGES = (
    "asyncio",
    "collections",
    "concurrent",
    "ctypes",
    "email",
    "encodings",
    "html",
    "http",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "unittest",
    "urllib",
    "xml",
)


class ByteData:
    """Samples of `sequence_length` + 1 bytes out of one memory-mapped file."""

    def __init__(self, path: Path, workload: Workload, device: torch.device) -> None:
        """Map the file at `path`.

        Raises:
            ClusterQualError: it cannot be read, is too short, or the vocabulary cannot hold a byte.
        """
        if workload.model.vocab < BYTE_VALUES:
            raise ClusterQualError(
                f"workload.model.vocab: got {workload.model.vocab}, want at least {BYTE_VALUES}: every byte is a token"
            )
        self.path = path
        self._workload = workload
        self._device = device
        self._tokens = _map(path, workload.sequence_length + 1)
        self.digest = digest(path)

    @classmethod
    def open(cls, ctx: Context, workload: Workload) -> ByteData:
        """Map the workload's own file, or the standard library's sources where it names none."""
        path = Path(workload.data_path) if workload.data_path is not None else standard_corpus(ctx.scratch)
        return cls(path, workload, ctx.device)

    def batch(self, step: int, *, first: int, count: int) -> Batch:
        """Samples `first` to `first + count - 1` of the global batch of `step`.

        Returns:
            Inputs and targets, both int64 of shape (count, sequence_length), targets one byte ahead.
        """
        length = self._workload.sequence_length
        number = step * self._workload.global_batch + first
        starts = [self._offset(number + i) for i in range(count)]
        samples = np.stack([self._tokens[start : start + length + 1] for start in starts]).astype(np.int64)
        both = torch.from_numpy(samples).to(self._device)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def batches(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """All microbatches of one data-parallel rank for one optimizer step."""
        size = self._workload.microbatch
        turns = self._workload.accumulation(world_size)
        return [self.batch(step, first=(turn * world_size + rank) * size, count=size) for turn in range(turns)]

    def _offset(self, number: int) -> int:
        mixed = hashlib.blake2b(struct.pack("<qq", self._workload.seed, number), digest_size=8).digest()
        return int.from_bytes(mixed, "little") % (len(self._tokens) - self._workload.sequence_length)


class Prefetcher:
    """Prepares the next steps' batches in a thread while the current step computes."""

    def __init__(self, data: ByteData, steps: range, *, rank: int, world_size: int, depth: int = 2) -> None:
        self._ready: queue.Queue[list[Batch] | BaseException] = queue.Queue(maxsize=depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._fill, args=(data, steps, rank, world_size), name="prefetch", daemon=True
        )
        self._thread.start()

    def next(self) -> list[Batch]:
        """The batches of the next step, waiting for them if need be.

        Raises:
            Exception: what went wrong while they were read.
        """
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """End the thread; batches that nobody took are dropped."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get(timeout=0.01)
            except queue.Empty:
                continue

    def _fill(self, data: ByteData, steps: range, rank: int, world_size: int) -> None:
        try:
            for step in steps:
                self._ready.put(data.batches(step, rank=rank, world_size=world_size))
                if self._closed.is_set():
                    return
        except BaseException as error:  # handed to the caller of `next`, who would wait for ever otherwise
            self._ready.put(error)


def digest(path: Path) -> str:
    """Sixteen hex digits of the file's bytes; of its size, head, tail and samples above 64 MiB."""
    size = path.stat().st_size
    state = hashlib.sha256()
    with path.open("rb") as file:
        if size <= WHOLE_DIGEST_LIMIT:
            while block := file.read(DIGEST_SAMPLE):
                state.update(block)
        else:
            state.update(str(size).encode())
            for index in range(DIGEST_SAMPLES):
                file.seek((size - DIGEST_SAMPLE) * index // (DIGEST_SAMPLES - 1))
                state.update(file.read(DIGEST_SAMPLE))
    return state.hexdigest()[:16]


def standard_corpus(folder: Path) -> Path:
    """The standard library's sources in one file under `folder`; several ranks may race for it.

    Raises:
        ClusterQualError: the folder cannot be written.
    """
    build = hashlib.sha256(sys.version.encode()).hexdigest()[:8]
    path = folder / f"stdlib-{sys.version_info.major}.{sys.version_info.minor}-{build}.bytes"
    if path.exists():
        return path
    unfinished = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            for source in _sources():
                file.write(source.read_bytes())
                if file.tell() >= CORPUS_LIMIT:
                    break
        unfinished.replace(path)
    except OSError as error:
        raise ClusterQualError(
            f"{path}: cannot write the training data ({error.strerror}); "
            "free some space there or give workload.data.path"
        ) from error
    return path


def _sources() -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    yield from sorted(root.glob("*.py"))
    for package in CORPUS_PACKAGES:
        yield from sorted((root / package).rglob("*.py"))


def _map(path: Path, least: int) -> np.memmap[Any, np.dtype[np.uint8]]:
    remedy = "give a readable file in workload.data.path, or null for the standard library's sources"
    try:
        size = path.stat().st_size
        if size < least:
            raise ClusterQualError(f"{path}: {size} bytes are too short for one sample of {least}; {remedy}")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise ClusterQualError(f"{path}: cannot read the training data ({error.strerror}); {remedy}") from error
