"""Where checkpoints are written and read: torch's own writer and reader, made safe, and what goes wrong there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import re
import select
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.rank.checkpoint_folders import METADATA

# All that torch's metadata is made of. Unpickling calls nothing else, whatever the file says.
_METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "pathlib._local": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip


class Writer(dcp.FileSystemWriter):
    """torch's writer. Where it is sent to a saving process, that process ends with its rank from then on."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _end_with_parent()


class Reader(dcp.FileSystemReader):
    """torch's reader, with metadata that cannot call anything."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / METADATA).open("rb") as file:
            metadata = _MetadataUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f"holds a {type(metadata).__name__}, not checkpoint metadata")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _METADATA_CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"names {module}.{name}, which checkpoint metadata never does")
        return super().find_class(module, name)


_following = threading.Lock()


def _end_with_parent() -> None:
    """Have this process end at once when the rank that started it does, however that happens.

    By itself it would finish its save first, and write into a folder that the next attempt uses again. The kernel's own
    way, a signal at the parent's death, comes when the *thread* ends that started the process, and torch starts it from
    a short-lived one.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None and _following.acquire(blocking=False):
        threading.Thread(target=_leave_with, args=(parent.pid,), daemon=True).start()


def _leave_with(parent: int) -> None:
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    if os.getppid() == parent:
        select.select([watched], [], [])
    os._exit(1)


class Translated:
    """Turns what goes wrong with a checkpoint into an error that names the folder and the remedy.

    Anything else, a lost peer above all, passes through as it is.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and (reason := trouble(_causes(error))) is not None:
            raise ClusterQualError(f"{self._place}: {reason}") from error


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, CheckpointException):
        return [cause for cause, _trace in error.failures.values()]
    return [error]


def trouble(errors: Sequence[BaseException]) -> str | None:
    """What the errors say about the checkpoint and what to do, or None if they are about something else."""
    return next((reason for reason in map(_reason, errors) if reason is not None), None)


def _reason(error: BaseException) -> str | None:
    text, number = str(error), getattr(error, "errno", None)
    if re.search(r"shared memory|</torch_", text):
        return (
            f"the saving process is given the state through /dev/shm, which has no room for it ({text}); make it "
            "larger, or save in another mode"
        )
    # torch.save on a full disk complains about positions in its file and does not say why.
    if number in (errno.ENOSPC, errno.EDQUOT) or re.search(r"No space left|unexpected pos \d+ vs", text):
        return "no space left for the checkpoint; free some, or point the run folder to a larger disk"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM) or "Read-only file" in text:
        return "the checkpoint folder cannot be written; point the run folder to a writable disk"
    if isinstance(error, pickle.UnpicklingError):
        return f"not a checkpoint of this package: its metadata {text}; remove the folder"
    if re.search(r"Missing key in checkpoint|Size mismatch between saved", text):
        return f"the checkpoint of another job or layout ({text}); remove the folder, or load it with that layout"
    if isinstance(error, (OSError, EOFError)) and not isinstance(error, ConnectionError):
        return f"the checkpoint cannot be written or read ({text})"
    return None
