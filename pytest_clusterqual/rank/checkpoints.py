"""Checkpoints of a full run: saved while training waits, or beside it by a thread or by a process of its own."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from pytest_clusterqual.model.full_run import CheckpointMode
from pytest_clusterqual.rank.checkpoint_folders import (
    latest_complete,
    part_size,
    prune,
    remove_torn,
    step_folder,
    write_marker,
)
from pytest_clusterqual.rank.checkpoint_storage import Reader, Translated, Writer
from pytest_clusterqual.rank.host_memory import HostMemory
from pytest_clusterqual.rank.job import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """One rank's part of the checkpoint of `step` is complete: `size` bytes of it; `extra` bytes of memory it took."""

    step: int
    size: int
    extra: int


class Checkpointer:
    """Saves and loads the job of one rank. All ranks of `group` call each method together."""

    def __init__(
        self,
        *,
        folder: Path,
        group: dist.ProcessGroup,
        mode: CheckpointMode,
        on_complete: Callable[[Saved], None] = lambda saved: None,
        writer: Callable[[Path], Writer] = Writer,
    ) -> None:
        """`group` moves tensors on CPU and belongs to the checkpoints alone: a background save uses
        it while training uses its own. `on_complete` hears of each save that this rank finished, from
        the saving thread where there is one. `writer` makes what writes into a step's folder.
        """
        self._folder = folder
        self._group = group
        self._mode = mode
        self._on_complete = on_complete
        self._writer = writer
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        self._pending: tuple[int, Future[Any]] | None = None
        self._memory = HostMemory()
        self._savers: list[Any] = []

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Where training fails, what is being saved is given up: this process could not end before it.

        A saving process waits half an hour for those of ranks that are gone.
        """
        if kind is not None:
            for saver in self._savers:
                saver.kill()

    def prepare(self) -> None:
        """Start the saving process, where the mode has one, by a save of nothing.

        torch would start it in the first save, which then takes as long as importing torch once more.

        Raises:
            ClusterQualError: the folder cannot be written.
        """
        if self._mode != "async-process":
            return
        place = self._folder / "saving-process"
        others = multiprocessing.active_children()
        with Translated(place):
            self._beside({"nothing": torch.zeros(1)}, place).result()
        self._savers = [child for child in multiprocessing.active_children() if child not in others]
        self._memory = HostMemory([saver.pid for saver in self._savers])
        if self._rank == 0:
            shutil.rmtree(place, ignore_errors=True)

    def save(self, job: Job, step: int) -> float:
        """Save after `step`; a background save that is still going on is waited for first.

        Returns:
            Seconds for which training was kept from going on.

        Raises:
            ClusterQualError: the folder cannot be written, or is full.
        """
        start = time.perf_counter()
        self.wait()
        self._memory.begin()
        place = step_folder(self._folder, step)
        state = _state(job)
        with Translated(place):
            place.mkdir(parents=True, exist_ok=True)
            if self._mode == "sync":
                dcp.save(state, checkpoint_id=place, storage_writer=self._writer(place), process_group=self._group)
                self._complete(step)
            else:
                self._pending = (step, _after(self._beside(state, place), lambda: self._complete(step)))
                self._memory.goes_on()
        return time.perf_counter() - start

    def poll(self) -> bool:
        """True if no save is going on any more; raises what the last one failed with. To be called after each step."""
        if self._pending is None:
            return True
        self._memory.between_steps()
        step, saving = self._pending
        if not saving.done():
            return False
        self._pending = None
        with Translated(step_folder(self._folder, step)):
            saving.result()
        return True

    def wait(self) -> None:
        """Wait for the background save, if there is one; raises what it failed with."""
        if self._pending is not None:
            self._pending[1].exception()
            self.poll()

    def load(self, job: Job) -> int:
        """Put the latest complete checkpoint into `job`; rank 0 chooses it and clears away torn ones.

        It may be that of more or fewer ranks: each reads what it needs of all parts.

        Returns:
            Its step, 0 if there is none.

        Raises:
            ClusterQualError: it cannot be read, holds more than tensors, or is that of another job.
        """
        chosen: list[Any] = [None]
        if self._rank == 0:
            for damaged in remove_torn(self._folder):
                print(
                    f"clusterqual: the checkpoint of step {damaged} in {self._folder} was complete and has lost data "
                    "since: training goes on after the one before it; look at that storage", file=sys.stderr
                )  # fmt: skip
            found = latest_complete(self._folder)
            chosen = [found[1] if found is not None else 0]
        dist.broadcast_object_list(chosen, group=self._group, group_src=0)
        step = int(chosen[0])
        if step:
            place = step_folder(self._folder, step)
            state = _state(job)
            with Translated(place):
                reader = Reader(place)
                reader.read_metadata()  # torch would wrap what is wrong with it beyond recognition
                dcp.load(state, storage_reader=reader, process_group=self._group)
            _restore(job, state)
        return step

    def _beside(self, state: dict[str, Any], place: Path) -> Future[Any]:
        """Copy the state and write the copy while this thread goes on."""
        how = AsyncCheckpointerType.PROCESS if self._mode == "async-process" else AsyncCheckpointerType.THREAD
        # As torch makes it by itself: given a writer alone, it would have that one copy, in another way.
        stager = DefaultStager(StagingOptions(False, False, False, False))
        saving: Any = dcp.async_save(
            state, checkpoint_id=place, storage_writer=self._writer(place), process_group=self._group,
            async_checkpointer_type=how, async_stager=stager,
        )  # fmt: skip
        saving.add_done_callback(lambda _: stager.close())
        return saving  # type: ignore[no-any-return]  # of two, what is returned for this stager

    def _complete(self, step: int) -> None:
        place = step_folder(self._folder, step)
        write_marker(place, self._rank, self._world_size)
        self._on_complete(Saved(step=step, size=part_size(place, self._rank), extra=self._memory.end()))
        if self._rank == 0:
            # Markers of other ranks may still be on their way: then one more is kept until the next save.
            prune(self._folder)


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
