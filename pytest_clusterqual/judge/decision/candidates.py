"""The ways to do the job on several nodes that were measured, and how far each of them came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.judge.decision.evidence import Entry, Evidence, evidence, whole
from pytest_clusterqual.model.record import Interval, Verdict

# Quantities that say how soon the work is done; a demand on one of the first four asks for a gain.
GAINS = ("speedup", "efficiency", "time_to_fixed_work", "time_to_train")
PACE = (*GAINS, "throughput", "step_time")
LEFT_OVER = ("gain", "goodput", "throughput")  # what a full run leaves of the pace of its steps
# From the best to the one that says least of the others: what one layout fails to do another may do.
# performance: all as asked · fault: did not run, or failed by what is no pace · open: something is missing ·
# peak-only: its full run keeps too little, or is not sooner than on one node · slower: not sooner, or not by as much
# as asked · out: its memory failed
Standing = Literal["performance", "fault", "open", "peak-only", "slower", "out"]
STANDINGS: tuple[Standing, ...] = ("performance", "fault", "open", "peak-only", "slower", "out")
FAILED = (Verdict.FAIL, Verdict.ERROR)
NOT_YET = (Verdict.UNDECIDED, Verdict.BLOCKED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One test of Training Scaling, with the Memory of its layout and the Full-Run of it on as many nodes."""

    layout: str
    nodes: int
    rank_map: str
    memory: Evidence
    scaling: Evidence
    full_run: Evidence

    @property
    def name(self) -> str:
        mapped = f" ({self.rank_map} rank map)" if self.rank_map else ""
        return f"{self.layout}{mapped} on {self.nodes} nodes"

    @property
    def point(self) -> Evidence:
        """What is said of its own number of nodes."""
        return self.scaling.having(lambda e: e.point == self.nodes)

    @property
    def base_nodes(self) -> int:
        """The number of nodes it is compared with; 0 if there was no such point."""
        return min((e.point for e in self.scaling.entries if 0 < e.point < self.nodes), default=0)

    @property
    def base(self) -> Evidence:
        return self.scaling.having(lambda e: 0 < e.point == self.base_nodes)

    @property
    def gain(self) -> Entry | None:
        """How many times sooner its full run was than the same on one node; of several runs the least."""
        known = self.full_run.of("gain").having(lambda e: e.judgement.value is not None).entries
        return min(known, key=lambda e: e.judgement.value or 0.0, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """How far a candidate came. `why` is half a sentence that begins with a name."""

    candidate: Candidate
    standing: Standing
    why: str
    rests_on: Evidence


def candidates(seen: Evidence) -> tuple[Candidate, ...]:
    """One for each test of Training Scaling."""
    return tuple(_candidate(seen, test) for test in seen.about("scaling").tests().values())


def _candidate(seen: Evidence, test: Evidence) -> Candidate:
    first = test.entries[0]
    at, layout, nodes = first.record.conditions, first.layout, first.nodes
    return Candidate(
        layout=layout, nodes=nodes, rank_map=(at.rank_map or "") if at else "", scaling=test,
        memory=seen.about("memory").having(lambda e: e.layout in ("", layout)),
        full_run=seen.about("full_run").having(lambda e: (e.layout, e.nodes) == (layout, nodes)),
    )  # fmt: skip


def assess(seen: Evidence) -> tuple[Assessment, ...]:
    """The candidate on the most nodes of each layout, the best standing first, and of one standing the fastest."""
    fastest = fastest_on_one(seen)
    assessed = [_assess(candidate, fastest) for candidate in candidates(seen)]
    most: dict[tuple[str, str], Assessment] = {}
    for one in sorted(assessed, key=lambda a: a.candidate.nodes):
        key = (one.candidate.layout, one.candidate.rank_map)
        most[key] = _unless_fewer_passed(one, most.get(key))
    return tuple(sorted(most.values(), key=lambda a: (STANDINGS.index(a.standing), _seconds(a))))


def fastest_on_one(seen: Evidence) -> Entry | None:
    """The shortest time to the fixed work on one node, of whichever layout."""
    times = seen.about("scaling").of("time_to_fixed_work").having(lambda e: e.point == 1).entries
    return min((e for e in times if e.judgement.value is not None), key=lambda e: e.judgement.value or 0, default=None)


def _assess(candidate: Candidate, fastest: Entry | None) -> Assessment:
    found = (
        _memory(candidate)
        or _measured(candidate)
        or _as_asked(candidate)
        or _sooner(candidate, fastest)
        or _full_run(candidate)
    )
    if found is not None:
        return found
    rests_on = candidate.memory | candidate.point | candidate.full_run
    speedup = candidate.point.number("speedup")
    told = f", speedup {speedup.figure}" if speedup else ""
    why = f"does the work sooner than one, as asked{told}, and its full run passes"
    return _so(candidate, "performance", why, rests_on)


def _so(candidate: Candidate, standing: Standing, why: str, rests_on: Evidence) -> Assessment:
    return Assessment(candidate=candidate, standing=standing, why=f"{candidate.name} {why}", rests_on=rests_on)


def _memory(c: Candidate) -> Assessment | None:
    known = c.memory.having(lambda e: not e.accepted)
    if failed := known.with_verdict(*FAILED):
        return _so(c, "out", f"does not pass: {failed.worst().judgement.reason}", failed)
    if late := known.with_verdict(*NOT_YET):
        return _so(c, "open", f"has no verdict of Memory: {late.worst().judgement.reason}", late)
    if not c.memory.with_verdict(Verdict.PASS) and known:
        return _so(c, "open", "was not judged by Memory: the file demands neither peak nor headroom", c.memory)
    return None if known or c.memory else _so(c, "open", "was not measured by Memory", c.scaling)


def _measured(c: Candidate) -> Assessment | None:
    """What stands in the way of comparing it with one node."""
    refused = c.point.of("speedup", "efficiency").having(lambda e: e.judgement.value is None)
    if refused:
        return _so(c, "open", f"cannot be compared with fewer: {refused.entries[0].judgement.reason}", refused)
    if not c.point:
        worst = c.scaling.worst()
        standing: Standing = "fault" if worst.verdict in FAILED else "open"
        return _so(c, standing, f"was not measured: {worst.judgement.reason}", evidence(worst))
    if c.base_nodes != 1:
        why = f"is compared with {c.base_nodes} nodes, which says nothing of one node"
        return _so(c, "open", why if c.base_nodes else "is compared with nothing", c.base | c.point.of("speedup"))
    return None


def _as_asked(c: Candidate) -> Assessment | None:
    if wrong := c.point.with_verdict(Verdict.ERROR):
        return _so(c, "fault", f"was not really measured: {wrong.worst().judgement.reason}", wrong)
    failed = c.point.with_verdict(Verdict.FAIL)
    if short := failed.of(*PACE):
        return _so(c, "slower", f"does not gain as asked: {short.worst().judgement.reason}", short)
    if failed:
        return _so(c, "fault", f"fails: {failed.worst().judgement.reason}", failed)
    if late := c.point.with_verdict(*NOT_YET):
        return _so(c, "open", f"has no verdict of Training Scaling: {late.worst().judgement.reason}", late)
    if not c.point.of(*GAINS).with_verdict(Verdict.PASS):
        why = f"is measured only: the file demands no speedup or efficiency of {c.nodes} nodes"
        return _so(c, "open", why, c.point.of(*GAINS))
    return None


def _sooner(c: Candidate, fastest: Entry | None) -> Assessment | None:
    """Whether it is sooner than one node at all: its own layout there, and the fastest one."""
    speedup, mine = c.point.number("speedup"), c.point.number("time_to_fixed_work")
    if speedup is None:
        return _so(c, "open", "has no speedup over one node", c.point)
    gain = whole(speedup.judgement.interval, lambda value: value > 1)
    if gain is not True:
        why = "is not sooner than one node" if gain is False else "is not sooner than one node for sure"
        told = f"{why}: speedup {speedup.figure}"
        return _so(c, "slower" if gain is False else "open", told, evidence(speedup))
    if fastest is None or mine is None or fastest.layout == c.layout:
        return None
    earlier = _before(mine.judgement.interval, fastest.judgement.interval)
    if earlier is True:
        return None
    than = f"{fastest.layout} on one node: {mine.figure} against {fastest.figure}"
    if earlier is False:
        return _so(c, "slower", f"takes longer than {than}", evidence(fastest, mine))
    return _so(c, "open", f"cannot be told from {than}", evidence(fastest, mine))


def _full_run(c: Candidate) -> Assessment | None:
    if not c.full_run:
        return _so(c, "open", "has no full run", c.point.of("speedup"))
    if wrong := c.full_run.with_verdict(Verdict.ERROR):
        return _so(c, "fault", f"did not complete its full run: {wrong.worst().judgement.reason}", wrong)
    failed = c.full_run.with_verdict(Verdict.FAIL)
    if short := failed.of(*LEFT_OVER):
        return _so(c, "peak-only", f"keeps too little in its full run: {short.worst().judgement.reason}", short)
    if failed:
        return _so(c, "fault", f"fails: {failed.worst().judgement.reason}", failed)
    gain, sooner = c.gain, whole(c.gain.judgement.interval, lambda value: value > 1) if c.gain else True
    if gain and sooner is False:
        why = f"does its full run not sooner than one node does the same: gain {gain.figure}"
        return _so(c, "peak-only", why, evidence(gain))
    if late := c.full_run.with_verdict(*NOT_YET):
        return _so(c, "open", f"has no verdict of Full-Run: {late.worst().judgement.reason}", late)
    if gain and sooner is None:
        return _so(c, "open", f"does its full run not sooner for sure: gain {gain.figure}", evidence(gain))
    if not c.full_run.of(*LEFT_OVER).with_verdict(Verdict.PASS):
        why = "has a full run of which the file demands neither gain nor goodput nor throughput"
        return _so(c, "open", why, c.full_run.of(*LEFT_OVER))
    return None


def _unless_fewer_passed(more: Assessment, fewer: Assessment | None) -> Assessment:
    """That so many nodes gain too little says nothing against fewer of them, which came further."""
    if fewer is None or more.standing != "slower" or fewer.standing not in ("performance", "open"):
        return more
    nodes = fewer.candidate.nodes
    why = f"{more.why}; {nodes} nodes are not refused by that: qualify them by themselves, --nodes {nodes}"
    rests_on = more.rests_on | fewer.candidate.point.of("speedup")
    return Assessment(candidate=more.candidate, standing="open", why=why, rests_on=rests_on)


def _before(one: Interval | None, other: Interval | None) -> bool | None:
    """True if all of one time lies below all of another, False if above; None if they overlap."""
    if one is None or other is None:
        return None
    if one.high < other.low:
        return True
    return False if one.low > other.high else None


def _seconds(assessment: Assessment) -> float:
    time = assessment.candidate.point.number("time_to_fixed_work")
    return (time.judgement.value if time else None) or float("inf")
