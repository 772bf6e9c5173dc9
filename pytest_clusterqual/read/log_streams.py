"""Whose lines about steps are whose: those of one rank, or of all that print into one file without a name."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_clusterqual.model.log import LoggedStep, Place

# Seconds between two lines of one printer about the same time a step was done, of two printers, and of two printers
# that tell the same loss: clocks of hosts differ, and a step is not done again so soon with the same loss.
_TOGETHER, _APART, _SAME_LOSS_APART = 1.0, 5.0, 60.0
_SAME_SECONDS = 0.01
# Other clocks begin anew with the process or with a bar.
_OF_DAY = ("date", "time of day")


@dataclass(kw_only=True, slots=True)
class Stream:
    """Lines in the order of the file, of step `first` and more. `printers` is how many tell of each step, `mixed` that
    their clocks differ.

    `passes` are, by rising steps, the last that each of those printers may have told of in attempt number `attempt`,
    `again` the lines that went back in it without a clock to say why.
    """

    first: int
    printers: int
    mixed: bool
    restarts: list[int]  # lines of the file
    attempt: int = -1
    before: LoggedStep | None = None
    passes: list[int] = field(default_factory=list)
    again: list[LoggedStep] = field(default_factory=list)

    @classmethod
    def of(
        cls, lines: Sequence[LoggedStep], restarts: Sequence[Place], *, even: bool = False, one_rank: bool = False
    ) -> Stream:
        """Of `lines` that tell of each step as often as of the first before a restart, or `even` as of the second."""
        file, named = lines[0].place.file, one_rank or bool(lines[0].printer)
        mine = sorted(each.line for each in restarts if each.file == file)
        passed = (_passed(one, other) for one, other in itertools.pairwise(lines) if _has_clock(one, other))
        printers = _of_second(lines) if even and not named else _of_first(_begun(lines, mine), named)
        return cls(
            first=lines[0].step, restarts=mine, mixed=not named and any(seconds < -_TOGETHER for seconds in passed),
            printers=1 if one_rank else printers,
        )  # fmt: skip

    def is_restarted(self, step: LoggedStep) -> bool:
        """Whether a line since the one before speaks of a restart."""
        return self.before is not None and _has_restart(self.before, step, self.restarts)

    def goes_on(self, step: LoggedStep, steps: Mapping[int, LoggedStep]) -> bool:
        """Whether a line is of the same attempt as the one before it, of which `steps` are known."""
        before, known = self.before, steps.get(step.step)
        assert before is not None
        if step.step > before.step:
            return True
        if _has_clock(before, step):
            if known is None or apart(known, step) is None:
                return _comes_late(step, steps)
            return are_twins(known, step, mixed=self.mixed)
        if self.is_restarted(step):
            return False
        if apart(before, step) is not None:  # a bar that is drawn anew goes on, that of a new process begins at 0
            return not _began_anew(before, step) or (known is not None and are_twins(known, step))
        return step.step == before.step or self._may_be_of_another(step)

    def take(self, step: LoggedStep, attempt: int, known: LoggedStep | None) -> None:
        """`known` is what its attempt had about its step before."""
        if attempt != self.attempt:
            self.attempt, self.passes, self.again = attempt, [], []
        elif self.before and step.step <= self.before.step and _is_open(self.before, known, step):
            self.again.append(step)
        self.before = step
        if behind := bisect_left(self.passes, step.step):
            self.passes.pop(behind - 1)
        if behind or len(self.passes) < self.printers:
            insort(self.passes, step.step)

    def doubtful(self) -> LoggedStep | None:
        """The first line that might as well be of a step done again: where lines of printers alternate, none is."""
        alternate = len(self.again) >= len(self.passes) > 1
        return self.again[0] if self.again and not alternate else None

    def is_unclear(self, known: LoggedStep | None, step: LoggedStep) -> bool:
        """Whether a step that is taken for one done again may also be another rank's, or of another epoch."""
        if known is None or step.step != self.first:  # others would have begun there as well
            return False
        return not self.is_restarted(step) or (apart(known, step) is None and known.loss == step.loss)

    def _may_be_of_another(self, step: LoggedStep) -> bool:
        return self.passes[0] < step.step or len(self.passes) < self.printers


def name_of(step: LoggedStep) -> tuple[str, str]:
    """The file, and who of it printed the line."""
    return step.place.file, step.printer


def are_twins(one: LoggedStep, other: LoggedStep, *, mixed: bool = False) -> bool:
    """Whether two lines about the same step are about the same time it was done."""
    if (seconds := apart(one, other)) is not None:
        tick = one.moment.tick if one.moment else 0.0
        same_loss = mixed or (one.loss is not None and one.loss == other.loss)
        alone = name_of(one) == name_of(other) and not mixed
        most = _TOGETHER if alone else _SAME_LOSS_APART if same_loss else _APART
        return seconds <= max(most, 2 * tick)
    if one.loss is not None and other.loss is not None:
        return one.loss == other.loss or (math.isnan(one.loss) and math.isnan(other.loss))
    if one.seconds is not None and other.seconds is not None:
        return math.isclose(one.seconds, other.seconds, rel_tol=_SAME_SECONDS)
    return False


def apart(one: LoggedStep, other: LoggedStep) -> float | None:
    """Seconds between two lines, None where no clock of both tells."""
    if one.moment is None or other.moment is None or one.moment.clock != other.moment.clock:
        return None
    return abs(other.moment.at - one.moment.at)


def _begun(lines: Sequence[LoggedStep], restarts: Sequence[int]) -> Sequence[LoggedStep]:
    """Those before the first restart."""
    pairs = enumerate(itertools.pairwise(lines), 1)
    return lines[: next((end for end, (one, other) in pairs if _has_restart(one, other, restarts)), len(lines))]


def _of_first(lines: Sequence[LoggedStep], named: bool) -> int:
    """How many tell of the first step; a rank that goes back to it does it again, one without a name may be another."""
    same = [line.step == lines[0].step for line in lines]
    return sum(itertools.takewhile(bool, same) if named else same)


def _of_second(lines: Sequence[LoggedStep]) -> int:
    """How many tell of the second step; a line of the first may be lost where one block follows another."""
    counts = Counter(line.step for line in lines)
    return list(counts.values())[:2][-1]


def _has_restart(one: LoggedStep, other: LoggedStep, restarts: Sequence[int]) -> bool:
    low, high = one.place.line, other.place.line
    place = bisect_left(restarts, low)
    return low < high and place < len(restarts) and restarts[place] <= high


def _comes_late(step: LoggedStep, steps: Mapping[int, LoggedStep]) -> bool:
    """Whether a line was printed between those of the steps around it: it stood in another rank's buffer."""
    timed = [known for known in steps.values() if _has_clock(known, step)]
    one = max((known for known in timed if known.step < step.step), key=lambda known: known.step, default=None)
    other = min((known for known in timed if known.step > step.step), key=lambda known: known.step, default=None)
    if one is None or other is None:
        return False
    return _passed(one, step) >= -_TOGETHER and _passed(step, other) >= -_TOGETHER


def _has_clock(one: LoggedStep, other: LoggedStep) -> bool:
    return apart(one, other) is not None and one.moment is not None and one.moment.clock in _OF_DAY


def _passed(one: LoggedStep, other: LoggedStep) -> float:
    """Seconds from one line to the next of a stream, of the same clock; below 0 if that was printed earlier."""
    return other.moment.at - one.moment.at if one.moment and other.moment else 0.0


def _began_anew(one: LoggedStep, other: LoggedStep) -> bool:
    """Whether a clock that begins with a process or a bar did so between two lines."""
    return not _has_clock(one, other) and _passed(one, other) < -_APART


def _is_open(before: LoggedStep, known: LoggedStep | None, step: LoggedStep) -> bool:
    """Whether no clock and no figure tells what a line is that goes back behind the one before it."""
    if apart(before, step) is not None:
        return _began_anew(before, step)
    repeated = step.step == before.step and known is not None and _figures(known) == _figures(step)
    return step.over != 0 and not repeated


def _figures(step: LoggedStep) -> tuple[str, ...]:
    """As text, in which nan equals itself."""
    return tuple(map(str, (step.seconds, step.device_rate, step.loss)))
