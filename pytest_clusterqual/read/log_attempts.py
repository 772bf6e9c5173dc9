"""Steps in the order of the lines, sorted into attempts: copies of other ranks once, steps done again twice."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_clusterqual.model.log import LoggedStep
from pytest_clusterqual.read.log_lines import SINCE_BEFORE, after

# Seconds between two lines of one printer about the same time a step was done, of two printers, and of two printers
# that tell the same loss: clocks of hosts differ, and a step is not done again so soon with the same loss.
_TOGETHER, _APART, _SAME_LOSS_APART = 1.0, 5.0, 60.0
_SAME_SECONDS = 0.01


@dataclass(kw_only=True, slots=True)
class _Attempt:
    steps: dict[int, LoggedStep] = field(default_factory=dict)
    # (file, printer) -> the last step it told of
    last: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, step: LoggedStep) -> None:
        known = self.steps.get(step.step)
        self.steps[step.step] = step if known is None else _merged(known, step)
        self.last[_stream(step)] = step.step


def attempts(steps: Sequence[LoggedStep]) -> tuple[tuple[LoggedStep, ...], ...]:
    """Each attempt by rising steps; of several ranks' lines about a step the slowest counts."""
    found: list[_Attempt] = []
    where: dict[tuple[str, str], int] = {}  # stream -> its attempt
    for step in _in_days(steps):
        stream = _stream(step)
        if stream not in where:
            where[stream] = _begins(found, step)
        elif step.step <= found[where[stream]].last[stream] and not _again(found[where[stream]], step):
            where[stream] = _goes_back(found, where[stream], step)
        if where[stream] == len(found):
            found.append(_Attempt())
        found[where[stream]].add(step)
    return tuple(_resolved([attempt.steps[number] for number in sorted(attempt.steps)]) for attempt in found)


def _begins(found: Sequence[_Attempt], step: LoggedStep) -> int:
    """The attempt that a rank or file joins with its first step."""
    for place, attempt in enumerate(found):
        if (known := attempt.steps.get(step.step)) and _twins(known, step):
            return place
    if not found or all(file != step.place.file for file, _printer in found[-1].last):
        return len(found)
    known = found[-1].steps.get(step.step)
    apart = known is not None and _apart(known, step) is not None
    return len(found) if apart else len(found) - 1


def _goes_back(found: Sequence[_Attempt], place: int, step: LoggedStep) -> int:
    """The attempt after `place`: one that another rank has begun already, or a new one."""
    for later in range(place + 1, len(found)):
        if (known := found[later].steps.get(step.step)) and _twins(known, step):
            return later
    return place + 1 if place + 1 < len(found) and step.step not in found[place + 1].steps else len(found)


def _again(attempt: _Attempt, step: LoggedStep) -> bool:
    """Whether it is one more line about a step of this attempt, not the step done again."""
    known = attempt.steps.get(step.step)
    if known is None:
        return False
    apart = _apart(known, step)
    return _twins(known, step) or (apart is None and step.step == attempt.last[_stream(step)])


def _twins(one: LoggedStep, other: LoggedStep) -> bool:
    """Whether two lines about the same step are about the same time it was done."""
    apart = _apart(one, other)
    if apart is not None:
        tick = one.moment.tick if one.moment else 0.0
        same_loss = one.loss is not None and one.loss == other.loss
        others = _SAME_LOSS_APART if same_loss else _APART
        return apart <= max(_TOGETHER if _stream(one) == _stream(other) else others, 2 * tick)
    if _stream(one) == _stream(other):  # a step done again may have the same loss, hardly the same time
        return _figures(one) == _figures(other)
    if one.loss is not None and other.loss is not None:
        return one.loss == other.loss or (math.isnan(one.loss) and math.isnan(other.loss))
    if one.seconds is not None and other.seconds is not None:
        return math.isclose(one.seconds, other.seconds, rel_tol=_SAME_SECONDS)
    return False


def _figures(step: LoggedStep) -> tuple[str, ...]:
    """As text, in which nan equals itself."""
    return tuple(map(str, (step.seconds, step.device_rate, step.loss)))


def _apart(one: LoggedStep, other: LoggedStep) -> float | None:
    """Seconds between two lines, None where no clock of both tells."""
    if one.moment is None or other.moment is None or one.moment.clock != other.moment.clock:
        return None
    return abs(other.moment.at - one.moment.at)


def _merged(one: LoggedStep, other: LoggedStep) -> LoggedStep:
    rates = [rate for rate in (one.device_rate, other.device_rate) if rate is not None]
    return replace(
        one,
        seconds=_most(one.seconds, other.seconds), memory=_most(one.memory, other.memory),
        device_rate=min(rates, default=None), loss=one.loss if one.loss is not None else other.loss,
        tokens=one.tokens if one.tokens is not None else other.tokens, copies=one.copies + 1,
    )  # fmt: skip


def _most(one: float | None, other: float | None) -> float | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _stream(step: LoggedStep) -> tuple[str, str]:
    return step.place.file, step.printer


def _in_days(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Times of day go on over midnight."""
    found: list[LoggedStep] = []
    for step in steps:
        before = next((known.moment for known in reversed(found[-1:]) if known.moment), None)
        found.append(replace(step, moment=after(step.moment, before)) if step.moment and before else step)
    return found


def _resolved(steps: Sequence[LoggedStep]) -> tuple[LoggedStep, ...]:
    """A mean since the line before is over the steps between; before the first, over as many as usual."""
    between = [b.step - a.step for a, b in itertools.pairwise(steps)]
    # The first ones after a start are often logged one by one.
    usual = Counter(between).most_common(1)[0][0] if between else 1
    found: list[LoggedStep] = []
    for place, step in enumerate(steps):
        over = between[place - 1] if place else max(min(usual, step.step), 1) if step.step % usual == 0 else 1
        found.append(replace(step, over=over) if step.over == SINCE_BEFORE else step)
    return tuple(found)
