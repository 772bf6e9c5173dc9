"""Every failure that can be planned on ranks: it strikes where it should, and the next attempt is the same training."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_harness import DDP, PATIENCE, TINY, run_ranks

from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.full_run import Checkpoints, Failure, RankRun
from pytest_clusterqual.model.probe import Line, ProbedProcess
from pytest_clusterqual.rank import notice
from pytest_clusterqual.rank.checkpoint_folders import complete_steps
from pytest_clusterqual.rank.full_run import LOGS, read_process, run

pytestmark = pytest.mark.slow

STEPS, EVERY = 9, 3
HANG = 4.0  # seconds; longer than a busy machine keeps a rank from a step
PURPOSE = "rank 1 raises this on purpose: full_run.failure"
BROKEN = "the checkpoint cannot be written or read ([Errno 5] Input/output error, on purpose: full_run.failure"


def attempt(ctx: Any, **arguments: Any) -> Any:
    """As its node's guard does, end a rank that hangs once another one has failed by it."""
    try:
        return run(ctx, **arguments)
    except RuntimeError:
        stopped = read_process(Path(arguments["folder"]) / LOGS / "rank1-attempt0.jsonl").start.pid
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            state = Path(f"/proc/{stopped}/status").read_text().partition("State:\t")[2][:1]
            if state == "T":
                os.kill(stopped, signal.SIGKILL)
        raise


def plan(folder: Path, mode: Any, **failure: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)  # as the session does
    return {
        "workload": to_json(TINY), "layout": DDP, "steps": STEPS, "hang_timeout": PATIENCE, "folder": str(folder),
        "checkpoints": to_json(Checkpoints(every=EVERY, mode=mode)),
        "failure": to_json(Failure(**failure)) if failure else None,
    }  # fmt: skip


def lines(process: ProbedProcess, what: str) -> Iterator[Line]:
    return (line for line in process.lines if line.what == what)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float | None]:
    place = tmp_path_factory.mktemp("undisturbed")
    answers = run_ranks(attempt, place, nodes=["a", "b"], **plan(place / "checkpoints", "sync"))
    whole: tuple[RankRun, ...] = from_json(tuple[RankRun, ...], answers[0])
    return {line.step: line.value for line in lines(whole[0].processes[0], "loss")}


@pytest.mark.parametrize(
    ("kind", "mode", "step", "resumes", "survivor", "victim"),
    [
        ("kill_rank", "sync", 8, 6, "RuntimeError: ", None),
        ("hang_rank", "sync", 8, 6, f"Timed out waiting {HANG * 1000:.0f}ms", None),
        ("raise_rank", "sync", 8, 6, "RuntimeError: ", PURPOSE),
        ("fail_save", "sync", 5, 3, BROKEN, BROKEN),
        # In the background each rank looks after its own part: who looks later finds the other gone.
        ("fail_save", "async", 5, 3, "Error: ", "Error: "),
    ],
)
def test_what_fails_fails_as_planned_and_goes_on_as_if_nothing_had_happened(
    kind: Any, mode: Any, step: int, resumes: int, survivor: str, victim: str | None, tmp_path: Path,
    undisturbed: dict[int, float | None],
) -> None:  # fmt: skip
    arguments = plan(tmp_path / "checkpoints", mode, kind=kind, step=step, target=1)
    first = {**arguments, "hang_timeout": HANG} if kind == "hang_rank" else arguments
    answers = run_ranks(attempt, tmp_path, nodes=["a", "b"], survive_death=True, **first)
    assert survivor in answers[0]
    assert answers[1] is None if victim is None else victim in answers[1]
    assert kind != "fail_save" or BROKEN in answers[0] + answers[1]
    ranks = [
        from_json(tuple[RankRun, ...], answer)[0]
        for answer in run_ranks(attempt, tmp_path, nodes=["a", "b"], **arguments)
    ]
    for rank in ranks:
        failed, again = rank.processes
        faults = [(line.name, line.step) for line in lines(failed, "fault")]
        assert faults == ([(kind, max(step, 7 if kind == "fail_save" else 0))] if rank.rank == 1 else [])
        assert [line.step for line in lines(again, "resumed")] == [resumes]
        assert [line.step for line in lines(again, "step")] == list(range(resumes + 1, STEPS + 1))
        assert not list(lines(again, "fault"))
        losses = {line.step: line.value for process in (failed, again) for line in lines(process, "loss")}
        assert losses == undisturbed
    struck = next(lines(ranks[1].processes[0], "fault")).at
    noticed = [line for line in ranks[0].processes[0].lines if line.error]
    assert noticed[0].at + noticed[0].seconds >= struck
    assert kind != "hang_rank" or noticed[0].seconds >= HANG, "it may have begun to wait before"
    if kind != "fail_save" or mode == "sync":  # a save in the background fails beside the steps
        assert noticed[0].what == ("save" if kind == "fail_save" else "step")


def told_to_end(ctx: Any, *, at: int, **arguments: Any) -> Any:
    """One rank gets SIGTERM when a step is over, as from its node's agent."""

    notice.LEAST_PATIENCE = PATIENCE  # in this process, which ends with the test

    def tell(done: float, _total: float, _what: str) -> None:
        if done == at and ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    return [run(replace(ctx, tell=tell), **arguments)]


def test_who_is_told_to_end_saves_and_leaves_nothing_to_do_again(tmp_path: Path) -> None:
    arguments = {**plan(tmp_path / "checkpoints", "async"), "steps": 200}
    assert run_ranks(told_to_end, tmp_path, nodes=["a", "b"], at=4, **arguments) == [[None], [None]]
    logs = [read_process(tmp_path / "checkpoints" / LOGS / f"rank{rank}-attempt0.jsonl") for rank in (0, 1)]
    last = [max(line.step for line in lines(process, "step")) for process in logs]
    assert last[0] == last[1]
    assert 5 <= last[0] < 200
    assert complete_steps(tmp_path / "checkpoints")[-1] == last[0]
    for process in logs:
        assert not any(line.error for line in process.lines)
        assert not list(lines(process, "done"))
        assert process.lines[-1].what == "end"
