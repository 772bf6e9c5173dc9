"""Runs under a probe, on a clock that the test sets: what the real probe writes, and where the time truly went."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from pytest_clusterqual import probe as probing
from pytest_clusterqual.judge.full_run.probe import Accounts
from pytest_clusterqual.model.probe import ProbeLedger
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.read.probe import FastLine, probe_files, probe_lines


class Clock:
    """Stands for the module `time`; a second passes when the test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_796_000_000.0 + self.now


class Killed(BaseException):
    """The process is no more."""


@dataclass
class Open:
    """A span of the script; `written` once its line is on the disk."""

    kind: str
    failed: bool = False
    written: bool = False
    worked: bool = False  # a whole step was in it
    began: int = 0  # ticks that had passed


@dataclass
class Tick:
    """Seconds that passed while `spans` were open, outermost first."""

    seconds: float
    spans: tuple[Open, ...]
    before_work: bool
    after_done: bool


@dataclass
class Process:
    """One process of a rank: call `passes` for time to pass. Killed after so many seconds, if at all."""

    probe: Probe
    clock: Clock
    kill_after: float | None = None
    ticks: list[Tick] = field(default_factory=list)
    steps: list[tuple[str, int]] = field(default_factory=list)  # ("step" or "resumed", number), in their order
    killed: bool = False
    signs: int = 0  # ticks that had passed when the last line was written
    closed: int = 0  # ticks that had passed when the last outermost span was written
    lived: int = 0  # ticks that had passed when a step was last written, or what was around one
    worked: int = sys.maxsize  # ticks that had passed when the first step or wait for data began that was written
    finished: bool = False
    _open: list[Open] = field(default_factory=list)
    _work: bool = False

    def passes(self, seconds: float) -> None:
        lived = sum(tick.seconds for tick in self.ticks)
        dies = self.kill_after is not None and lived + seconds > self.kill_after
        left = max((self.kill_after or 0.0) - lived, 0.0) if dies else seconds
        self.clock.now += left
        self.ticks.append(Tick(left, tuple(self._open), not self._work, self.finished))
        if dies:
            self.die()

    def die(self) -> None:
        """As SIGKILL does it: not one more line."""
        self.killed = True
        self.probe._let_go()
        raise Killed

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        number = self.probe._done + 1
        context = {
            "step": lambda: self.probe.step(tokens=100), "data": self.probe.data, "save": self.probe.checkpoint,
            "load": lambda: self.probe.checkpoint("load"), "compile": self.probe.compile,
        }.get(kind, lambda: self.probe.hook(kind))()  # fmt: skip
        mine = Open(kind, began=len(self.ticks))
        self._work = self._work or kind in ("step", "data")
        self._open.append(mine)
        try:
            with context:
                yield
            if kind == "step":
                self.steps.append(("step", number))
                for around in self._open:
                    around.worked = True
        except Exception:
            mine.failed = True
            raise
        finally:
            self._open.pop()
            mine.written = not self.killed
            if mine.written:
                self.signs = len(self.ticks)
                self.closed = self.closed if self._open else self.signs
                self.worked = min(self.worked, mine.began) if kind in ("step", "data") else self.worked
                self.lived = self.signs if mine.worked else self.lived

    def resumed(self, step: int) -> None:
        self.probe.resumed(step)
        self.steps.append(("resumed", step))
        self.signs = len(self.ticks)

    def done(self) -> None:
        self.probe.done()
        self.finished = True
        self.signs = len(self.ticks)


class Run:
    """Processes of one or more ranks on one clock, which go on one after the other."""

    def __init__(self, folder: Path, *, now: float = 1000.0) -> None:
        self.folder, self.clock = folder, Clock(now)
        self.processes: defaultdict[int, list[tuple[Process, float]]] = defaultdict(list)  # with the outage before
        self._ended: dict[int, float] = {}

    @contextmanager
    def process(
        self, rank: int = 0, *, imports: float = 0.0, kill_after: float | None = None, ends: bool = True
    ) -> Iterator[Process]:
        """Made `imports` seconds after the process began."""
        began = self.clock.now
        self.clock.now += imports
        with (
            mock.patch.object(probing, "time", self.clock),
            mock.patch.object(probing, "process_start", return_value=began),
            mock.patch.dict("os.environ", {"WORLD_SIZE": ""}),
        ):
            made = Process(Probe(self.folder, rank=rank), self.clock, kill_after)
            made.ticks.append(Tick(imports, (), before_work=True, after_done=False))
            made.signs = 1
            before = self._ended.get(rank, began)
            self.processes[rank].append((made, began - before))
            try:
                yield made
            except Killed:
                pass
            finally:
                self._ended[rank] = self.clock.now
                made.probe.close() if ends else made.probe._let_go()

    def ledger(self) -> ProbeLedger:
        return ledger(self.folder)


def ledger(folder: Path) -> ProbeLedger:
    """What the product makes of a folder."""
    accounts = Accounts()
    for rank, files in probe_files(folder, lambda _text: None).items():
        accounts.add(rank, ((file.start, probe_lines(file, lambda _text: None)) for file in files))
    return accounts.ledger()


def written(folder: Path, rank: int = 0, attempt: int = 0) -> list[FastLine]:
    torn: list[str] = []
    lines = list(probe_lines(probe_files(folder, torn.append)[rank][attempt], torn.append))
    assert torn == []
    return lines


def steps(process: Process, count: int, *, data: float = 0.25, step: float = 1.0) -> None:
    for _ in range(count):
        with process.span("data"):
            process.passes(data)
        with process.span("step"):
            process.passes(step)


def killed_run(folder: Path, *, ranks: int = 1) -> Run:
    """Killed amid step 8; goes on after step 5, and does 12."""
    run = Run(folder)
    for rank in range(ranks):
        run.clock.now = 1000.0
        with run.process(rank, imports=2.0) as process:
            process.passes(1.0)
            with process.span("compile"):
                process.passes(3.0)
            steps(process, 5)
            with process.span("save"):
                process.passes(0.5)
            steps(process, 2)
            with process.span("data"):
                process.passes(0.25)
            with process.span("step"):
                process.passes(0.75)
                process.die()
        run.clock.now += 4.0
        with run.process(rank, imports=2.5) as process:
            with process.span("load"):
                process.passes(0.5)
            process.resumed(5)
            steps(process, 7)
            with process.span("evaluation"):
                process.passes(1.5)
            process.passes(0.125)
            with process.span("save"):
                process.passes(0.75)
            process.done()
            process.passes(0.25)
    return run
