"""Failures on purpose: what each kind does to the ranks that it hits."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.rank.checkpoint_storage import Writer
from pytest_clusterqual.rank.training import meet

if TYPE_CHECKING:
    from pytest_clusterqual.rank.jobs import Context


class Striker:
    """What is to fail in one run, and does so once. All ranks call each method alike.

    `announce` is called on the ranks that are hit before a failure that ends the whole launch.
    """

    def __init__(
        self, ctx: Context, probe: Probe, failure: Failure | None, announce: Callable[[], None] = lambda: None
    ) -> None:
        self._ctx = ctx
        self._probe = probe
        self._failure = failure
        self._announce = announce
        self._broken_storage = False

    def before_step(self, step: int) -> None:
        """Strike if this is the step; a save that is to fail is waited for.

        Raises:
            RuntimeError: this rank is to raise one.
        """
        failure = self._failure
        if failure is None or step != failure.step or failure.kind == "fail_save":
            return
        self._failure = None
        if failure.kind == "kill_node":
            self._kill_node(failure.target)
        elif failure.kind == "sigterm":
            self._end_job()
        elif failure.target == self._ctx.global_rank:
            self._probe.fault(failure.kind)
            if failure.kind == "raise_rank":
                raise RuntimeError(f"rank {failure.target} raises this on purpose: full_run.failure")
            os.kill(os.getpid(), signal.SIGKILL if failure.kind == "kill_rank" else signal.SIGSTOP)

    def before_save(self, step: int) -> None:
        """See to it that this rank cannot write this checkpoint, if that is meant."""
        failure = self._failure
        if failure is None or failure.kind != "fail_save" or step < failure.step:
            return
        self._failure = None
        if failure.target == self._ctx.global_rank:
            self._broken_storage = True
            self._probe.fault(failure.kind)

    def writer(self, place: Path) -> Writer:
        """What writes this rank's part of a checkpoint into `place`."""
        return _BrokenWriter(place) if self._broken_storage else Writer(place)

    def _kill_node(self, index: int) -> None:
        """Kill every process of one node; nodes count in the order of ranks."""
        hit = self._ctx.node == list(dict.fromkeys(self._ctx.nodes))[index]
        meet(self._ctx)
        if hit:
            self._probe.fault("kill_node")
            self._announce()
        meet(self._ctx)  # with their agent the kernel kills all its ranks: each must have written it down before
        if hit:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def _end_job(self) -> None:
        """What a scheduler does: SIGTERM to the agent of every node, which passes it on to its ranks."""
        self._probe.fault("sigterm")
        self._announce()
        if self._ctx.local_rank == 0:
            os.kill(os.getppid(), signal.SIGTERM)


class _BrokenWriter(Writer):
    """Its storage takes no data, as the kernel tells it of a disk or a mount that has gone bad."""

    def write_data(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise OSError(errno.EIO, f"{os.strerror(errno.EIO)}, on purpose: full_run.failure", str(self.path))
