"""What may be said of a training job from its log alone, and what may not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run import log_times
from pytest_clusterqual.judge.full_run.frontier import single
from pytest_clusterqual.judge.full_run.life import WARMING
from pytest_clusterqual.judge.full_run.log_times import CLOCK, LINES, RATES, Sample
from pytest_clusterqual.judge.over_time.levels import FEWEST
from pytest_clusterqual.judge.over_time.verdict import over_time
from pytest_clusterqual.judge.statistics import apart_ratio_interval, median, minimum_samples, steady_start
from pytest_clusterqual.model.log import LoggedAttempt, LoggedRun, LoggedStep, Middle, Pause, TrainingLog
from pytest_clusterqual.model.record import Finding, Interval

# Printed rates and times are rounded; the middle of work that differs from line to line may be off by more.
_SAME_WORK, _SAME_MIDDLE = 0.01, 0.1
_MOST_TO_NAME = 8
_OPTION = "--tokens-per-step"
# What the steps of a run and its pauses may leave over of its time, as in a full run.
_UNTOLD_SHARE, _UNTOLD = 0.005, 1.0
_FEWEST = 4  # lines below which no warm-up is found

Work = Literal["tokens", "sequences"]


def logged_run(log: TrainingLog, *, tokens_per_step: float | None = None) -> LoggedRun:
    """Step time, rates, pauses, restarts and drift of the steady steps.

    `tokens_per_step` goes before the log's own, but no number is that of steps whose batch changes.

    Raises:
        MeasurementError: `tokens_per_step` and the log contradict each other.
    """
    tokens = work_of_step(log, "tokens", tokens_per_step, key=_OPTION)
    tokens_from = _OPTION if tokens and tokens_per_step else _tokens(log)[1]
    timed_by, samples = _times(log, tokens)
    warm_ups = [steady_start([sample.seconds for sample in of]) for of in samples]
    steady = [of[warm_up:] for of, warm_up in zip(samples, warm_ups, strict=True)]
    seconds = log_times.middle([sample for of in steady for sample in of])
    rates = _rates(log, seconds, tokens)
    paused = _pauses(log, steady, seconds, own=timed_by == LINES)
    untold = [] if timed_by == CLOCK else _untold(log, steady, paused)
    steps = [step for attempt in log.attempts for step in attempt]
    return LoggedRun(
        log=log, timed_by=timed_by if seconds else "",
        attempts=tuple(
            _attempt(log, place, samples[place], warm_ups[place], seconds) for place in range(len(log.attempts))
        ),
        seconds=seconds, tokens_per_step=tokens, tokens_from=tokens_from, rates=rates, device_rate=_device_rate(log),
        drift=_drift(steady), findings=_over_time(log, samples, warm_ups),
        pauses=tuple(itertools.chain.from_iterable(paused)),
        skipped=sum(step.skipped for step in steps),
        not_finite=tuple(step.step for step in steps if step.loss is not None and not math.isfinite(step.loss)),
        warnings=(*log.notes, *_warnings(log, timed_by), *untold), missing=tuple(_missing(log, seconds, rates, tokens)),
    )  # fmt: skip


def step_samples(log: TrainingLog, tokens: float | None) -> list[list[Sample]]:
    """The times of each attempt; `tokens` of one step, None if they are not known."""
    return _times(log, tokens)[1]


def work_of_step(log: TrainingLog, unit: Work, given: float | None, *, key: str) -> float | None:
    """Work of one step on all devices, as it is `given` by `key`, else as the log tells it; None if it is not the same
    all the time.

    Raises:
        MeasurementError: both tell it and contradict each other.
    """
    whole = _tokens(log)[0] if unit == "tokens" else _samples(log)
    lines = [step.tokens if unit == "tokens" else step.samples for attempt in log.attempts for step in attempt]
    told = [whole] if whole else _known(lines)
    if given and told and abs(given - median(told)) > median(told) * (_SAME_WORK if whole else _SAME_MIDDLE):
        tells = " to ".join(f"{each:g}" for each in dict.fromkeys((min(told), max(told))))
        raise MeasurementError(
            f"{key} is {given:g}, the log tells {tells} {unit} a step: one of them is wrong; both are of the whole "
            "job, over all ranks"
        )
    return whole if not given or _batch_changes(log) else given


def _tokens(log: TrainingLog) -> tuple[float | None, str]:
    """Tokens of one step on all devices, and from where: told, or as sequences of one length; None if they vary."""
    told = log.told
    if told.tokens_per_step:
        return told.tokens_per_step, "the log"
    if samples := _samples(log):
        return (samples * told.sequence_length, "the log") if told.sequence_length else (None, "")
    if each := _constant([step.tokens for attempt in log.attempts for step in attempt]):
        return each, "the log's rate and time of a step"
    return None, ""


def _samples(log: TrainingLog) -> float | None:
    """Sequences of one step; None if it is not told, or not the same all the time."""
    told = [step.samples for attempt in log.attempts for step in attempt if step.over]
    return _constant(told) if any(each is not None for each in told) else log.told.global_batch


def _batch_changes(log: TrainingLog) -> bool:
    return any(step.samples for attempt in log.attempts for step in attempt) and _samples(log) is None


def _constant(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    if not known or known[-1] > known[0] * (1 + _SAME_WORK):
        return None
    return known[len(known) // 2]


def _known(values: Iterable[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None and 0 < value < math.inf)


def _times(log: TrainingLog, tokens: float | None) -> tuple[str, list[list[Sample]]]:
    """Where the times of steps come from, and the samples of each attempt."""
    own = [log_times.told(attempt) for attempt in log.attempts]
    if any(own) and not _are_running_means(log):
        return LINES, own
    if not any(own) and tokens and log.told.devices:
        by_rate = [log_times.by_rate(attempt, tokens, log.told.devices) for attempt in log.attempts]
        if any(by_rate):
            return RATES, by_rate
    return CLOCK, [log_times.by_clock(attempt) for attempt in log.attempts]


def _are_running_means(log: TrainingLog) -> bool:
    return any(log_times.is_running_mean(attempt) for attempt in log.attempts)


def _device_rate(log: TrainingLog) -> Middle | None:
    """The tokens/s of one device that the lines tell, steady steps only."""
    found: list[Sample] = []
    for attempt in log.attempts:
        of = log_times.by_rate(attempt, 1, 1)
        found += of[steady_start([sample.seconds for sample in of]) :]
    middle = log_times.middle(found)
    return log_times.rate(middle, 1) if middle else None


def _rates(log: TrainingLog, seconds: Middle | None, tokens: float | None) -> dict[str, Middle]:
    if seconds is None:
        return {}
    work = {"tokens": tokens, "samples": _samples(log)}
    return {name: log_times.rate(seconds, each) for name, each in work.items() if each}


def _drift(steady: Sequence[Sequence[Sample]]) -> Interval | None:
    """How many times longer the second half of the longest attempt takes; None with too few lines."""
    longest = max(steady, key=len, default=[])
    half = len(longest) // 2
    return apart_ratio_interval([s.seconds for s in longest[half:]], [s.seconds for s in longest[:half]])


def _over_time(log: TrainingLog, samples: Sequence[Sequence[Sample]], warm_ups: Sequence[int]) -> tuple[Finding, ...]:
    """Of the longest attempt, if its lines are of equally many steps and their batches do not change."""
    import numpy as np

    warm = [of[min(warm_up, WARMING) :] for of, warm_up in zip(samples, warm_ups, strict=True)]
    longest = max(warm, key=len, default=[])
    if _batch_changes(log) or len(longest) < FEWEST or len({sample.over for sample in longest}) != 1:
        return ()
    seconds = np.array([sample.seconds for sample in longest])
    over = np.cumsum(seconds * longest[0].over)
    return over_time(single(np.array([sample.step for sample in longest]), seconds, at=over - over[0])).findings


def _pauses(
    log: TrainingLog, steady: Sequence[Sequence[Sample]], seconds: Middle | None, *, own: bool
) -> list[list[Pause]]:
    """Of each attempt between steady steps: a long step of the warm-up looks like one where lines tell no time."""
    if seconds is None:
        return [[] for _ in log.attempts]
    return [
        list(log_times.pauses(_steady_steps(attempt, of), seconds.value, own=own, events=log.events))
        for attempt, of in zip(log.attempts, steady, strict=True)
    ]


def _steady_steps(attempt: Sequence[LoggedStep], steady: Sequence[Sample]) -> list[LoggedStep]:
    return [step for step in attempt if steady and step.step >= steady[0].step - steady[0].over]


def _untold(log: TrainingLog, steady: Sequence[Sequence[Sample]], paused: Sequence[Sequence[Pause]]) -> Iterator[str]:
    """The clock between steady lines held against what they tell of their steps."""
    each = [
        log_times.untold(_steady_steps(attempt, of), of, pauses)
        for attempt, of, pauses in zip(log.attempts, steady, paused, strict=True)
    ]
    passed, rest = (sum(seconds) for seconds in zip(*each, strict=True))
    if abs(rest) <= max(_UNTOLD_SHARE * passed, _UNTOLD):
        return
    shown, whole = (units.show(abs(seconds), units.SECONDS) for seconds in (rest, passed))
    if rest > 0:
        yield (
            f"of {whole} between steady lines {shown} are neither in the time that they tell of steps nor a pause: the "
            "log does not say what was done in them, and rates are those of the steps alone"
        )
    else:
        yield f"steady lines tell {shown} more of steps than the {whole} between them: their time of a step is too long"


def _attempt(
    log: TrainingLog, place: int, samples: Sequence[Sample], warm_up: int, seconds: Middle | None
) -> LoggedAttempt:
    steps = [step for step in log.attempts[place] if step.over]
    last = steps[-1].step if steps else 0
    first, following = _first_step(steps), _first_done(log.attempts[place + 1 :])
    lost = max(last - max(following, first) + 1, 0) if following is not None else 0
    return LoggedAttempt(
        first=first, last=last, lines=sum(1 + step.copies for step in steps),
        warm_up=sum(sample.over for sample in samples[:warm_up]), seconds=log_times.middle(samples[warm_up:]),
        lost=lost, lost_seconds=lost * seconds.value if lost and seconds else None,
        away=_away(log.attempts[place - 1][-1], steps[0], seconds) if place and steps else None,
        place=log.attempts[place][0].place,
    )  # fmt: skip


def _first_step(steps: Sequence[LoggedStep]) -> int:
    return steps[0].step - steps[0].over + 1 if steps else 0


def _first_done(later: Sequence[Sequence[LoggedStep]]) -> int | None:
    """The earliest step that a later attempt has done."""
    firsts = [_first_step([step for step in attempt if step.over]) for attempt in later]
    return min(firsts, default=None)


def _away(before: LoggedStep, step: LoggedStep, seconds: Middle | None) -> float | None:
    passed = log_times.between(before, step)
    if passed is None or seconds is None:
        return None
    return max(passed - step.over * (step.seconds or seconds.value), 0.0)


def _warnings(log: TrainingLog, timed_by: str) -> list[str]:
    found: list[str] = []
    if timed_by == CLOCK and any(log_times.told(attempt) for attempt in log.attempts):
        found.append(
            "lines tell more time of a step than has passed since the line before: it is a mean over several lines, so "
            f"steps are timed {CLOCK}"
        )
    if _batch_changes(log):
        varying = [step.samples for attempt in log.attempts for step in attempt if step.samples]
        found.append(
            f"the global batch changes from {min(varying):g} to {max(varying):g}: that is another regime, so no rate "
            "of all steps is told"
        )
    holes = [
        f"{one.step + 1}-{other.step - other.over}"
        for attempt in log.attempts for one, other in itertools.pairwise(attempt)
        if other.step - other.over > one.step + 9 * max(other.over, 1) and _is_odd(attempt, other.step - one.step)
    ]  # fmt: skip
    if holes:
        found.append(f"no line tells of steps {units.show_some(holes, _MOST_TO_NAME)}")
    return found


def _is_odd(attempt: Sequence[LoggedStep], distance: int) -> bool:
    """Whether lines are usually much closer than `distance` steps."""
    return distance > 2 * _usual_distance(attempt)


def _usual_distance(*attempts: Sequence[LoggedStep]) -> int:
    """Steps from one line to the next."""
    usual = sorted(other.step - one.step for attempt in attempts for one, other in itertools.pairwise(attempt))
    return usual[len(usual) // 2] if usual else 1


def _missing(log: TrainingLog, seconds: Middle | None, rates: dict[str, Middle], tokens: float | None) -> list[str]:
    found: list[str] = []
    if seconds is None:
        found.append("the time of a step: no line tells it, and no two lines have a clock that is fine enough")
    elif seconds.interval is None:
        found.append(
            f"an interval of the step time: {units.show_count(seconds.lines, 'steady line')}, want "
            f"{minimum_samples()} or more"
        )
    steps = [step for attempt in log.attempts for step in attempt]
    if max(map(len, log.attempts)) < _FEWEST:
        found.append(f"where the warm-up ends: no attempt has {_FEWEST} lines, so it is in the figures")
    if tokens is None and not _batch_changes(log):
        rated = any(step.device_rate for step in steps)
        what = "tokens/s" if rates else "the speed of all devices together" if rated else "speed"
        found.append(f"the tokens of a step, so nothing follows about {what}; give --tokens-per-step")
    if len(log.attempts) > 1 and (distance := _usual_distance(*log.attempts)) > 1:
        found.append(f"which steps were done again exactly: lines stand {distance} steps apart")
    if all(step.moment is None for step in steps):
        found.append("a clock beside the lines, so pauses between steps and the time of restarts are not seen")
    return found
