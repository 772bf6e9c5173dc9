"""Training data: samples by number, of which each rank gets its own.

Which samples a step takes depends only on its number in the whole run, so the global batch is the same for any number
of ranks and for every layout.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import sysconfig
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import Workload

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context

Batch = Any  # tensors of `microbatch` samples, in the structure that the loss takes them

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


class Data(ABC):
    """The samples of a run; `digest` are hex digits that differ where they do."""

    digest: str

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self._workload = workload
        self.device = device

    @abstractmethod
    def read(self, numbers: Sequence[int]) -> Batch:
        """The samples with these numbers, on the CPU; processes beside the rank's call it, too."""

    def batch(self, step: int, *, first: int, count: int) -> Batch:
        """Samples `first` to `first + count - 1` of the global batch of `step`."""
        return self.on_device(self._part(step, first, count))

    def batches(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """All microbatches of one data-parallel rank for one optimizer step."""
        batches: list[Batch] = self.on_device(self.share(step, rank=rank, world_size=world_size))
        return batches

    def share(self, step: int, *, rank: int, world_size: int) -> list[Batch]:
        """The same, not yet on the job's device."""
        size = self._workload.microbatch
        turns = self._workload.accumulation(world_size)
        return [self._part(step, (turn * world_size + rank) * size, size) for turn in range(turns)]

    def on_device(self, batches: Any) -> Any:
        """Batches that were read, where the job takes them."""
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batches)

    def _part(self, step: int, first: int, count: int) -> Batch:
        number = step * self._workload.global_batch + first
        return self.read(range(number, number + count))


class ByteData(Data):
    """`sequence_length` + 1 bytes out of one file are a sample, every byte of it a token."""

    def __init__(self, path: Path, workload: Workload, device: torch.device) -> None:
        """Open the file at `path`.

        Raises:
            ClusterQualError: it cannot be read, is too short, or the vocabulary cannot hold a byte.
        """
        super().__init__(workload, device)
        if workload.shape.vocab < BYTE_VALUES:
            raise ClusterQualError(
                f"workload.model.vocab: got {workload.shape.vocab}, want at least {BYTE_VALUES}: every byte is a token"
            )
        self.path = path
        self._length = workload.sequence_length + 1
        self._file, self._size = _open(path, self._length)
        weakref.finalize(self, os.close, self._file)
        self.digest = digest(path)

    @classmethod
    def open(cls, ctx: Context, workload: Workload) -> ByteData:
        """The workload's own file, or the standard library's sources where it names none."""
        path = Path(workload.data_path) if workload.data_path is not None else standard_corpus(ctx.scratch)
        return cls(path, workload, ctx.device)

    def read(self, numbers: Sequence[int]) -> Batch:
        """Inputs and targets, both int64 of shape (samples, sequence_length), targets one byte ahead.

        Raises:
            ClusterQualError: the file cannot be read any more.
        """
        # Not mapped: a page that a disk has yet to bring would be waited for with Python's lock held, and a rank
        # that reads ahead in a thread could not train meanwhile.
        samples = np.stack([np.frombuffer(self._sample(number), np.uint8) for number in numbers]).astype(np.int64)
        both = torch.from_numpy(samples)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()

    def _sample(self, number: int) -> bytes:
        start = mixed(self._workload.seed, number) % (self._size - self._length + 1)
        try:
            sample = os.pread(self._file, self._length, start)
        except OSError as error:
            raise ClusterQualError(f"{self.path}: cannot read the training data ({error.strerror})") from error
        if len(sample) < self._length:
            raise ClusterQualError(f"{self.path}: the training data became shorter while they were read")
        return sample


def mixed(seed: int, number: int) -> int:
    """64 bits that say where sample `number` of a run is to be found."""
    return int.from_bytes(hashlib.blake2b(struct.pack("<qq", seed, number), digest_size=8).digest(), "little")


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


def _open(path: Path, least: int) -> tuple[int, int]:
    """A descriptor of the file, and its size in bytes."""
    remedy = "give a readable file in workload.data.path, or null for the standard library's sources"
    try:
        size = path.stat().st_size
        if size < least:
            raise ClusterQualError(f"{path}: {size} bytes are too short for one sample of {least}; {remedy}")
        with path.open("rb") as file:
            return os.dup(file.fileno()), size
    except OSError as error:
        raise ClusterQualError(f"{path}: cannot read the training data ({error.strerror}); {remedy}") from error
