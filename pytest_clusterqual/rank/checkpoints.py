"""Checkpoints of a full run: saved at once or in the background, complete or not used at all.

A step's folder counts as complete when torch's own metadata and one marker of every rank are in
it. Whatever a killed run left half done is therefore never loaded.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.full_run import CheckpointMode
from pytest_clusterqual.rank.job import Job

KEEP = 2
METADATA = ".metadata"
_STEP_FOLDER = re.compile(r"step-(\d{8,})")
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


class Checkpointer:
    """Saves and loads the job of one rank. All ranks of `group` call each method together."""

    def __init__(
        self,
        *,
        folder: Path,
        group: dist.ProcessGroup,
        mode: CheckpointMode,
        on_complete: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`group` moves tensors on CPU and belongs to the checkpoints alone: a background save uses
        it while training uses its own. `on_complete` hears each step whose save this rank finished,
        in "async" mode from the saving thread.
        """
        self._folder = folder
        self._group = group
        self._mode = mode
        self._on_complete = on_complete
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        self._pending: tuple[int, Future[Any]] | None = None

    def save(self, job: Job, step: int) -> float:
        """Save after `step`; a background save that is still going on is waited for first.

        Returns:
            Seconds for which training was kept from going on.

        Raises:
            ClusterQualError: the folder cannot be written, or is full.
        """
        start = time.perf_counter()
        self.wait()
        place = step_folder(self._folder, step)
        state = _state(job)
        with _Translated(place):
            place.mkdir(parents=True, exist_ok=True)
            if self._mode == "sync":
                dcp.save(state, checkpoint_id=place, process_group=self._group)
                self._complete(step)
            else:
                saving: Any = dcp.async_save(state, checkpoint_id=place, process_group=self._group)
                self._pending = (step, _after(saving, lambda: self._complete(step)))
        if self._mode == "sync":
            self._prune()
        return time.perf_counter() - start

    def poll(self) -> bool:
        """True if no save is going on any more; raises what the last one failed with."""
        if self._pending is None:
            return True
        step, saving = self._pending
        if not saving.done():
            return False
        self._pending = None
        with _Translated(step_folder(self._folder, step)):
            saving.result()
        self._prune()
        return True

    def wait(self) -> None:
        """Wait for the background save, if there is one; raises what it failed with."""
        if self._pending is not None:
            self._pending[1].exception()
            self.poll()

    def load(self, job: Job) -> int:
        """Put the latest complete checkpoint into `job`; rank 0 chooses it and clears away torn ones.

        Returns:
            Its step, 0 if there is none.

        Raises:
            ClusterQualError: it cannot be read, or holds more than tensors.
        """
        chosen: list[Any] = [None]
        if self._rank == 0:
            remove_torn(self._folder)
            found = latest_complete(self._folder, self._world_size)
            chosen = [found[1] if found is not None else 0]
        dist.broadcast_object_list(chosen, group=self._group, group_src=0)
        step = int(chosen[0])
        if step:
            place = step_folder(self._folder, step)
            state = _state(job)
            with _Translated(place):
                reader = _Reader(place)
                reader.read_metadata()  # torch would wrap what is wrong with it beyond recognition
                dcp.load(state, storage_reader=reader, process_group=self._group)
            _restore(job, state)
        return step

    def _complete(self, step: int) -> None:
        write_marker(step_folder(self._folder, step), self._rank, self._world_size)
        self._on_complete(step)

    def _prune(self) -> None:
        # Markers of other ranks may still be on their way: then one more is kept until the next save.
        if self._rank == 0:
            for step in complete_steps(self._folder, self._world_size)[:-KEEP]:
                shutil.rmtree(step_folder(self._folder, step), ignore_errors=True)


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies."""
    return folder / f"step-{step:08d}"


def write_marker(place: Path, rank: int, world_size: int) -> None:
    """Say durably that this rank's part of the checkpoint in `place` is written."""
    path = place / f"rank-{rank:05d}.done"
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w") as file:
        json.dump({"world_size": world_size}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    directory = os.open(place, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def latest_complete(folder: Path, world_size: int | None = None) -> tuple[Path, int] | None:
    """The newest complete checkpoint and its step; of that many ranks, if `world_size` is given."""
    steps = complete_steps(folder, world_size)
    return (step_folder(folder, steps[-1]), steps[-1]) if steps else None


def complete_steps(folder: Path, world_size: int | None = None) -> list[int]:
    """Steps of all complete checkpoints, in order."""
    return [step for step, place in _step_folders(folder) if _is_complete(place, world_size)]


def remove_torn(folder: Path) -> None:
    """Delete checkpoints that a killed run left half done, so that no old part mixes with a new one."""
    for _step, place in _step_folders(folder):
        if not _is_complete(place, None):
            shutil.rmtree(place, ignore_errors=True)


def _step_folders(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [(match, place) for place in folder.iterdir() if (match := _STEP_FOLDER.fullmatch(place.name))]
    return sorted((int(match[1]), place) for match, place in found)


def _is_complete(place: Path, world_size: int | None) -> bool:
    sizes = []
    for marker in place.glob("rank-*.done"):
        try:
            sizes.append(json.loads(marker.read_text())["world_size"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
    expected = world_size if world_size is not None else len(sizes)
    return bool(sizes) and sizes == [expected] * expected and (place / METADATA).is_file()


def _state(job: Job) -> dict[str, Any]:
    """Tensors only: what is not a tensor would have to be unpickled to be read back."""
    optimizer = get_optimizer_state_dict(job.model, job.optimizer)
    scaler = {name: torch.tensor(value, dtype=torch.float64) for name, value in job.scaler.state_dict().items()}
    return {"model": get_model_state_dict(job.model), "optimizer": optimizer["state"], "scaler": scaler}


def _restore(job: Job, state: dict[str, Any]) -> None:
    set_model_state_dict(job.model, state["model"])
    # The groups hold the workload's own settings, the same in every attempt.
    groups = get_optimizer_state_dict(job.model, job.optimizer)["param_groups"]
    set_optimizer_state_dict(
        job.model, job.optimizer, {"state": state["optimizer"], "param_groups": groups}, options=StateDictOptions()
    )
    if state["scaler"]:
        known = job.scaler.state_dict()
        job.scaler.load_state_dict({name: type(known[name])(value.item()) for name, value in state["scaler"].items()})


def _after(saving: Future[Any], then: Callable[[], None]) -> Future[None]:
    """A future that is done when `saving` and `then` are."""
    both: Future[None] = Future()

    def go_on(done: Future[Any]) -> None:
        try:
            done.result()
            then()
        except BaseException as error:  # raised again where the future is asked
            both.set_exception(error)
        else:
            both.set_result(None)

    saving.add_done_callback(go_on)
    return both


class _Reader(dcp.FileSystemReader):
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


class _Translated:
    """Turns what goes wrong with the disk into an error that names the folder and the remedy.

    Anything else, a lost peer above all, passes through as it is.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None and (reason := disk_trouble(_causes(error))) is not None:
            raise ClusterQualError(f"{self._place}: {reason}") from error


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, CheckpointException):
        return [cause for cause, _trace in error.failures.values()]
    return [error]


def disk_trouble(errors: Sequence[BaseException]) -> str | None:
    """What the errors say about the disk and what to do, or None if they are about something else."""
    for error in errors:
        text = str(error)
        # torch.save on a full disk complains about positions in its file and does not say why.
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or re.search(
            r"No space left|unexpected pos \d+ vs", text
        ):
            return "no space left for the checkpoint; free some, or point the run folder to a larger disk"
        if getattr(error, "errno", None) in (errno.EROFS, errno.EACCES, errno.EPERM) or "Read-only file" in text:
            return "the checkpoint folder cannot be written; point the run folder to a writable disk"
        if isinstance(error, pickle.UnpicklingError):
            return f"not a checkpoint of this package: its metadata {text}; remove the folder"
        if isinstance(error, (OSError, EOFError)) and not isinstance(error, ConnectionError):
            return f"the checkpoint cannot be written or read ({text})"
    return None
