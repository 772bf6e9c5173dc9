"""The one place where the session's processes are started and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan, NodePlan, environment, torchrun

_AGENT_SAW = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")


@dataclass(frozen=True, slots=True)
class Event:
    """Something a guard said: began, ended, failed; `data` as it was sent."""

    name: str
    data: dict[str, Any]


class NodeProcess:
    """The guard of one node, as the session sees it: a lifeline, events and a log file."""

    def __init__(self, node: NodePlan, argv: Sequence[str], order: dict[str, Any], log: Path) -> None:
        self.node = node
        self.log = log
        self._buffer = b""
        self.events: list[Event] = []
        try:
            with log.open("wb") as output:
                # A session of its own: Ctrl-C in the terminal reaches pytest alone, which ends the rest in order.
                self._process = subprocess.Popen(
                    list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise LaunchError(f"{node.name}: cannot start {argv[0]}: {error.strerror}") from None
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it is gone already; poll() and its log tell the rest

    def poll(self) -> int | None:
        """Read what the guard said; return its exit code once it has ended."""
        code = self._process.poll()
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read(65536):
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                data = json.loads(line)
                self.events.append(Event(data.pop("event"), data))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # not the guard's word: a login banner, say; it is in nobody's way
        return code

    def event(self, name: str) -> Event | None:
        """The first event of that name so far."""
        return next((event for event in self.events if event.name == name), None)

    def agent_saw(self) -> dict[int, int]:
        """local rank -> exit code of the ranks whose end the torchrun agent noted in its log."""
        found = _AGENT_SAW.findall(self.tail(200_000))
        return {int(local_rank): int(code) for code, local_rank, _pid in found}

    def tail(self, size: int = 2000) -> str:
        """The end of what agent and ranks printed on this node."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - size))
            return file.read().decode(errors="replace")

    def release(self) -> None:
        """Cut the lifeline: the guard kills what is below it and leaves."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass

    def reap(self, deadline: float) -> None:
        """Wait until `deadline` (monotonic) for the guard to leave, then kill it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.poll()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Launch:
    """All guards of one launch: started side by side, ended together."""

    def __init__(self, launcher: Launcher, plan: LaunchPlan, *, secret: str, python: str, logs: Path) -> None:
        self.plan = plan
        self.processes: list[NodeProcess] = []
        try:
            for node in plan.nodes:
                order = {
                    "argv": torchrun(plan, node, python),
                    "environment": environment(plan, node, secret=secret),
                    "cores": node.cores,
                }
                log = logs / f"{plan.launch}-{node.name}.log"
                self.processes.append(NodeProcess(node, launcher.command(node), order, log))
        except BaseException:
            self.end()
            raise

    def ended(self) -> list[NodeProcess]:
        """The nodes whose agent is gone."""
        return [process for process in self.processes if process.poll() is not None]

    def end(self, *, grace: float = 10.0) -> None:
        """End every process of the launch and wait until they are gone. May be called again."""
        processes, self.processes = self.processes, []
        for process in processes:
            process.release()
        deadline = time.monotonic() + grace
        for process in processes:
            process.reap(deadline)
