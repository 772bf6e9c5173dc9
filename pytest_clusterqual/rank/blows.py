"""Failures from outside, done to a command that knows nothing of them, and the watch on one that hangs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.command import BESIDE, PROBES
from pytest_clusterqual.model.full_run import Failure
from pytest_clusterqual.rank.descendants import kill_tree, stop_tree
from pytest_clusterqual.rank.settings import Settings


class Blow:
    """A failure that is due once a rank's own lines show that the step before it is done.

    `lines` is what this rank's probe writes. What hits a whole node is done by the process beside its first rank, and
    stands in the lines of all its ranks.
    """

    def __init__(self, order: dict[str, Any], folder: Path, node: str, lines: Path) -> None:
        self._failure = from_json(Failure, order["failure"], where="failure")
        self._hang_timeout = float(order["hang_timeout"])
        self._folder, self._node, self._lines, self._read = folder, node, lines, 0
        self._stopped_at: float | None = None

    @classmethod
    def planned(cls, order: dict[str, Any], folder: Path, settings: Settings, name: str) -> Blow | None:
        """The blow that is meant for this process, by its `name`: in a first attempt only."""
        if order["failure"] is None or not name.endswith("attempt0"):
            return None
        blow = cls(order, folder, settings.node, folder / PROBES / f"{name}.jsonl")
        kind, target = blow._failure.kind, blow._failure.target
        if kind == "sigterm":
            meant = settings.local_rank == 0
        elif kind == "kill_node":
            meant = settings.local_rank == 0 and settings.node == order["victim"]
        else:
            meant = settings.rank == target
        return blow if meant else None

    def over(self, child: int) -> bool:
        """Look at the steps done so far, and strike if it is time; a rank that hangs is killed once it is found."""
        if self._stopped_at is not None:  # nothing was heard of it since
            if late := time.monotonic() - self._stopped_at >= self._hang_timeout:
                kill_tree(child)
            return late
        done = self._steps_done()
        if done < self._failure.step - 1 or not done:
            return False
        return self._strike(child, done + 1)

    def _steps_done(self) -> int:
        try:
            with self._lines.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return 0  # the script has not made its probe yet
        if not whole:
            return 0
        self._read += len(whole) + 1
        return max(map(_step_done, whole.split(b"\n")))

    def _strike(self, child: int, step: int) -> bool:
        kind = self._failure.kind
        everybody = kind in ("kill_node", "sigterm")
        fault = {"what": "fault", "at": time.monotonic(), "step": step, "name": kind}
        for lines in self._of_node() if everybody else [self._lines]:
            with lines.open("ab") as file:
                file.write(json.dumps(fault).encode() + b"\n")
        if everybody:
            os.kill(os.getppid(), signal.SIGKILL if kind == "kill_node" else signal.SIGTERM)
            return True
        if kind == "hang_rank":
            self._stopped_at = time.monotonic()
            stop_tree(child)
            return False
        kill_tree(child)
        return True

    def _of_node(self) -> Iterator[Path]:
        """What the probes of this node's ranks write."""
        for path in (self._folder / BESIDE).glob("rank*-attempt0.start.json"):
            if json.loads(path.read_text(encoding="utf-8"))["node"] == self._node:
                yield self._folder / PROBES / path.name.replace(".start.json", ".jsonl")


def _step_done(line: bytes) -> int:
    """The step that a line of a probe ends; 0 if it is another line."""
    told = json.loads(line)
    return int(told["step"]) if told.get("what") == "step" and not told.get("error") else 0


def end_in_order(child: int) -> None:
    """Have it end in order; one that is stopped cannot, and would be waited for."""
    os.kill(child, signal.SIGTERM)
    status = Path(f"/proc/{child}/status").read_text(encoding="utf-8")
    if "\nState:\tT" in status:
        kill_tree(child)
