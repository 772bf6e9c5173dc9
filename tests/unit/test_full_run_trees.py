"""Random full runs with a failure in them: the ledger says where the time of every rank went, on whatever clocks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from full_run_made import TOKENS, Rank, edited, full_run, shifted
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.ledger import Ledger, account
from pytest_clusterqual.model.full_run import Failure, FullRun, RankRun
from pytest_clusterqual.model.probe import Line, ProbeWhat, RankLedger

FOLDED = ("kept", "lost", "warm-up", "re-warm-up")  # where the seconds of single steps go is tested by hand
EXACT = 1e-6


def milliseconds(least: int, most: int) -> st.SearchStrategy[float]:
    return st.integers(least, most).map(lambda ms: ms / 1000)


TIME, PART = milliseconds(0, 3000), st.sampled_from([0.0, 0.5])
STEPS = st.fixed_dictionaries(
    {"data": TIME, "seconds": milliseconds(1, 3000), "inside": PART, "hook": TIME, "idle": milliseconds(0, 10)}
)
ENDS = st.fixed_dictionaries(
    {"data": TIME, "broken": TIME, "inside": PART, "tidies": TIME, "away": TIME, "builds": TIME}
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run whose rank `victim` fails when step `at` begins, and maybe never comes back."""

    steps: list[dict[str, float]]
    every: int
    at: int
    victim: int
    ends: list[dict[str, float]]  # of every rank: how its first process ends, and when its second one begins
    gone: bool

    @property
    def resumed(self) -> int:
        return (self.at - 1) // self.every * self.every


PLANS = st.integers(2, 3).flatmap(
    lambda ranks: st.lists(STEPS, min_size=2, max_size=9).flatmap(
        lambda steps: st.builds(
            Plan, steps=st.just(steps), every=st.integers(1, 4), at=st.integers(1, len(steps)),
            victim=st.integers(0, ranks - 1), ends=st.lists(ENDS, min_size=ranks, max_size=ranks), gone=st.booleans(),
        )
    )
)  # fmt: skip


class Life:
    """One rank of a plan, and where its time truly goes; all ranks end their steps together."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.log = plan, Rank(rank, world=len(plan.ends))
        self.share = (rank + 1) / len(plan.ends)  # of the time until a step ends that it waits for data
        self.truth: defaultdict[str, float] = defaultdict(float)
        self.log.ready()
        self.truth |= {"init": 5.0, "load": 0.5}
        self.does(1, plan.at - 1)
        self.struck = self.log.now

    @property
    def mine(self) -> dict[str, float]:
        return self.plan.ends[self.log.rank]

    @property
    def noticed(self) -> float:
        return self.struck + self.mine["data"] + self.mine["broken"]

    @property
    def begins(self) -> float:
        return self.noticed + self.mine["tidies"] + self.mine["away"]

    def does(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            each = self.plan.steps[number - 1]
            data = each["data"] * self.share
            inside = each["inside"] * each["seconds"]
            whole = each["data"] - data + each["seconds"]
            self.log.span("data", data, step=number - 1)
            self.nested(inside, number - 1).span("step", whole, step=number, own=whole - inside)
            self.log.mark("loss", number, value=4.0).passes(each["idle"])
            self.log.span("hook", each["hook"], step=number, name="evaluation")
            self.truth["data"] += data
            self.truth["steps"] += whole - inside
            self.truth["hook evaluation"] += each["hook"]
            self.truth["residual"] += each["idle"]
            if number % self.plan.every == 0:
                self.log.saves(number, then=0.0)
                self.truth["checkpoint"] += 0.5

    def nested(self, seconds: float, step: int) -> Rank:
        """A hook at the beginning of the span that comes next."""
        self.truth["hook logging"] += seconds
        return self.log.mark("hook", step, seconds=seconds, name="logging", nested=True)

    def fails(self, known: float) -> RankRun:
        """It is struck, or notices, with the first one of all at `known`; then it goes on, if it does."""
        struck, begins, inside = self.struck, self.begins, 0.0
        if self.log.rank == self.plan.victim:
            self.log.mark("fault", self.plan.at, name="kill_rank")
            if self.plan.gone:
                return self.log.run()
        else:
            inside = self.mine["inside"] * self.mine["broken"]
            self.log.span("data", self.mine["data"], step=self.plan.at - 1)
            self.nested(inside, self.plan.at - 1)
            self.log.breaks(after=self.mine["broken"], step=self.plan.at, own=self.mine["broken"] - inside)
            self.log.passes(self.mine["tidies"]).ends("RuntimeError")
            self.truth["data"] += self.mine["data"]
            struck += self.mine["data"]
        known = min(max(known, struck), begins)
        detection, restart = known - struck, begins - known
        self.truth["detection"] += max(detection - inside, 0.0)
        self.truth["restart"] += restart - max(inside - detection, 0.0)
        self.log.passes(begins - self.log.now).back(after=self.plan.resumed, builds=self.mine["builds"])
        self.truth["rendezvous"] += 1.0 + self.mine["builds"]
        self.truth["reload"] += 1.0
        self.does(self.plan.resumed + 1, len(self.plan.steps))
        self.log.finishes()
        self.truth["hook last save"] += 0.25
        self.truth["teardown"] += 0.625
        return self.log.run()


def played(plan: Plan, *, one_clock: bool = True) -> tuple[FullRun, list[dict[str, float]]]:
    """The run, and where the time of each rank went; with clocks of their own a rank knows of no other's."""
    lives = [Life(plan, rank) for rank in range(len(plan.ends))]
    survivors = [life for life in lives if life.log.rank != plan.victim]
    first = min(life.noticed for life in survivors)
    own = {life.log.rank: life.noticed for life in survivors} | {plan.victim: lives[plan.victim].struck}
    ranks = [life.fails(first if one_clock else own[life.log.rank]) for life in lives]
    failure = Failure(kind="kill_rank", step=plan.at, target=plan.victim, go_on="fewer" if plan.gone else "same")
    run = full_run(*ranks, steps=len(plan.steps), failure=failure, nodes=len(ranks))
    if not one_clock:
        run = replace(run, ranks=tuple(shifted(r, 1e4 * r.rank, clock=f"clock {r.rank}") for r in run.ranks))
    return run, [dict(life.truth) for life in lives]


def told(rank: RankLedger) -> dict[str, float]:
    folded = sum(rank.seconds[state] for state in FOLDED)
    return {state: seconds for state, seconds in rank.seconds.items() if state not in FOLDED} | {"steps": folded}


def alike(one: Ledger, other: Ledger) -> bool:
    assert one.wall == pytest.approx(other.wall, abs=EXACT)
    for a, b in zip(one.ranks, other.ranks, strict=True):
        assert a.seconds == pytest.approx(b.seconds, abs=EXACT)
        assert (a.kept, a.lost, a.ends, a.rank) == (b.kept, b.lost, b.ends, b.rank)
    for kind in ("detection", "restart", "rendezvous", "load", "recovery"):
        assert getattr(one.events, kind) == pytest.approx(getattr(other.events, kind), abs=EXACT)
    return True


@settings(max_examples=150, deadline=None)
@given(plan=PLANS, one_clock=st.booleans())
def test_random_failures_are_accounted_as_they_were(plan: Plan, one_clock: bool) -> None:
    run, truth = played(plan, one_clock=one_clock)
    ledger = account(run)
    for rank, spent in zip(ledger.ranks, truth, strict=True):
        assert sum(rank.seconds.values()) == pytest.approx(rank.wall, abs=EXACT)
        assert all(seconds >= 0 for state, seconds in rank.seconds.items() if state != "residual")
        found = told(rank)
        assert {state: found.get(state, 0.0) for state in {*found, *spent}} == pytest.approx(
            {state: spent.get(state, 0.0) for state in {*found, *spent}}, abs=EXACT
        )
        gone = rank.rank in ledger.gone
        assert rank.kept == (plan.resumed if gone else len(plan.steps))
        assert rank.lost == plan.at - 1 - plan.resumed, "each lost step once"
    assert ledger.gone == ((plan.victim,) if plan.gone else ())
    assert len(ledger.steps) == len(plan.steps)


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, by=st.integers(0, 10**6))
def test_when_the_clocks_began_does_not_matter(plan: Plan, by: int) -> None:
    run, _ = played(plan)
    assert alike(account(run), account(replace(run, ranks=tuple(shifted(rank, by) for rank in run.ranks))))
    run, _ = played(plan, one_clock=False)
    each = (shifted(rank, by * (rank.rank + 1), clock=f"another {rank.rank}") for rank in run.ranks)
    assert alike(account(run), account(replace(run, ranks=tuple(each))))


def halved(run: RankRun) -> RankRun:
    """Every wait for data and every hook, nested or not, as two that follow each other."""
    processes = []
    for process in run.processes:
        lines: list[Line] = []
        for line in process.lines:
            if line.what in ("data", "hook") and not line.error:
                half = line.seconds / 2
                lines += [replace(line, seconds=half), replace(line, at=line.at + half, seconds=half)]
            else:
                lines.append(line)
        processes.append(replace(process, lines=tuple(lines)))
    return replace(run, processes=tuple(processes))


@settings(max_examples=60, deadline=None)
@given(plan=PLANS, one_clock=st.booleans())
def test_two_spans_that_follow_each_other_are_as_good_as_one(plan: Plan, one_clock: bool) -> None:
    run, _ = played(plan, one_clock=one_clock)
    assert alike(account(run), account(replace(run, ranks=tuple(map(halved, run.ranks)))))


@settings(max_examples=40, deadline=None)
@given(plan=PLANS)
def test_what_threads_do_beside_is_in_no_state(plan: Plan) -> None:
    run, _ = played(plan)
    ranks = []
    for rank in run.ranks:
        process = rank.processes[0]
        behind = Line(what="save", at=process.start.at, seconds=1.5, background=True)
        process = replace(process, lines=(process.lines[0], behind, *process.lines[1:]))
        ranks.append(replace(rank, processes=(process, *rank.processes[1:])))
    ledger = account(replace(run, ranks=tuple(ranks)))
    assert alike(account(run), ledger)
    assert {rank.background["save"] for rank in ledger.ranks} == {1.5}


@st.composite
def whatever(draw: st.DrawFn) -> Line:
    seconds, own = draw(milliseconds(0, 900)), draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
    return Line(
        what=draw(st.sampled_from(get_args(ProbeWhat))), at=draw(milliseconds(0, 9000)), seconds=seconds,
        own=None if own is None else own * seconds, step=draw(st.integers(0, 4)), tokens=TOKENS, name="evaluation",
        error=draw(st.sampled_from(["", "", "OSError"])), nested=draw(st.booleans()), background=draw(st.booleans()),
        value=draw(st.none() | st.floats(0, 9)),
    )  # fmt: skip


@st.composite
def nonsense(draw: st.DrawFn) -> FullRun:
    """Three steps as they should be, maybe with a failure, and among their lines some that no probe wrote so."""
    ranks, fails = [], draw(st.booleans())
    for rank in range(draw(st.integers(1, 2))):
        log = Rank(rank).ready().steps(1, 2)
        if fails and rank == 0:
            log.mark("fault", 3, name="kill_rank")
        elif fails:
            log.breaks(after=draw(milliseconds(0, 900)), step=3).ends("RuntimeError")
        if fails:
            log.passes(draw(milliseconds(900, 3000))).back(after=1, builds=0.5).step(2)
        made = log.step(3).finishes().run()
        processes = []
        for process in made.processes:
            lines = [*process.lines]
            for line in draw(st.lists(whatever(), max_size=2)):
                lines.insert(draw(st.integers(0, len(lines))), line)
            processes.append(replace(process, lines=tuple(lines)))
        ranks.append(replace(made, processes=tuple(processes)))
    return full_run(*ranks, steps=3, failure=Failure(kind="kill_rank", step=3) if fails else None, nodes=len(ranks))


@settings(max_examples=300, deadline=None)
@given(run=nonsense())
def test_what_no_probe_wrote_is_refused_or_accounted_without_negative_time(run: FullRun) -> None:
    try:
        ledger = account(run)
    except MeasurementError:
        return
    for rank in ledger.ranks:
        assert sum(rank.seconds.values()) == pytest.approx(rank.wall, abs=EXACT)
        assert all(seconds >= 0 for state, seconds in rank.seconds.items() if state != "residual")


def test_the_lines_of_a_plan_are_those_of_a_probe() -> None:
    """Spans of the main thread that are not nested follow each other, else this proves nothing."""
    each = {"data": 0.5, "seconds": 1.0, "inside": 0.5, "hook": 0.25, "idle": 0.01}
    ends = [dict.fromkeys(("data", "broken", "inside", "tidies", "away", "builds"), 0.5)] * 2
    plan = Plan(steps=[each] * 4, every=2, at=4, victim=0, ends=ends, gone=False)
    run, _ = played(plan)
    for rank in run.ranks:
        outermost = edited(rank, lambda line: line if line.seconds and not line.nested else None)
        for process in outermost.processes:
            for one, following in itertools.pairwise(process.lines):
                assert one.at + one.seconds <= following.at + EXACT
