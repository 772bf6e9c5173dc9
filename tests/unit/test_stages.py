"""The parts of a step, from the lines of the real probe to the columns of a rank."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from probe_made import Run, ledger, steps

from pytest_clusterqual.judge.full_run.columns import columns
from pytest_clusterqual.judge.full_run.life import DoneStep
from pytest_clusterqual.judge.full_run.rank_account import RankAccount
from pytest_clusterqual.read.probe import probe_files, probe_lines

EXACT = 1e-5


def kept(folder: Path, rank: int = 0) -> list[DoneStep]:
    account = RankAccount(rank)
    for file in probe_files(folder, lambda _: None)[rank]:
        account.add(file.start, probe_lines(file, lambda _: None))
    account.close()
    return account.kept


def test_a_step_begins_where_the_one_before_it_has_ended(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 1, data=0.25)
        with process.span("log"):
            process.passes(0.5)
        process.passes(0.25)
        with process.span("data"):
            process.passes(0.125)
        with process.span("step"):
            process.passes(0.25)
            process.probe.stage("forward")
            with process.span("data"):
                process.passes(0.125)
            process.passes(0.5)
        process.done()
    first, second = (step.reached for step in kept(tmp_path))
    assert (first.between, first.data, first.over) == pytest.approx((0.0, 0.25, 1.25), abs=EXACT)
    assert first.marks == ()
    assert second.at == pytest.approx(first.at + 1.25, abs=EXACT)
    assert (second.between, second.data) == pytest.approx((0.75, 1.0), abs=EXACT)
    assert [(name, pytest.approx(at, abs=EXACT)) for name, at in second.marks] == [("forward", 1.125)]
    assert second.over == pytest.approx(1.75, abs=EXACT)
    assert second.beside == ("hook log",)


def test_after_a_step_that_failed_the_next_one_begins_anew(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 1)
        with suppress(KeyError), process.span("step"):
            process.passes(5.0)
            raise KeyError
        process.passes(3.0)
        steps(process, 1, data=0.5)
        process.done()
    last = kept(tmp_path)[-1].reached
    assert (last.between, last.data, last.over) == pytest.approx((0.0, 0.5, 1.5), abs=EXACT)


def test_the_first_step_of_a_process_does_not_hold_the_outage(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        steps(process, 3)
        process.die()
    run.clock.now += 60.0
    with run.process() as process:
        process.resumed(3)
        steps(process, 3)
        process.done()
    assert [step.reached.over for step in kept(tmp_path)] == pytest.approx([1.25] * 6, abs=EXACT)


def test_a_part_that_some_steps_do_not_name_is_over_there_with_the_one_before_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with run.process() as process:
        for marked in (True, False, True):
            with process.span("step"):
                process.passes(0.5)
                if marked:
                    process.probe.stage("forward")
                process.passes(0.5)
        process.done()
    found = columns(kept(tmp_path))
    assert list(found.bounds) == ["between", "data", "forward", "step"]
    assert found.bounds["forward"] == pytest.approx(np.array([0.5, 0.0, 0.5]), abs=EXACT)
    assert found.tokens.tolist() == [100] * 3


def test_the_rank_whose_loader_is_slow_is_named_by_the_import(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for rank in range(2):
        run.clock.now = 1000.0
        with run.process(rank) as process:
            steps(process, 300, data=0.25 + 0.25 * rank, step=1.0 - 0.25 * rank)  # they wait for each other
            process.done()
    seen = ledger(tmp_path).over_time
    (finding,) = seen.findings
    assert finding.kind == "slow rank"
    assert finding.suspect.startswith("rank 1 on ")
    assert "reached the end of 'data' later than the others in 32 of 32 parts of the run, by [20 %, 20 %]" in (
        finding.evidence
    )
    assert seen.stages == pytest.approx({"between": 0.0, "data": 0.5, "step": 0.75}, abs=EXACT)
    assert seen.drift == pytest.approx(0.0, abs=EXACT)
