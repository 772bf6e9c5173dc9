"""Random span trees, kills, exceptions and restarts under the real probe: the ledger says where the time went."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_made import Process, Run, Tick

from pytest_clusterqual.model.probe import RankLedger

STATES = {"data": "data", "save": "checkpoint", "load": "load", "compile": "steps", "step": "steps"}
AGAIN = {"init": "rendezvous", "load": "reload"}
FOLDED = {"kept", "lost", "warm-up", "re-warm-up"}  # where a step's own seconds go is tested in test_judge_probe.py


def truth(processes: list[tuple[Process, float]]) -> tuple[dict[str, float], float]:
    """Seconds by state, and the wall clock, straight from the time that passed."""
    seconds: defaultdict[str, float] = defaultdict(float)
    wall = 0.0
    for place, (process, outage) in enumerate(processes):
        last = place == len(processes) - 1
        seconds["outage"] += outage
        wall += outage
        for i, tick in enumerate(process.ticks):
            untold, unseen = i >= max(process.closed, process.lived), process.killed and i >= process.signs
            state = _state(process, tick, untold=untold, unseen=unseen)
            if process.closed <= i < process.lived and not (tick.spans and tick.spans[-1].written):
                state = "init" if i < process.worked else "residual"  # around a step, and never written
            if last and state == "outage":
                continue  # nobody knows that it still lived
            if state == "open":
                state = "residual" if last else "outage"
            wall += tick.seconds
            seconds[AGAIN.get(state, state) if place else state] += tick.seconds
    return dict(seconds), wall


def _state(process: Process, tick: Tick, *, untold: bool, unseen: bool) -> str:
    """`untold`: no outermost span around it or after it was written, and no step; `unseen`: nothing was."""
    innermost = tick.spans[-1] if tick.spans else None
    if innermost is not None and innermost.written:
        failed = innermost.kind == "step" and innermost.failed
        return "failed" if failed else STATES.get(innermost.kind, f"hook {innermost.kind}")
    if unseen:
        return "outage"
    if tick.after_done:
        return "teardown"
    if process.killed and untold and not process.finished:
        return "open"
    if tick.before_work:
        return "init"
    return "teardown" if untold and not process.finished else "residual"


Life = dict[str, Any]
MILLISECONDS = st.integers(0, 3000).map(lambda ms: ms / 1000)
TREES = st.recursive(
    MILLISECONDS,
    lambda inner: st.tuples(
        st.sampled_from(["step", "data", "save", "load", "compile", "evaluation", "logging"]),
        st.lists(inner, max_size=4),
        st.sampled_from([False, False, False, True]),
    ),
    max_leaves=12,
)
LIVES = st.fixed_dictionaries({
    "imports": MILLISECONDS, "resumed": st.none() | st.integers(0, 6), "spans": st.lists(TREES, max_size=8),
    "kill_after": st.none() | MILLISECONDS.map(lambda seconds: 4 * seconds), "done": st.booleans(),
    "outage": MILLISECONDS,
})  # fmt: skip


def played(folder: Path, lives: list[Life], *, now: float) -> Run:
    run = Run(folder, now=now)
    for life in lives:
        with run.process(imports=life["imports"], kill_after=life["kill_after"]) as process:
            if life["resumed"] is not None:
                process.resumed(life["resumed"])
            for tree in life["spans"]:
                try:
                    play(process, tree)
                except ArithmeticError:
                    pass
            if life["done"]:
                process.done()
                process.passes(0.5)
        run.clock.now += life["outage"]
    return run


def play(process: Process, tree: Any, *, within: str = "") -> None:
    if isinstance(tree, float):
        process.passes(tree)
        return
    kind, inner, fails = tree
    with process.span("evaluation" if kind == "step" and "step" in within else kind):
        for each in inner:
            play(process, each, within=f"{within}/{kind}")
        if fails:
            raise ArithmeticError


def kept_and_lost(processes: list[tuple[Process, float]]) -> tuple[int, int]:
    """A step is lost if a later one, or the last resumption, goes back to before it."""
    events = [event for process, _outage in processes for event in process.steps]
    floors = [
        number - 1 if what == "step" else number if i == len(events) - 1 else 10**9
        for i, (what, number) in enumerate(events)
    ]
    done = [(i, number) for i, (what, number) in enumerate(events) if what == "step"]
    lost = [number for i, number in done if any(floor < number for floor in floors[i + 1 :])]
    return len(done) - len(lost), len(lost)


@settings(max_examples=120, deadline=None)
@given(lives=st.lists(LIVES, min_size=1, max_size=4))
def test_random_spans_and_failures_are_accounted_as_they_were(lives: list[Life]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = played(Path(folder), lives, now=1000.0)
        (rank,) = run.ledger().ranks
    expected, wall = truth(run.processes[0])
    assert rank.wall == pytest.approx(wall, abs=1e-3)
    assert sum(rank.seconds.values()) == pytest.approx(rank.wall, abs=1e-9)
    assert all(seconds >= 0 for state, seconds in rank.seconds.items() if state != "residual")
    folded = sum(rank.seconds[state] for state in FOLDED)
    told = {state: seconds for state, seconds in rank.seconds.items() if state not in FOLDED} | {"steps": folded}
    states = {*told, *expected}
    assert {state: told.get(state, 0.0) for state in states} == pytest.approx(
        {state: expected.get(state, 0.0) for state in states}, abs=1e-3
    )
    assert (rank.kept, rank.lost) == kept_and_lost(run.processes[0])


@settings(max_examples=40, deadline=None)
@given(lives=st.lists(LIVES, min_size=1, max_size=3), shift=st.integers(0, 10**7))
def test_when_the_clock_began_does_not_matter(lives: list[Life], shift: int) -> None:
    found: list[RankLedger] = []
    for now in (1000.0, 1000.0 + shift):
        with tempfile.TemporaryDirectory() as folder:
            (rank,) = played(Path(folder), lives, now=now).ledger().ranks
            found.append(rank)
    before, after = found
    assert after.seconds == pytest.approx(before.seconds, abs=1e-3)
    assert replace(after, seconds={}, wall=0.0, data_stall=None) == replace(
        before, seconds={}, wall=0.0, data_stall=None
    )


def ends_well(tree: Any) -> bool:
    return isinstance(tree, float) or (not tree[2] and all(map(ends_well, tree[1])))


def halved(trees: list[Any]) -> list[Any]:
    """Every hook and every wait for data that ends well as two that follow each other."""
    found: list[Any] = []
    for tree in trees:
        if isinstance(tree, float):
            found.append(tree)
            continue
        kind, inner, fails = tree
        within, half = halved(inner), len(inner) // 2
        if kind in ("evaluation", "logging", "data") and ends_well(tree):
            found += [(kind, halved(inner[:half]), False), (kind, halved(inner[half:]), False)]
        else:
            found.append((kind, within, fails))
    return found


@settings(max_examples=60, deadline=None)
@given(lives=st.lists(LIVES.map(lambda life: {**life, "kill_after": None}), min_size=1, max_size=3))
def test_two_spans_that_follow_each_other_are_as_good_as_one(lives: list[Life]) -> None:
    found: list[RankLedger] = []
    for each in (lives, [{**life, "spans": halved(life["spans"])} for life in lives]):
        with tempfile.TemporaryDirectory() as folder:
            (rank,) = played(Path(folder), each, now=1000.0).ledger().ranks
            found.append(rank)
    whole, parts = found
    assert parts.wall == pytest.approx(whole.wall, abs=1e-3)
    assert parts.seconds == pytest.approx(whole.seconds, abs=1e-3)
    assert (parts.kept, parts.lost, parts.ends) == (whole.kept, whole.lost, whole.ends)
