"""Steps in the order of the lines, sorted into attempts: copies of other ranks once, steps done again twice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.log import LoggedStep, Place
from pytest_clusterqual.read.log_lines import SINCE_BEFORE, after
from pytest_clusterqual.read.log_streams import Stream, apart, are_twins, name_of

# Share of steps that stand as often as any other, from which on all lines are of ranks that began together.
_EVEN = 0.75


class Attempts(NamedTuple):
    """Each attempt by rising steps, and sentences about lines of which the log does not tell where they belong."""

    steps: tuple[tuple[LoggedStep, ...], ...]
    doubts: tuple[str, ...]


@dataclass(kw_only=True, slots=True)
class _Attempt:
    steps: dict[int, LoggedStep] = field(default_factory=dict)
    streams: set[tuple[str, str]] = field(default_factory=set)
    told: bool = True  # False: the steps went back, and no line before speaks of a restart

    def add(self, step: LoggedStep) -> None:
        known = self.steps.get(step.step)
        self.steps[step.step] = step if known is None else _merged(known, step)
        self.streams.add(name_of(step))

    def is_of(self, file: str) -> bool:
        return any(file == known for known, _ in self.streams)

    def may_be_joined(self, step: LoggedStep) -> bool:
        """Whether it has a line like the first of a printer; without a clock another file has to begin with it."""
        known = self.steps.get(step.step)
        if known is None or not are_twins(known, step):
            return False
        return apart(known, step) is not None or self.is_of(step.place.file) or step.step == min(self.steps)

    def has(self, step: LoggedStep) -> bool | None:
        """Whether it has a line of the same time about this step; None if it has none, or no clock tells."""
        known = self.steps.get(step.step)
        return None if known is None or apart(known, step) is None else are_twins(known, step)


@dataclass(kw_only=True, slots=True)
class _Sorting:
    """The attempts as the lines go by; `one_rank` has printed all of a file."""

    one_rank: bool = False
    found: list[_Attempt] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)  # what lines are taken for -> the first such

    def take(self, step: LoggedStep, stream: Stream) -> None:
        if stream.before is None:
            place = self._first(step)
        elif stream.goes_on(step, self.found[stream.attempt].steps):
            place = stream.attempt
        else:
            place = self._next(step, stream)
        if place == len(self.found):
            self.found.append(_Attempt(told=stream.before is None or stream.is_restarted(step)))
        stream.take(step, place, self.found[place].steps.get(step.step))
        self.found[place].add(step)

    def _first(self, step: LoggedStep) -> int:
        """The attempt that a rank or file joins with its first line."""
        for place, attempt in enumerate(self.found):
            if attempt.may_be_joined(step):
                return place
        if not self.found:
            return 0
        last = self.found[-1]
        if last.is_of(step.place.file):
            return len(self.found) - (last.has(step) is None)
        if step.step == min(last.steps) and last.has(step) is None:
            self._doubt(step, "done again")
        return len(self.found)

    def _next(self, step: LoggedStep, stream: Stream) -> int:
        """The attempt after that of a stream: one that another rank has begun already, or a new one."""
        self.close(stream)
        for later in range(stream.attempt + 1, len(self.found)):
            if self.found[later].has(step) is not False:
                return later
        if stream.is_unclear(self.found[stream.attempt].steps.get(step.step), step):
            self._doubt(step, "done again")
        return len(self.found)

    def close(self, stream: Stream) -> None:
        """No more lines of a stream for this attempt."""
        if line := stream.doubtful():
            self._doubt(line, "told once more")

    def _doubt(self, step: LoggedStep, taken_for: str) -> None:
        if self.one_rank:
            raise ReadError(
                f"{step.place.file}:{step.place.line}: step {step.step} stands there again with other figures, though "
                "one rank printed it all; want one line of each step, which counts on over epochs and microbatches"
            )
        self.doubts.setdefault(
            taken_for,
            f"{step.place.file}:{step.place.line}: step {step.step} stands there again, and nothing tells whether it "
            "was done again, after a restart or in an epoch that counts anew, or is told once more, by another rank or "
            f"of something else; it counts as {taken_for}",
        )


def attempts(steps: Sequence[LoggedStep], restarts: Sequence[Place] = (), *, one_rank: bool = False) -> Attempts:
    """Each attempt by rising steps; of several ranks' lines about a step the slowest counts.

    `restarts` are the lines that speak of one, such as those about a checkpoint that is loaded. With `one_rank`, steps
    that go back are never those of another rank.

    Raises:
        ReadError: `one_rank` tells of a step in several ways.
    """
    ordered = _in_days(steps)
    sorting = _sorted(ordered, restarts, one_rank=one_rank)
    if not one_rank and not all(attempt.told for attempt in sorting.found):
        # A rank's first line may be lost, or each rank tell that it loads a checkpoint, in front of its own lines.
        even = _sorted(ordered, (), even=True)
        if len(even.found) < len(sorting.found) and not even.doubts and _is_even(even.found):
            sorting = even
    return Attempts(
        tuple(_resolved([attempt.steps[number] for number in sorted(attempt.steps)]) for attempt in sorting.found),
        tuple(sorting.doubts.values()),
    )


def _sorted(
    steps: Sequence[LoggedStep], restarts: Sequence[Place], *, even: bool = False, one_rank: bool = False
) -> _Sorting:
    lines: dict[tuple[str, str], list[LoggedStep]] = {}
    for step in steps:
        lines.setdefault(name_of(step), []).append(step)
    streams = {name: Stream.of(of, restarts, even=even, one_rank=one_rank) for name, of in lines.items()}
    sorting = _Sorting(one_rank=one_rank)
    for step in steps:
        sorting.take(step, streams[name_of(step)])
    for stream in streams.values():
        sorting.close(stream)
    return sorting


def _is_even(found: Sequence[_Attempt]) -> bool:
    counts = Counter(step.copies for attempt in found for step in attempt.steps.values())
    return counts[max(counts)] >= _EVEN * sum(counts.values())


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
