"""One launch: the guards of all its nodes, started side by side, kept alive, and ended together."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from pathlib import Path

from pytest_clusterqual import __version__
from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.plan import GUARD, Launcher, LaunchPlan, guard_order
from pytest_clusterqual.launch.process import NodeProcess, how_it_ended


class Launch:
    """All guards of one launch: started side by side, ended together."""

    def __init__(self, launcher: Launcher, plan: LaunchPlan, *, secret: str, logs: Path) -> None:
        self.plan = plan
        self._launcher = launcher
        self.processes: list[NodeProcess] = []
        self._over = threading.Event()
        try:
            for node in plan.nodes:
                order = guard_order(
                    plan, node, secret=secret, python=launcher.python, version=__version__, heartbeat=launcher.heartbeat
                )
                log = logs / f"{plan.launch}-{node.name}.log"
                argv = launcher.command(node, (launcher.python, *GUARD), store=plan.store)
                self.processes.append(NodeProcess(node, argv, order, log))
        except BaseException:
            self.end()
            raise
        if launcher.heartbeat:
            threading.Thread(target=self._keep_alive, args=(launcher.heartbeat / 6,), daemon=True).start()

    def _keep_alive(self, every: float) -> None:
        """The session itself may be busy or idle for minutes; its guards must know that it lives."""
        while not self._over.wait(every):
            for process in self.processes:
                process.keep_alive()

    def ended(self) -> list[NodeProcess]:
        """The nodes whose guard is gone or has fallen silent."""
        return [process for process in self.processes if process.poll() is not None or process.silent]

    def not_there(self, nodes: Collection[str]) -> list[NodeProcess]:
        """Those of the named nodes whose guard has not even said hello."""
        return [p for p in self.processes if p.node.name in nodes and p.poll() is None and p.event("hello") is None]

    def check_machines(self) -> None:
        """Different nodes are different machines, unless one machine plays them all.

        Raises:
            LaunchError: names the nodes that are one.
        """
        if self._launcher.simulated:
            return
        seen: dict[tuple[str, str], str] = {}
        for process in self.processes:
            hello, began = process.event("hello"), process.event("began")
            if hello is None or began is None:
                continue
            machine = (hello.data["host"], began.data["address"])
            if machine in seen:
                raise LaunchError(
                    f"{seen[machine]} and {process.node.name} are one machine ({', '.join(machine)}): correct the list "
                    "of hosts",
                    culprits=[process.node.name],
                )
            seen[machine] = process.node.name

    def why(self, process: NodeProcess) -> str:
        """Why a guard ended or fell silent, as far as it, or the way to it, has told."""
        if failed := process.event("failed"):
            return str(failed.data["reason"])
        if ended := process.event("ended"):
            code = int(ended.data["code"])
            if ended.data["out_of_memory"]:
                return f"{process.node.name}: the kernel killed the torchrun agent for want of memory"
            if code < 0:
                return f"{process.node.name}: the torchrun agent {how_it_ended(code)}"
            return ""  # its own log tells why
        if said := self._launcher.explain(process.tail()):
            return f"{process.node.name}: {said}"
        if process.silent:
            return f"{process.node.name} has not been heard of for {time.monotonic() - process.heard:.0f} s"
        return ""

    def end(self, *, grace: float = 10.0) -> None:
        """End every process of the launch and wait until they are gone. May be called again."""
        self._over.set()
        processes, self.processes = self.processes, []
        for process in processes:
            process.release()
        deadline = time.monotonic() + grace
        for process in processes:
            process.reap(deadline)
