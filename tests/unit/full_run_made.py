"""Full runs by hand: each rank is told what happens to it, and writes it down as the probe in its processes does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from made import conditions

from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.full_run import Checkpoints, Failure, FullRun, FullRunMeasurement, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess, ProbeStart

WALL_CLOCK = 1_796_000_000.0  # what the wall clock says when a monotonic one says 0
TOKENS = 1000  # of a step


class Rank:
    """One rank, second by second. Its launch begins `at` so many seconds of its host's clock."""

    def __init__(self, rank: int = 0, *, at: float = 0.0, world: int = 2) -> None:
        self.rank, self.world = rank, world
        self.began = self.now = at
        self.processes: list[tuple[ProbeStart, list[Line]]] = []

    def passes(self, seconds: float) -> Rank:
        self.now += seconds
        return self

    def starts(self, *, imports: float = 0.0) -> Rank:
        """A new process, which makes its probe so many seconds later."""
        start = ProbeStart(
            probe=1, rank=self.rank, world=self.world, attempt=len(self.processes), restart=len(self.processes),
            host="vm", clock="vm", pid=100 + len(self.processes), began=self.now, at=self.now + imports,
            wall=WALL_CLOCK + self.now + imports,
        )  # fmt: skip
        self.processes.append((start, []))
        return self.passes(imports)

    def span(self, what: Any, seconds: float, **more: Any) -> Rank:
        self._write(Line(what=what, at=self.now, seconds=seconds, **more))
        return self.passes(seconds)

    def mark(self, what: Any, step: int = 0, *, after: float = 0.0, **more: Any) -> Rank:
        self._write(Line(what=what, at=self.now + after, step=step, **more))
        return self

    def step(self, number: int, *, data: float = 0.25, seconds: float = 1.0) -> Rank:
        self.span("data", data, step=number - 1).span("step", seconds, step=number, tokens=TOKENS)
        return self.mark("loss", number, value=5.0 - number / 100)

    def steps(self, first: int, last: int, **each: float) -> Rank:
        for number in range(first, last + 1):
            self.step(number, **each)
        return self

    def saves(self, step: int, *, blocking: float = 0.5, then: float = 1.5, size: int = 0) -> Rank:
        """A save that blocks, and is complete so many seconds after that."""
        return self.span("save", blocking, step=step).mark("saved", step, after=then, value=size)

    def ready(self, *, launched: float = 2.0, imports: float = 1.0, builds: float = 2.0) -> Rank:
        """The first process of a run is launched, has its job, and finds no checkpoint to load in 0.5 s."""
        self.passes(launched).starts(imports=imports).passes(builds)
        return self.span("load", 0.5).mark("resumed", 0)

    def back(self, *, after: int, imports: float = 1.0, builds: float, loads: float = 1.0) -> Rank:
        """Another process, which goes on after a step."""
        return self.starts(imports=imports).passes(builds).span("load", loads).mark("resumed", after)

    def breaks(self, error: str = "RuntimeError", *, after: float, what: Any = "step", **more: Any) -> Rank:
        """A span ends by an exception."""
        return self.span(what, after, error=error, **more)

    def ends(self, error: str = "") -> Rank:
        return self.mark("end", error=error)

    def finishes(self) -> Rank:
        """0.25 s for the last save, 0.5 s to tidy up, 0.125 s until the agent has ended."""
        self.span("hook", 0.25, name="last save").mark("done")
        return self.passes(0.5).ends().passes(0.125)

    def run(self, **more: Any) -> RankRun:
        return RankRun(
            rank=self.rank, began=self.began, ended=self.now, data_digest="3fb1",
            processes=tuple(ProbedProcess(start=start, lines=tuple(lines)) for start, lines in self.processes), **more,
        )  # fmt: skip

    def _write(self, line: Line) -> None:
        self.processes[-1][1].append(line)


def quiet(rank: int = 0, steps: int = 10, *, at: float = 100.0, data: float = 0.25, step: float = 1.0) -> RankRun:
    """5 s until the job is built, 0.5 s of loading nothing, the steps, 0.875 s until the agent ends."""
    return Rank(rank, at=at).ready().steps(1, steps, data=data, seconds=step).finishes().run()


def full_run(*ranks: RankRun, steps: int = 10, failure: Failure | None = None, **under: Any) -> FullRun:
    here = {"nodes": 2, "ranks": len(ranks), "layout": "ddp", "workload": "9f2c41d07a55e310", **under}
    return FullRun(
        conditions=conditions(**here), ranks=ranks, steps=steps, tokens_per_step=TOKENS,
        checkpoints=Checkpoints(every=4), failure=failure,
    )  # fmt: skip


def measured(run: FullRun, **more: Any) -> FullRunMeasurement:
    beside = {"not_alone": "full_run.alone: false", "not_apart": "full_run.apart: false", **more}
    return FullRunMeasurement(conditions=run.conditions, run=run, started=0.0, seconds=1.0, **beside)


def quiet_run(**under: Any) -> FullRun:
    return full_run(quiet(0), quiet(1), **under)


KILLED = Failure(kind="kill_rank", step=7, target=1)


def broken_off(rank: int) -> Rank:
    """The first process until a failure strikes at 13.5 s: six steps and a save after the fourth."""
    return Rank(rank).ready().steps(1, 4).saves(4).steps(5, 6)


def goes_on(rank: Rank) -> Rank:
    """From step 5 to the end of ten, with a save after step 8."""
    return rank.steps(5, 8).saves(8, blocking=0.75, then=2.0).steps(9, 10).finishes()


def killed_run() -> FullRun:
    """Rank 1 dies at 13.5 s, when step 7 begins. Rank 0 waits for it from 13.75 s and sees it at 14.25 s.

    New processes begin at 15.75 s (rank 0) and 16.0 s (rank 1), have their job at 18.0 s and the checkpoint of step 4
    at 19.0 s; step 7 is done at 22.75 s.
    """
    survivor = broken_off(0).span("data", 0.25, step=6).breaks(after=0.5, step=7).passes(0.125).ends("RuntimeError")
    survivor.passes(15.75 - survivor.now).back(after=4, builds=1.25)
    victim = broken_off(1).mark("fault", 7, name="kill_rank").passes(2.5).back(after=4, builds=1.0)
    return full_run(goes_on(survivor).run(), goes_on(victim).run(), failure=KILLED)


def shifted(run: RankRun, by: float, *, clock: str = "vm", first: int = 0) -> RankRun:
    """The same with the clock of its host set `by` seconds ahead, from its `first` process on, and named `clock`."""
    processes = [
        replace(
            process,
            start=replace(process.start, began=process.start.began + by, at=process.start.at + by, clock=clock),
            lines=tuple(replace(line, at=line.at + by) for line in process.lines),
        ) if number >= first else process
        for number, process in enumerate(run.processes)
    ]  # fmt: skip
    began = run.began if first else run.began + by
    return replace(run, began=began, ended=run.ended + by, processes=tuple(processes))


def on_two_hosts(run: FullRun) -> FullRun:
    """The same on hosts whose clocks have nothing to do with each other."""
    first, *others = run.ranks
    return replace(run, ranks=(first, *(shifted(rank, 5000.0, clock="other") for rank in others)))


def edited(run: RankRun, change: Any) -> RankRun:
    """With every line replaced by what `change` makes of it; None leaves it out."""
    processes = [
        replace(process, lines=tuple(new for line in process.lines if (new := change(line)) is not None))
        for process in run.processes
    ]
    return replace(run, processes=tuple(processes))


def without(run: RankRun, what: str) -> RankRun:
    return edited(run, lambda line: None if line.what == what else line)


def ladders(own: dict[int, float], *, held: float, step: float, rounds: int = 12) -> tuple[tuple[RankLadder, ...], ...]:
    """A step taken apart, without noise: what each rank computes, the same where all wait for the slowest, the step."""
    rungs = [
        RankLadder(rank=rank, compute=(mine,) * 6, barrier=(held,) * 6, payload=(0.1,) * 6, step=(step,) * 6)
        for rank, mine in own.items()
    ]
    return (tuple(rungs),) * rounds
