"""One process of a probed run, folded line by line: its seconds by state, its steps, its end."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from pytest_clusterqual.judge.full_run.stages import Reached, Stages
from pytest_clusterqual.judge.statistics import median, steady_start
from pytest_clusterqual.model.probe import HOOK, ProbeLine, ProbeStart

# The first process of a rank pays for what a later one pays for again.
_AGAIN = {"init": "rendezvous", "load": "reload", "warm-up": "re-warm-up"}
_SPANS = {"data": "data", "save": "checkpoint", "load": "load", "compile": "warm-up"}
_MARKS = {"resumed", "stage", "loss", "saved", "extra", "fault", "done", "end"}
_EARLY = 1000  # steps among which warm-up is looked for
WARMING = 100  # steps: what lasts longer is a change of the run, and to be told as such


@dataclass(frozen=True, kw_only=True, slots=True)
class DoneStep:
    """A step that ended well, of `world` ranks; `seconds` are without what was inside it, and without warm-up.

    `reached` has its parts as they were, and `warming` says that warm-up is in them.
    """

    number: int
    world: int
    seconds: float
    tokens: int | None
    sequences: int | None
    reached: Reached
    warming: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """Training goes on after step `number`."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A failure that ended a process, in seconds of its clock: when it struck, and when it was noticed."""

    struck: float
    known: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Broken:
    """A span that ended by an exception: its own seconds are in `state`, those `inside` in other ones."""

    at: float
    state: str
    own: float
    inside: float


class Life:
    """Add every line of a process in their order, then close it.

    What no outermost span of the main thread covers is init before the first step or batch, teardown after the work
    was done or before the process ended by itself, and else left to the residual.
    """

    def __init__(self, start: ProbeStart, *, again: bool) -> None:
        self.start = start
        self.last = start.at  # the last sign of life, seconds of the clock
        self.end = ""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.background: defaultdict[str, float] = defaultdict(float)
        self.saves: defaultdict[int, float] = defaultdict(float)  # step -> seconds
        self.completions: dict[int, float] = {}  # step -> seconds from the beginning of its save until it counts
        self.saved = self.failed_saves = False  # a save ended well, one did not
        self.anew = False  # a step came again, and nothing said that training goes back
        self._save_began: dict[int, float] = {}
        self.background_steps = 0
        self.uncovered: defaultdict[tuple[str, str], float] = defaultdict(float)  # between which spans -> seconds
        self._again = again
        self._stages = Stages()
        self._history: list[DoneStep | Resumed] = []
        self._position = start.began  # where the last outermost span ended
        self._before = "the start"  # what that span was
        self._tidied = 0.0  # seconds of teardown since done()
        self._lived = start.began  # where the last outermost span ended, or the last step of any
        self._loose = 0.0  # spans since then whose outer span was never written
        self._inner = 0.0  # such spans since the last outermost one
        self._init = 0.0  # seconds since then until work began, less such spans
        self._number: int | None = None  # of the last step since training began or went on
        self._work_began = math.inf
        self._done_at = math.inf
        self._broken: _Broken | None = None  # the last outermost span, if it failed

    def add(self, line: ProbeLine) -> None:
        """Take one more line."""
        self.last = max(self.last, line.at + line.seconds)
        if line.what in _MARKS:
            self._mark(line)
        elif line.background:
            self.background[_name(line)] += _own(line)
            self.background_steps += line.what == "step"
        else:
            self._span(line)

    @property
    def unclosed(self) -> float:
        """Seconds from the last span or step to the last sign of life, less the spans that are written of them."""
        return max(self.last - self._lived - self._loose, 0.0)

    @property
    def dead_from(self) -> float:
        """When the work began that a failure has undone: the last span that failed, or what followed the last one."""
        return self._lived if self._broken is None else self._broken.at

    @property
    def told(self) -> float:
        """Seconds since `dead_from` that are charged already: spans inside of one that failed or was never written."""
        return self._loose + (0.0 if self._broken is None else self._broken.inside)

    def close(self, outage: Outage | None = None) -> list[DoneStep | Resumed]:
        """Charge warm-up and the end; what remains are the steps to keep or to lose, in the order they were done.

        With an `outage` the time since `dead_from` is charged by whoever knows when the next process began.
        """
        if outage is not None and self._broken is not None:
            self._charge(self._broken.state, -self._broken.own)
        elif outage is None and self.end:
            self._idle(self.last, ending=True)
        if self._work_began <= self._lived:
            self._charge("init", max(self._init, 0.0))
        early = [(at, step) for at, step in enumerate(self._history) if isinstance(step, DoneStep)][:_EARLY]
        seconds = [step.seconds for _, step in early]
        warm = steady_start(seconds)
        usual = median(seconds[warm:])
        for place, (at, step) in enumerate(early[:warm]):
            self._charge("warm-up", max(step.seconds - usual, 0.0))
            self._history[at] = replace(step, seconds=min(step.seconds, usual), warming=place < WARMING)
        return self._history

    def _mark(self, line: ProbeLine) -> None:
        if line.what == "resumed":
            self._history.append(Resumed(number=line.step))
            self._number = None
        elif line.what == "done":
            self._done_at = line.at
            self.end = "done"
        elif line.what == "stage":
            self._stages.add(line)
        elif line.what == "saved" and line.step in self._save_began:
            self.completions[line.step] = line.at - self._save_began[line.step]
        elif line.what == "end" and (not self.end or line.error):
            self.end = line.error or "ended"

    def _span(self, line: ProbeLine) -> None:
        if line.what in ("step", "data") and line.at < self._work_began:
            self._work_began = line.at
            self._init = line.at - self._position - (self._inner - (line.seconds - _own(line)))
        if line.what == "step" and line.at >= self._done_at:
            self._undo_done()
        if not line.nested:
            kind = _name(line)
            self._idle(line.at, following=kind)
            self._before = kind
            self._position = max(self._position, line.at + line.seconds)
            self._inner = self._init = 0.0
        else:
            self._inner += _own(line)
        # What is around a step was no work in flight then, though it may be open for ever, such as an epoch.
        if not line.nested or (line.what == "step" and not line.error) or line.at < self._lived:
            self._lived = max(self._lived, line.at + line.seconds)
            self._loose = 0.0
        else:
            self._loose += _own(line)
        state = "" if line.what == "step" and not line.error else _state(line)
        if state:
            self._charge(state, _own(line))
            self._stages.failed() if state == "failed" else self._stages.add(line)
        else:
            self._history.append(self._step(line))
        if not line.nested:
            self._broken = _broken(line, state) if line.error else None
        if line.what == "save":
            self._save(line)

    def _save(self, line: ProbeLine) -> None:
        if line.error:
            self.failed_saves = True
            return
        self.saves[line.step] += _own(line)
        self._save_began.setdefault(line.step, line.at)
        self.saved = True

    def _step(self, line: ProbeLine) -> DoneStep:
        self.anew = self.anew or (self._number is not None and line.step <= self._number)
        self._number = line.step
        return DoneStep(
            number=line.step,
            world=self.start.world,
            seconds=_own(line),
            tokens=line.tokens,
            sequences=line.sequences,
            reached=self._stages.close(line),
        )

    def _idle(self, until: float, *, ending: bool = False, following: str = "the end") -> None:
        """Charge the time since the last outermost span, or remember where it was, if it is in no state."""
        since = self._lived + self._loose if ending else self._position
        before_done = max(min(until, self._done_at) - since, 0.0)
        if until <= self._work_began:
            self._charge("init", before_done)
        elif ending and self._done_at == math.inf:
            self._charge("teardown", before_done)
        else:
            self.uncovered[self._before, following] += before_done
        tidied = max(until - max(self._position, self._done_at), 0.0)
        self._charge("teardown", tidied)
        self._tidied += tidied

    def _undo_done(self) -> None:
        """A step follows: the work was not done yet."""
        self._charge("teardown", -self._tidied)
        self.uncovered[self._before, "step"] += self._tidied
        self._done_at, self._tidied, self.end = math.inf, 0.0, ""

    def _charge(self, state: str, seconds: float) -> None:
        self.seconds[_AGAIN.get(state, state) if self._again else state] += seconds


def _broken(line: ProbeLine, state: str) -> _Broken:
    return _Broken(at=line.at, state=state, own=_own(line), inside=line.seconds - _own(line))


def _state(line: ProbeLine) -> str:
    return "failed" if line.what == "step" else _SPANS.get(line.what) or _name(line)


def _name(line: ProbeLine) -> str:
    return HOOK + line.name if line.what == "hook" else line.what


def _own(line: ProbeLine) -> float:
    return line.seconds if line.own is None else line.own
