"""The supervisor of one rank, and the orders it takes from the session."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_clusterqual import channel as channel_module
from pytest_clusterqual.channel import Channel
from pytest_clusterqual.errors import ChannelError
from pytest_clusterqual.rank import reach
from pytest_clusterqual.rank.control_groups import out_of_memory_kills


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What the launcher and torchrun put into this process' environment.

    `address` and `port` are the store's, `node_address` is where other nodes meet this one. `rank` is
    torchrun's; a worker gets its own from the session, as it gets `device_index`.
    """

    address: str
    port: int
    secret: bytes
    launch: str
    node: str
    node_address: str
    cores: tuple[int, ...]
    device: str
    scratch: Path
    rank: int
    local_rank: int
    world_size: int
    nproc_per_node: int
    device_index: int

    @classmethod
    def from_environment(cls) -> Settings:
        env = os.environ
        address, _, port = env["CLUSTERQUAL_STORE"].rpartition(":")
        # Without a share of its own a node's ranks divide all cores that this process may use.
        cores = [int(core) for core in env["CLUSTERQUAL_CORES"].split(",") if core] or sorted(os.sched_getaffinity(0))
        local_rank, local_size = int(env["LOCAL_RANK"]), int(env["LOCAL_WORLD_SIZE"])
        return cls(
            address=address,
            port=int(port),
            secret=bytes.fromhex(env["CLUSTERQUAL_SECRET"]),
            launch=env["CLUSTERQUAL_LAUNCH"],
            node=env["CLUSTERQUAL_NODE"],
            node_address=env["CLUSTERQUAL_ADDRESS"],
            cores=share_of(cores, local_rank, local_size),
            device=env["CLUSTERQUAL_DEVICE"],
            scratch=Path(env["CLUSTERQUAL_SCRATCH"]),
            rank=int(env["RANK"]),
            local_rank=local_rank,
            world_size=int(env["WORLD_SIZE"]),
            nproc_per_node=local_size,
            device_index=local_rank,
        )


def share_of(cores: list[int], local_rank: int, local_size: int) -> tuple[int, ...]:
    """The cores of one of `local_size` ranks; with fewer cores than ranks they are dealt out in turn."""
    if len(cores) < local_size:
        return (cores[local_rank % len(cores)],) if cores else ()
    each = len(cores) // local_size
    return tuple(cores[local_rank * each : (local_rank + 1) * each])


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
        time.sleep(0.3)  # the dump is written by a signal handler: give it time, there is no reply
        stacks = self._stacks_file()
        text = stacks.read_text(errors="replace") if stacks.exists() else ""
        os.kill(self._worker, signal.SIGKILL)
        _pid, status = os.waitpid(self._worker, 0)
        self._ended(os.waitstatus_to_exitcode(status), state=state, stacks=text[-20_000:])


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
