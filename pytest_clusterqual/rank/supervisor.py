"""The supervisor of one rank, and the orders it takes from the session."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_clusterqual import channel as channel_module
from pytest_clusterqual.channel import Channel
from pytest_clusterqual.errors import ChannelError
from pytest_clusterqual.rank import reach
from pytest_clusterqual.rank.control_groups import out_of_memory_kills
from pytest_clusterqual.rank.settings import Settings

_STACKS_SECONDS = 3.0  # a busy machine may keep a worker waiting; the session itself waits for 5 s


def serve() -> None:
    """Fork workers on the session's order until told to leave."""
    settings = Settings.from_environment()
    if settings.cores:
        os.sched_setaffinity(0, settings.cores)
    # Imported before the first fork, so that no worker pays for it again.
    from pytest_clusterqual.rank import collectives, memory, training, worker  # noqa: F401

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    store = channel_module.join(settings.address, settings.port)
    channel = Channel(store, settings.secret, settings.launch)
    channel.put(
        f"present/{settings.node}/{settings.local_rank}",
        {"rank": settings.rank, "world_size": settings.world_size, "nproc_per_node": settings.nproc_per_node},
    )
    Supervisor(settings, channel).loop()


class Supervisor:
    """Watches one worker; answers the orders start, end, leave and, for its node, reach."""

    def __init__(self, settings: Settings, channel: Channel) -> None:
        self._settings = settings
        self._channel = channel
        self._worker: int | None = None
        self._rank = settings.rank
        self._generation = ""
        self._out_of_memory_kills = 0

    def loop(self) -> None:
        order = 0
        while True:
            # Woken at once by a dying worker; orders are looked for often only while idle, for
            # every look costs the measuring rank's core a few microseconds.
            signal.sigtimedwait({signal.SIGCHLD}, 0.1 if self._worker else 0.01)
            self._reap()
            if not self._channel.has(f"control/{order}"):
                continue
            try:
                message = self._channel.get(f"control/{order}")
            except ChannelError as error:
                sys.exit(str(error))
            order += 1
            if message["do"] == "leave":
                self._end()
                return
            if message["do"] == "end":
                self._end()
            if message["do"] == "start":
                self._start(message)
            if message["do"] == "reach" and self._settings.local_rank == 0:
                here = self._settings
                reach.take_part(self._channel, message["name"], node=here.node, address=here.node_address)

    def _start(self, message: dict[str, Any]) -> None:
        from pytest_clusterqual.rank import worker

        self._generation = message["generation"]
        self._rank, device_index = message["ranks"][f"{self._settings.node}/{self._settings.local_rank}"]
        self._out_of_memory_kills = out_of_memory_kills()
        stacks = self._stacks_file()
        stacks.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            seated = replace(self._settings, rank=self._rank, device_index=device_index)
            worker.run(seated, self._generation, message, stacks)  # never returns
        self._worker = pid

    def _stacks_file(self) -> Path:
        return self._settings.scratch / f"stacks-{self._settings.local_rank}.txt"

    def _reap(self) -> None:
        if self._worker is None:
            return
        pid, status = os.waitpid(self._worker, os.WNOHANG)
        if pid:
            self._ended(os.waitstatus_to_exitcode(status), state="", stacks="")

    def _ended(self, code: int, *, state: str, stacks: str) -> None:
        self._worker = None
        self._channel.put(
            f"{self._generation}/exit/{self._rank}",
            {
                "code": code,
                "state": state,
                "stacks": stacks,
                "out_of_memory": code == -signal.SIGKILL and out_of_memory_kills() > self._out_of_memory_kills,
            },
        )
        self._channel.flag(f"{self._generation}/trouble")  # also after code 0: it may have left in the middle of a job

    def _end(self) -> None:
        """End the worker; one that does not leave by itself is asked for its stacks, then killed."""
        self._reap()
        if self._worker is None:
            return
        state = process_state(self._worker)
        os.kill(self._worker, signal.SIGUSR1)
        text = _dumped(self._stacks_file(), self._worker)
        os.kill(self._worker, signal.SIGKILL)
        _pid, status = os.waitpid(self._worker, 0)
        self._ended(os.waitstatus_to_exitcode(status), state=state, stacks=text[-20_000:])


def _dumped(stacks: Path, worker: int) -> str:
    """The stacks that a signal handler of `worker` writes: there is no reply, they are whole once they grow no more.

    Empty of a process that is stopped, or has ended: it writes none.
    """
    deadline = time.monotonic() + _STACKS_SECONDS
    text = before = ""
    while (not text or text != before) and time.monotonic() < deadline and process_state(worker)[:1] not in ("T", "Z"):
        time.sleep(0.1)
        before, text = text, stacks.read_text(errors="replace") if stacks.exists() else ""
    return text


def process_state(pid: int) -> str:
    """The kernel's word for what a process does, e.g. ``S (sleeping)`` or ``T (stopped)``."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next(line.partition(":")[2].strip() for line in status if line.startswith("State:"))
    except (OSError, StopIteration):
        return ""


def train() -> None:
    """One attempt of the full run: the process group comes from torchrun's own environment."""
    from pytest_clusterqual.rank import worker

    worker.train(Settings.from_environment())
