"""The ledger of a full run: every second of every rank in one category, and the events in between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.judgement import check_ranks
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.measurement import FullRunMeasurement, Mark, RankRun, Span

CATEGORIES = (
    "init",
    "load",
    "data",
    "kept",
    "lost",
    "checkpoint",
    "finish",
    "detection",
    "restart",
    "teardown",
    "residual",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLedger:
    """Seconds of one rank by category. They add up to `wall`; the residual may be negative."""

    rank: int
    wall: float
    seconds: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Save:
    """One checkpoint: how long it kept the worst rank from training, and how long until all had completed it.

    `completion` is None for a save that a failure interrupted.
    """

    attempt: int
    step: int
    blocking: float
    completion: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """Seconds of what happens once in a run; None where it did not happen.

    `detection` ends with the first survivor's error (without one: the first new process),
    `restart` runs from there to the last new process, `recovery` from the kill until the slowest
    rank has ended a step that the killed rank had not.
    """

    detection: float | None = None
    restart: float | None = None
    recovery: float | None = None
    load: float | None = None
    steps_lost: int = 0
    saves: tuple[Save, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """`wall` is the launch from the first agent's start to the last one's end, in seconds.

    Categories of a rank: init (launch until the model is built), load, data, kept (steps that
    count), lost (steps done again), checkpoint, finish, detection, restart, teardown, and the
    residual that none of them explains.
    """

    wall: float
    ranks: tuple[RankLedger, ...]
    events: Events


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outage:
    """One rank's view of the failure, in its own clock: struck, known, and its new process begun."""

    struck: float
    known: float
    begun: float


def account(m: FullRunMeasurement) -> Ledger:
    """Sort every second of every rank into one category, and time the events.

    Clocks of different hosts are never subtracted: there, what one rank saw by itself counts.

    Raises:
        MeasurementError: what is missing or contradicts itself, by rank.
    """
    _check(m)
    outages = _outages(m)
    return Ledger(
        wall=_wall(m),
        ranks=tuple(_rank_ledger(run, outages.get(run.rank)) for run in m.ranks),
        events=Events(
            detection=_detection(m, outages),
            restart=_restart(m, outages),
            recovery=_recovery(m),
            load=_load_seconds(m),
            steps_lost=max(map(_lost_steps, m.ranks)),
            saves=_saves(m),
        ),
    )


def _check(m: FullRunMeasurement) -> None:
    check_ranks(m.conditions, [run.rank for run in m.ranks], "full run")
    if m.steps < 1 or m.tokens_per_step < 1:
        raise MeasurementError(f"full run: got {m.steps} steps of {m.tokens_per_step} tokens, want at least one each")
    for run in m.ranks:
        _check_rank(run, m)
    if m.kill_step:
        killed = [mark for run in m.ranks for mark in run.marks if mark.kind == "killed"]
        if len(killed) != 1:
            raise MeasurementError(
                f"full run: one kill at step {m.kill_step} was planned, there are {len(killed)} killed marks"
            )


def _check_rank(run: RankRun, m: FullRunMeasurement) -> None:
    where = f"full run: rank {run.rank}"
    times = [run.began, run.ended, *(t for s in run.spans for t in (s.start, s.end)), *(mark.at for mark in run.marks)]
    if not all(map(math.isfinite, times)):
        raise MeasurementError(f"{where} has a time that is not finite")
    if run.ended <= run.began:
        raise MeasurementError(f"{where} ended {run.began - run.ended:.3g} s before it began")
    if not any(mark.kind == "done" for mark in run.marks):
        raise MeasurementError(f"{where} has no done mark: it did not finish its work")
    done = {span.step for span in run.spans if span.kind == "step"}
    if undone := sorted(set(range(1, m.steps + 1)) - done):
        raise MeasurementError(f"{where} did not do step {undone[0]} ({len(undone)} of {m.steps} steps are missing)")
    if not any(span.end > span.start for span in run.spans if span.kind == "step"):
        raise MeasurementError(f"{where} did its steps in no time")
    for step in range(1, m.steps + 1):
        loss = run.losses.get(str(step))
        if loss is None or not math.isfinite(loss):
            raise MeasurementError(f"{where}: the loss of step {step} is {'missing' if loss is None else loss}")
    ordered = sorted(run.spans, key=lambda span: (span.start, span.end))
    for span in ordered:
        if span.end < span.start:
            raise MeasurementError(f"{where}: {_span_name(span)} ends before it starts")
    for before, after in itertools.pairwise(ordered):
        if after.start < before.end:
            raise MeasurementError(
                f"{where}: {_span_name(before)} and {_span_name(after)} overlap by {before.end - after.start:.3g} s"
            )


def _span_name(span: Span) -> str:
    return f"{span.kind}{f' of step {span.step}' if span.step else ''} in attempt {span.attempt}"


def _same_clock(conditions: Conditions) -> bool:
    return conditions.simulated or len(set(conditions.hosts)) == 1


def _wall(m: FullRunMeasurement) -> float:
    if _same_clock(m.conditions):
        return max(run.ended for run in m.ranks) - min(run.began for run in m.ranks)
    return max(run.ended - run.began for run in m.ranks)


def killed_mark(m: FullRunMeasurement) -> tuple[RankRun, Mark]:
    """The rank that was killed on purpose, and when."""
    return next((run, mark) for run in m.ranks for mark in run.marks if mark.kind == "killed")


def _first(run: RankRun, kind: str, attempts: range) -> float | None:
    return min((mark.at for mark in run.marks if mark.kind == kind and mark.attempt in attempts), default=None)


def _outages(m: FullRunMeasurement) -> dict[int, _Outage]:
    if not m.kill_step:
        return {}
    victim, killed = killed_mark(m)
    attempt, later = range(killed.attempt, killed.attempt + 1), range(killed.attempt + 1, 2**31)
    begun: dict[int, float] = {}
    for run in m.ranks:
        start = _first(run, "started", later)
        if start is None:
            raise MeasurementError(f"full run: rank {run.rank} has no started mark after the kill")
        begun[run.rank] = start
    failed = {run.rank: at for run in m.ranks if (at := _first(run, "failed", attempt)) is not None}
    if _same_clock(m.conditions):
        known = min(failed.values(), default=min(begun.values()))
        # One rank may be back before another has noticed anything: then nothing is left of its detection.
        outages = {
            rank: _Outage(struck=killed.at, known=min(known, start), begun=start) for rank, start in begun.items()
        }
    else:
        outages = {
            run.rank: _seen_alone(run, m.kill_step, attempt, failed.get(run.rank), begun[run.rank]) for run in m.ranks
        }
        outages[victim.rank] = _Outage(
            struck=killed.at, known=killed.at if failed else begun[victim.rank], begun=begun[victim.rank]
        )
    for rank, outage in outages.items():
        if not outage.struck <= outage.known <= outage.begun:
            raise MeasurementError(
                f"full run: rank {rank}: kill, detection and new process are out of order, at 0 s, "
                f"{outage.known - outage.struck:.3g} s and {outage.begun - outage.struck:.3g} s"
            )
    return outages


def _seen_alone(run: RankRun, kill_step: int, attempt: range, failed: float | None, begun: float) -> _Outage:
    """A survivor whose clock is not the victim's: the failure struck at some time after its last whole span."""
    whole = [s.end for s in run.spans if s.attempt in attempt and not (s.kind == "step" and s.step >= kill_step)]
    known = begun if failed is None else failed
    return _Outage(struck=max((end for end in whole if end <= known), default=known), known=known, begun=begun)


def _detection(m: FullRunMeasurement, outages: dict[int, _Outage]) -> float | None:
    if not outages:
        return None
    victim = killed_mark(m)[0].rank
    seen = {rank: o.known - o.struck for rank, o in outages.items()}
    if _same_clock(m.conditions) or len(seen) == 1:
        return max(seen.values())
    return min(seconds for rank, seconds in seen.items() if rank != victim)


def _restart(m: FullRunMeasurement, outages: dict[int, _Outage]) -> float | None:
    if not outages:
        return None
    victim = killed_mark(m)[0].rank
    by_rank = {rank: o.begun - o.known for rank, o in outages.items()}
    if not _same_clock(m.conditions) and len(by_rank) > 1:
        del by_rank[victim]  # it cannot know when the others noticed
    return max(by_rank.values())


def _recovery(m: FullRunMeasurement) -> float | None:
    if not m.kill_step:
        return None
    victim, killed = killed_mark(m)
    ends = []
    for run in m.ranks if _same_clock(m.conditions) else (victim,):
        past = [s.end for s in run.spans if s.kind == "step" and s.attempt > killed.attempt and s.step >= m.kill_step]
        if not past:
            raise MeasurementError(f"full run: rank {run.rank} did no step from {m.kill_step} on after the kill")
        ends.append(min(past))
    return max(ends) - killed.at


def _load_seconds(m: FullRunMeasurement) -> float | None:
    """Reading a checkpoint on the slowest rank; an attempt that found none to go on from does not count."""
    loads: list[float] = []
    for run in m.ranks:
        found = {mark.attempt for mark in run.marks if mark.kind == "resumed" and mark.step > 0}
        loads += [sum(s.end - s.start for s in run.spans if s.kind == "load" and s.attempt in found)] if found else []
    return max(loads, default=None)


def _saves(m: FullRunMeasurement) -> tuple[Save, ...]:
    keys = sorted({(s.attempt, s.step) for run in m.ranks for s in run.spans if s.kind == "checkpoint"})
    last = max(mark.attempt for run in m.ranks for mark in run.marks)
    saves = []
    for attempt, step in keys:
        spans = {
            run.rank: own
            for run in m.ranks
            if (own := [s for s in run.spans if s.kind == "checkpoint" and (s.attempt, s.step) == (attempt, step)])
        }
        completions = _completions(m, spans, attempt, step)
        missing = sorted(set(spans) - set(completions))
        if missing and attempt == last:
            raise MeasurementError(
                f"full run: the checkpoint of step {step} never became complete: rank {missing[0]} has no saved mark"
            )
        blocking = max(sum(s.end - s.start for s in own) for own in spans.values())
        completion = None if missing else max(completions.values())
        saves.append(Save(attempt=attempt, step=step, blocking=blocking, completion=completion))
    return tuple(saves)


def _completions(m: FullRunMeasurement, spans: dict[int, list[Span]], attempt: int, step: int) -> dict[int, float]:
    """Seconds of one save by rank, for the ranks that completed it."""
    return {
        run.rank: mark.at - min(s.start for s in spans[run.rank])
        for run in m.ranks
        for mark in run.marks
        if mark.kind == "saved" and (mark.attempt, mark.step) == (attempt, step) and run.rank in spans
    }


def last_attempts(run: RankRun) -> dict[int, int]:
    """step -> the last attempt that did it: the one that counts."""
    last: dict[int, int] = {}
    for span in run.spans:
        if span.kind == "step":
            last[span.step] = max(span.attempt, last.get(span.step, span.attempt))
    return last


def category(span: Span, last: dict[int, int]) -> str:
    """The category of a span, given `last_attempts` of its rank."""
    if span.kind != "step":
        return span.kind
    return "kept" if span.attempt == last[span.step] else "lost"


def _lost_steps(run: RankRun) -> int:
    last = last_attempts(run)
    return len({span.step for span in run.spans if category(span, last) == "lost"})


def _rank_ledger(run: RankRun, outage: _Outage | None) -> RankLedger:
    seconds = dict.fromkeys(CATEGORIES, 0.0)
    last = last_attempts(run)
    for span in run.spans:
        seconds[category(span, last)] += span.end - span.start
    started = _first(run, "started", range(2**31))
    if started is not None:
        seconds["init"] += _uncovered(run.spans, run.began, started)
    if outage is not None:
        seconds["detection"] += _uncovered(run.spans, outage.struck, outage.known)
        seconds["restart"] += _uncovered(run.spans, outage.known, outage.begun)
    # A run ends with its agent: what comes after the last rank has let go of its group is teardown, too.
    if ends := [span.end for span in run.spans if span.kind == "teardown"]:
        seconds["teardown"] += max(run.ended - max(ends), 0.0)
    wall = run.ended - run.began
    seconds["residual"] = wall - sum(seconds.values())
    return RankLedger(rank=run.rank, wall=wall, seconds=seconds)


def _uncovered(spans: Sequence[Span], start: float, end: float) -> float:
    """Seconds between two moments that no span accounts for; spans do not overlap each other."""
    covered = sum(max(min(span.end, end) - max(span.start, start), 0.0) for span in spans)
    return max(end - start, 0.0) - covered if end > start else 0.0
