"""The time of steps in a log: as its lines tell it, or from the clock beside them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual.judge.statistics import enclosing, mapped, median, median_interval
from pytest_clusterqual.model.log import LogEvent, LoggedStep, Middle, Pause, Place

LINES, RATES, CLOCK = "as the lines tell it", "from the work and rate of the lines", "by the clock between the lines"
_TICKS = 10  # a time between two lines is taken from so many ticks on
_SLACK = 0.05
# A pause is longer than so many median steps, and than that share of the steps it stands between.
_PAUSE, _PAUSE_SHARE = 0.5, 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """`seconds` of one step, the mean over `over` steps that end with `step`."""

    step: int
    over: int
    seconds: float


def between(one: LoggedStep, other: LoggedStep) -> float | None:
    """Seconds from one line to a later one; None where they have no clock in common, or it went back."""
    if one.moment is None or other.moment is None or one.moment.clock != other.moment.clock:
        return None
    return other.moment.at - one.moment.at if other.moment.at >= one.moment.at else None


def told(steps: Sequence[LoggedStep]) -> list[Sample]:
    return [
        Sample(step=step.step, over=step.over, seconds=step.seconds)
        for step in steps if step.over and step.seconds is not None and 0 < step.seconds < math.inf
    ]  # fmt: skip


def by_rate(steps: Sequence[LoggedStep], tokens: float, devices: int) -> list[Sample]:
    return [
        Sample(step=step.step, over=step.over, seconds=tokens / (step.device_rate * devices))
        for step in steps if step.over and step.device_rate is not None and 0 < step.device_rate < math.inf
    ]  # fmt: skip


def by_clock(steps: Sequence[LoggedStep]) -> list[Sample]:
    """From line to line, over as many lines as the clock needs to tell a time; a pause inside is in it."""
    found: list[Sample] = []
    since: LoggedStep | None = None
    for step in steps:
        passed = between(since, step) if since is not None else None
        if since is None or passed is None:
            since = step
        elif step.moment is not None and passed >= _TICKS * step.moment.tick:
            over = step.step - since.step
            found.append(Sample(step=step.step, over=over, seconds=passed / over))
            since = step
    return found


def is_running_mean(steps: Sequence[LoggedStep]) -> bool:
    """Whether lines tell more time than has passed since the line before: then it is of more steps than these."""
    compared = too_long = 0
    for one, other in itertools.pairwise(steps):
        passed = between(one, other)
        if passed is not None and other.moment is not None and other.seconds is not None:
            compared += 1
            most = passed * (1 + _SLACK) + 2 * other.moment.tick
            too_long += other.seconds * min(other.over, other.step - one.step) > most
    return too_long * 20 > compared > 0


def pauses(steps: Sequence[LoggedStep], usual: float, *, own: bool, events: Sequence[LogEvent]) -> Iterator[Pause]:
    """Times between lines that are too long for the steps between them, which take `usual` seconds each.

    `own` says that a line's own time is of its steps alone, so that a slow step is no pause.
    """
    for one, other in itertools.pairwise(steps):
        passed, many = between(one, other), other.step - one.step
        if passed is None or other.moment is None or not one.step < other.step:
            continue
        known = own and other.seconds is not None and other.over == many
        expected = many * (other.seconds if known and other.seconds is not None else usual)
        excess = passed - expected
        if excess > max(_PAUSE * usual, _PAUSE_SHARE * expected, 2 * other.moment.tick):
            kinds = [event.kind for event in events if _is_between(event.place, one.place, other.place)]
            yield Pause(
                after=one.step, before=other.step, seconds=excess, told=tuple(dict.fromkeys(kinds)), place=other.place
            )


def untold(steps: Sequence[LoggedStep], samples: Sequence[Sample], paused: Sequence[Pause]) -> tuple[float, float]:
    """Seconds between lines that tell the time of all steps between them; how many are neither that nor a pause."""
    known = {sample.step: sample for sample in samples}
    pauses_before = {pause.before: pause.seconds for pause in paused}
    passed = own = 0.0
    for one, other in itertools.pairwise(steps):
        seconds, sample = between(one, other), known.get(other.step)
        if seconds is not None and sample is not None and sample.over == other.step - one.step:
            passed += seconds
            own += sample.seconds * sample.over + pauses_before.get(other.step, 0.0)
    return passed, passed - own


def _is_between(place: Place, one: Place, other: Place) -> bool:
    return place.file == one.file == other.file and one.line < place.line <= other.line


def middle(samples: Sequence[Sample]) -> Middle | None:
    """The median step: a line that is a mean over k steps counts k times, and as one sample for the interval."""
    if not samples:
        return None
    value = _weighted_median(samples)
    interval = enclosing(median_interval([sample.seconds for sample in samples]), value)
    return Middle(value=value, interval=interval, lines=len(samples), steps=sum(sample.over for sample in samples))


def _weighted_median(samples: Sequence[Sample]) -> float:
    if len({sample.over for sample in samples}) == 1:
        return median([sample.seconds for sample in samples])
    half, seen = sum(sample.over for sample in samples) / 2, 0
    for sample in sorted(samples, key=lambda each: each.seconds):
        seen += sample.over
        if seen >= half:
            return sample.seconds
    raise ValueError("no step is counted")


def rate(of: Middle, work: float) -> Middle:
    """What is done a second when one step does `work`."""
    interval = mapped(of.interval, lambda bound: work / bound)
    return Middle(value=work / of.value, interval=interval, lines=of.lines, steps=of.steps)
