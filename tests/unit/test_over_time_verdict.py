"""Drift and findings over time in the verdict of a full run."""

from __future__ import annotations

import numpy as np
import pytest
from full_run_made import Rank, full_run, measured, quiet, quiet_run
from judge_made import require, the

from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.full_run import FullRun
from pytest_clusterqual.model.record import Judgement, Verdict

STEPS = 400


def long_run(*, grows: float = 0.0, late: float = 0.0) -> FullRun:
    """Two ranks that wait for each other; the second one's data come `late` seconds later."""
    jitter = np.exp(0.01 * np.random.default_rng(0).standard_normal(STEPS))
    ranks = []
    for number in range(2):
        rank = Rank(number).ready()
        for step in range(1, STEPS + 1):
            whole = float(jitter[step - 1]) * (1 + grows * step / STEPS)
            data = 0.1 + late * number
            rank.step(step, data=data, seconds=0.1 + late + whole - data)
        ranks.append(rank.finishes().run())
    return full_run(*ranks, steps=STEPS)


def drift_of(run: FullRun, *required: str) -> Judgement:
    return the(judge_full_run(measured(run), [require("full_run", "drift", text) for text in required]), "drift")


@pytest.mark.parametrize(("wanted", "verdict"), [("<= 20 %", Verdict.PASS), ("<= 3 %", Verdict.FAIL)])
def test_drift_is_judged_by_its_interval(wanted: str, verdict: Verdict) -> None:
    judged = drift_of(long_run(grows=0.1), wanted)
    assert judged.verdict is verdict
    assert judged.value == pytest.approx(0.1 / 1.1, abs=0.01)
    assert judged.interval is not None
    assert judged.interval.kind == "bootstrap"
    assert [finding.kind for finding in judged.findings] == ["drift"]


def test_no_drift_accuses_nobody() -> None:
    judged = drift_of(long_run(), "<= 1 %")
    assert (judged.verdict, judged.findings) == (Verdict.PASS, ())


def test_the_rank_that_reads_slowly_stands_beside_the_drift() -> None:
    (finding,) = drift_of(long_run(late=0.2)).findings
    assert (finding.suspect, finding.kind, finding.level) == ("rank 1 on node1", "slow rank", "suspect")


def test_a_short_run_has_no_drift_and_cannot_pass_it() -> None:
    judged = drift_of(quiet_run(), "<= 1 %")
    assert judged.verdict is Verdict.ERROR
    assert judged.reason == (
        "drift was not measured: 10 steps are too few, want 256 or more: nothing is said of drift, changes and stalls"
    )
    assert "drift" not in [j.quantity for j in judge_full_run(measured(quiet_run()), [])]


def test_what_a_short_run_shows_is_told_although_there_is_no_drift() -> None:
    ranks = (quiet(0, 40, data=0.1, step=1.4), quiet(1, 40, data=0.5, step=1.0))
    judged = the(judge_full_run(measured(full_run(*ranks, steps=40)), []), "drift")
    assert (judged.value, judged.verdict) == (None, Verdict.MEASURED)
    assert [finding.suspect for finding in judged.findings] == ["rank 1 on node1"]
