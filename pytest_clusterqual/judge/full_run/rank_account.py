"""One rank of a probed run: its processes one after the other, what it lost between them, which steps it kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.life import DoneStep, Life, Outage, Resumed
from pytest_clusterqual.model.probe import HOOK, STATES, ProbeLine, ProbeStart, RankLedger

Name = TypeVar("Name")
START_RESOLUTION = 0.05  # seconds: the system tells a process's start in ticks
WALL_CLOCKS_APART = 5.0  # seconds: what those of two hosts are trusted to
RESIDUAL_SHARE, RESIDUAL_SECONDS = 0.005, 1.0
# What to tell of a rank: what was seen, and after the colon what to do about it.
BACKGROUND_STEPS = (
    "steps were done by another thread than the one that made the probe, and are not accounted: make the probe where "
    "the training loop runs"
)
OTHER_CLOCK = (
    "went on under another clock (another host, or after a boot), and the outage between is as right as the wall "
    "clocks: are those of all hosts set by one time server?"
)
NEVER_RESUMED = (
    "began with the first step again and never called resumed(), so that all steps before count as lost: call "
    "probe.resumed(step) where a checkpoint is loaded; a new run needs a new folder"
)
FROM_START = (
    "went on after step 0 although it had saved or finished, so that all steps before count as lost: was its "
    "checkpoint found? a new run needs a new folder"
)
ANEW = (
    "a process did steps of one number more than once and had not called resumed(), so that all but the last of them "
    "count as lost: number each optimizer step once, not each microbatch and not anew in each epoch; or call "
    "probe.resumed(step) where training goes back"
)
FAILED_SAVES = (
    "a save ended by an exception, whose time is in checkpoint but which made none: what does the script's log say?"
)
NO_END = "the last process wrote no end: it was killed, or is still running"
RESIDUAL = (
    "more than 0.5 % and 1 s are in no state, see residual: put what the loop does between steps into probe.hook(...)"
)
TWICE = (
    "more than 0.5 % and 1 s are in two states, see residual, as no probe writes it: were its files changed, or put "
    "together from two runs?"
)


class RankAccount:
    """Add every process of a rank from first to last, then `close`.

    `kept` are then its steps that count, with times of the clock of its last process; `saves` the seconds that each
    save blocked, by process and step; `worlds` the sizes it was part of; `warnings` what to tell of it.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.kept: list[DoneStep] = []
        self.saves: dict[tuple[int, int], float] = {}
        self.completions: dict[tuple[int, int], float] = {}
        self.worlds: set[int] = set()
        self.warnings: dict[str, None] = {}
        self._lost: list[DoneStep] = []
        self._lives: list[Life] = []
        self._wall = 0.0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._background: defaultdict[str, float] = defaultdict(float)
        self._uncovered: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._outage: Outage | None = None  # what ended the last process, if that is known
        self._resumed: int | None = None  # where the run stands, if no step has followed yet

    def add(
        self,
        start: ProbeStart,
        lines: Iterable[ProbeLine],
        *,
        outage: Outage | None = None,
        until: float | None = None,
    ) -> None:
        """Account one process, which ended by the `outage`, or whose launch went on `until` then, seconds of its clock.

        Raises:
            MeasurementError: it began while the one before it was still there.
        """
        life = Life(start, again=bool(self._lives))
        for line in lines:
            life.add(line)
        if until is not None:
            life.last = max(life.last, until)
        history = life.close(outage)
        if self._lives:
            self._between(self._lives[-1], life)
        self._outage = outage
        if self.kept and history:
            self._began_anew(history[0])
        if life.background_steps:
            self._warn(BACKGROUND_STEPS)
        if life.anew:
            self._warn(ANEW)
        if life.failed_saves:
            self._warn(FAILED_SAVES)
        self._wall += life.last - start.began
        _add_up(self._seconds, life.seconds)
        _add_up(self._background, life.background)
        _add_up(self._uncovered, life.uncovered)
        self.saves |= {(len(self._lives), step): seconds for step, seconds in life.saves.items()}
        self.completions |= {(len(self._lives), step): seconds for step, seconds in life.completions.items()}
        self.worlds |= {start.world} - {0}
        self._lives.append(life)
        self._replay(history)

    def roll_back(self, to: int) -> None:
        """What was done after step `to` is lost."""
        while self.kept and self.kept[-1].number > to:
            self._lost.append(self.kept.pop())

    def close(self) -> RankLedger:
        """The whole account, after at least one process."""
        if self._resumed is not None:
            self.roll_back(self._resumed)
        if self._outage is not None:
            self._charge_outage(self._outage, self._lives[-1], self._lives[-1].last)
        self._seconds["kept"] = sum(step.seconds for step in self.kept)
        self._seconds["lost"] += sum(step.seconds for step in self._lost)
        hooks = sorted(state for state in self._seconds if state.startswith(HOOK))
        seconds = {state: self._seconds[state] for state in (*STATES[:-2], *hooks, STATES[-2])}
        residual = self._wall - sum(seconds.values())
        if abs(residual) > max(RESIDUAL_SHARE * self._wall, RESIDUAL_SECONDS):
            self._warn(RESIDUAL + self.mostly(residual) if residual > 0 else TWICE)
        if not self._lives[-1].end:
            self._warn(NO_END)
        busy = seconds["data"] + seconds["kept"] + seconds["lost"]
        return RankLedger(
            rank=self.rank,
            hosts=tuple(dict.fromkeys(life.start.host for life in self._lives)),
            wall=self._wall,
            seconds={**seconds, "residual": residual},
            kept=len(self.kept),
            lost=len(self._lost),
            data_stall=seconds["data"] / busy if busy else None,
            background=dict(self._background),
            ends=tuple(life.end for life in self._lives),
        )

    def mostly(self, residual: float) -> str:
        """Between which spans most of the residual lies, as the end of a sentence; empty where that is nowhere."""
        (before, after), seconds = max(self._uncovered.items(), key=lambda each: each[1], default=(("", ""), 0.0))
        return f"; most of them lie between {before} and {after}" if seconds > residual / 2 > 0 else ""

    def _began_anew(self, first: DoneStep | Resumed) -> None:
        """Tell of a process that begins where the run once began; before the first save there is nowhere else."""
        begin = self.kept[0].number
        if isinstance(first, DoneStep):
            if first.number <= begin:
                self._warn(NEVER_RESUMED)
        elif first.number < begin and any(life.saved or life.end in ("done", "ended") for life in self._lives):
            self._warn(FROM_START)

    def _between(self, before: Life, after: Life) -> None:
        """From the last sign of life of one process to the start of the next."""
        gap, trusted, by = after.start.began - before.last, START_RESOLUTION, ""
        if before.start.clock != after.start.clock:
            ahead = (after.start.wall - after.start.at) - (before.start.wall - before.start.at)
            gap, trusted, by = gap + ahead, WALL_CLOCKS_APART, ", by the wall clocks of their hosts,"
            for step in self.kept:
                step.reached.at -= ahead
            self._warn(OTHER_CLOCK)
        if gap < -trusted:
            raise MeasurementError(
                f"rank {self.rank}: attempt {after.start.attempt} on {after.start.host} began {-gap:.3g} s{by} before "
                f"attempt {before.start.attempt} on {before.start.host} had ended: one folder is for one run, and each "
                "process of it needs its own rank, from its launcher (RANK) or as Probe(rank=...)"
            )
        self._wall += max(gap, 0.0)
        if self._outage is not None:
            self._charge_outage(self._outage, before, before.last + max(gap, 0.0))
            return
        # A process that was killed wrote nothing of the spans that were open.
        self._seconds["outage"] += max(gap, 0.0) + (0.0 if before.end else before.unclosed)

    def _charge_outage(self, outage: Outage, life: Life, begun: float) -> None:
        """From the work in flight, which is lost, to when the next process began, seconds of the clock of `life`."""
        struck = min(max(outage.struck, life.dead_from), begun)
        known = min(max(outage.known, struck), begun)
        told = life.told
        for state, since, until in (
            ("lost", life.dead_from, struck), ("detection", struck, known), ("restart", known, begun),
        ):  # fmt: skip
            self._seconds[state] += max(until - since - told, 0.0)
            told = max(told - (until - since), 0.0)

    def _replay(self, history: Sequence[DoneStep | Resumed]) -> None:
        """Take the steps in the order they were done. One that comes again makes lost what it and later ones were.

        A resumption alone loses nothing yet: a later one may go on from a newer checkpoint.
        """
        for event in history:
            if isinstance(event, Resumed):
                self._resumed = event.number
            else:
                self._resumed = None
                self.roll_back(event.number - 1)
                self.kept.append(event)

    def _warn(self, text: str) -> None:
        self.warnings[text] = None


def _add_up(whole: defaultdict[Name, float], part: dict[Name, float]) -> None:
    for name, seconds in part.items():
        whole[name] += seconds
