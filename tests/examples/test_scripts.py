"""The example scripts under torchrun: a rank is killed and they go on, and their work is the same on any world."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import SAVE_EVERY, STEPS, TOKENS, TRAINERS, end, losses, skip_without_trainer, torchrun

from pytest_clusterqual.commands.probe_import import import_probe
from pytest_clusterqual.judge.full_run.rank_account import RESIDUAL
from pytest_clusterqual.model.probe import ProbeLedger

KILLED_AFTER = 10


@pytest.fixture(scope="module", params=TRAINERS)
def example(request: pytest.FixtureRequest) -> str:
    skip_without_trainer(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def killed(example: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, the second of which is killed on the way."""
    folder = tmp_path_factory.mktemp(example) / "killed"
    end(torchrun(example, folder, ranks=2, restarts=1, kill=(1, KILLED_AFTER)), folder)
    return folder


@pytest.fixture(scope="module")
def ledger(killed: Path) -> ProbeLedger:
    return import_probe(killed / "probe")


def test_a_killed_run_goes_on_after_its_checkpoint_to_the_end(ledger: ProbeLedger) -> None:
    assert (ledger.world, ledger.restarts, ledger.kept) == (2, 1, STEPS)
    assert (ledger.unit, ledger.work) == ("tokens", STEPS * TOKENS)
    assert KILLED_AFTER - SAVE_EVERY <= ledger.lost < SAVE_EVERY
    assert [rank.ends[-1] for rank in ledger.ranks] == ["done", "done"]
    assert ledger.ranks[1].ends[0] == ""
    assert ledger.saves is not None
    assert ledger.saves.count == STEPS // SAVE_EVERY


def test_every_second_has_a_name(ledger: ProbeLedger, example: str) -> None:
    states = {"init", "kept", "data", "checkpoint", "lost", "reload"}
    if example != "plain":
        states.add("hook evaluation")
    for rank in ledger.ranks:
        assert {state for state in states if rank.seconds[state] <= 0} == set()
        assert sum(rank.seconds.values()) == pytest.approx(rank.wall)
    # What has no name has none on any rank; where one of them was not let run between two spans, that is its own.
    assert any(abs(rank.seconds["residual"]) < max(0.005 * rank.wall, 1.0) for rank in ledger.ranks)
    assert [text for text in ledger.warnings if "cut off by a kill" not in text and RESIDUAL not in text] == []


def test_steps_that_are_done_again_have_the_same_loss(killed: Path) -> None:
    first, second = losses(killed)
    again = first.keys() & second.keys()
    assert SAVE_EVERY + 1 in again
    assert {step: second[step] for step in again} == pytest.approx({step: first[step] for step in again}, rel=1e-4)
    assert second[STEPS] < 0.8 * first[1], "it learns"


def test_the_work_of_a_step_is_the_same_on_one_rank(example: str, killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    end(torchrun(example, folder, ranks=1), folder)
    (alone,), (first, second) = losses(folder), losses(killed)
    assert alone == pytest.approx({**first, **second}, rel=1e-3)
    assert import_probe(folder / "probe").work == STEPS * TOKENS
