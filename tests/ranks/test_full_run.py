"""A full run: what is written down survives a kill, and training goes on as if nothing had happened."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rank_harness import DDP, FSDP, TINY, run_ranks
from test_factory import OWN

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.full_run import RankRun
from pytest_clusterqual.model.probe import Line
from pytest_clusterqual.model.workload import Factory
from pytest_clusterqual.probe import Probe
from pytest_clusterqual.rank.full_run import _seed, read_process, run

STEPS, EVERY, KILL_AT = 9, 3, 8
KILL = {"kind": "kill_rank", "step": KILL_AT, "target": 1}


def plan(tmp_path: Path, name: str, *, mode: str = "async", **changes: Any) -> dict[str, Any]:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)  # as the session does
    usual = {
        "workload": to_json(TINY), "layout": DDP, "steps": STEPS, "checkpoints": {"every": EVERY, "mode": mode},
        "failure": None, "folder": str(folder),
    }  # fmt: skip
    return {**usual, **changes}


def trained(tmp_path: Path, arguments: dict[str, Any]) -> list[RankRun]:
    """Each rank's own run."""
    answers = run_ranks(run, tmp_path, nodes=["a", "b"], **arguments)
    told = [from_json(tuple[RankRun, ...], answer) for answer in answers]
    assert [len(mine) for mine in told] == [1, 1], "no rank is gone"
    return [mine for (mine,) in told]


def lines(rank: RankRun, what: str) -> list[tuple[int, Line]]:
    """With the number of the process that wrote each."""
    return [(n, line) for n, process in enumerate(rank.processes) for line in process.lines if line.what == what]


def losses(rank: RankRun) -> dict[int, float | None]:
    """The last one of each step."""
    return {line.step: line.value for _, line in lines(rank, "loss")}


def test_a_checkpoint_folder_that_a_node_does_not_see_is_told(tmp_path: Path) -> None:
    usual = plan(tmp_path, "unseen", folder=str(tmp_path / "elsewhere"))
    answers = run_ranks(run, tmp_path, nodes=["a"], **usual)
    assert "a does not see the checkpoint folder" in answers[0]
    assert "full_run.checkpoint.folder" in answers[0]


def test_a_step_that_is_done_again_draws_the_same_numbers() -> None:
    def drawn(step: int, *, rank: int = 0, seed: int = 1) -> list[float]:
        _seed(SimpleNamespace(rank=rank, world_size=2), replace(TINY, seed=seed), step)  # type: ignore[arg-type]
        return [torch.rand(()).item(), random.random(), np.random.random()]

    first = drawn(3)
    others = [drawn(4), drawn(3, rank=1), drawn(3, seed=2)]
    assert drawn(3) == first
    assert all(len({numbers[place] for numbers in (first, *others)}) == 4 for place in range(3))


@pytest.mark.slow
def test_a_factory_that_drops_has_the_losses_of_an_undisturbed_run_once_it_goes_on(tmp_path: Path) -> None:
    workload = to_json(replace(OWN, factory=Factory(name="own_made:make", arguments={"dropout": 0.5})))

    def ran(name: str, steps: int) -> dict[int, float | None]:
        ((told,),) = (
            from_json(tuple[RankRun, ...], answer)
            for answer in run_ranks(
                run, tmp_path, nodes=["a"], **plan(tmp_path, name, mode="sync", workload=workload, steps=steps)
            )
        )
        return losses(told)

    undisturbed = ran("undisturbed", STEPS)
    ran("resumed", EVERY + 1)
    assert ran("resumed", STEPS) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "mode"), [(DDP, "async"), (FSDP, "sync")], ids=["ddp-async", "fsdp-sync"])
def test_losses_after_a_kill_are_those_of_an_undisturbed_run(tmp_path: Path, layout: Any, mode: str) -> None:
    undisturbed = trained(tmp_path, plan(tmp_path, "undisturbed", layout=layout, mode=mode))
    killing = plan(tmp_path, "killed", layout=layout, mode=mode, failure=KILL)
    survivor, killed = run_ranks(run, tmp_path, nodes=["a", "b"], survive_death=True, **killing)
    assert killed is None
    assert survivor.startswith("RuntimeError")
    resumed = trained(tmp_path, killing)

    for rank, (before, after) in enumerate(zip(undisturbed, resumed, strict=True)):
        assert before.rank == after.rank == rank
        assert after.data_digest == before.data_digest
        assert list(losses(before)) == list(range(1, STEPS + 1))
        assert losses(after) == losses(before)
        assert losses(after)[1] == pytest.approx(math.log(TINY.model.vocab), rel=0.02), "nothing is learned yet"
        # A background save of step 6 may or may not be complete at the kill; that of step 3 is.
        ((_, first), (_, again)) = lines(after, "resumed")
        assert first.step == 0
        assert again.step in ((6,) if mode == "sync" else (3, 6))
        done = [(n, line.step) for n, line in lines(after, "step") if not line.error]
        assert done == [(0, step) for step in range(1, KILL_AT)] + [(1, n) for n in range(again.step + 1, STEPS + 1)]
        saved = [(n, line.step) for n, line in lines(after, "saved")]
        assert (saved[0], saved[-1]) == ((0, 3), (1, 9))
        assert all(line.value and line.value > 0 for _, line in lines(after, "saved")), "bytes of this rank"
        assert [(n, line.step) for n, line in lines(after, "fault")] == ([(0, KILL_AT)] if rank else [])
        assert [(n, line.error) for n, line in lines(after, "end")][-1] == (1, "")
    ends = [[n for n, _ in lines(rank, "end")] for rank in resumed]
    assert ends == [[0, 1], [1]], "one that is killed ends without a word"
    broken = [line.step for _, line in lines(resumed[0], "step") if line.error]
    assert broken == [KILL_AT] or (mode == "async" and not broken), "a save in the background may notice it first"


@pytest.mark.slow
def test_spans_of_one_process_do_not_overlap_and_lie_within_the_run(tmp_path: Path) -> None:
    before = time.monotonic()
    for result in trained(tmp_path, plan(tmp_path, "run")):
        (process,) = result.processes
        spans = sorted((line for line in process.lines if line.seconds), key=lambda line: line.at)
        # Each is written to the microsecond.
        assert all(one.at + one.seconds <= following.at + 2e-6 for one, following in itertools.pairwise(spans))
        assert not any(line.nested or line.background for line in spans)
        # The kernel knows the start of a process to a tick of 10 ms.
        assert before - 0.01 <= result.began == process.start.began <= process.start.at <= spans[0].at
        assert result.ended <= time.monotonic()
        assert [line.what for line in spans] == [
            "load", *[*["data", "step"] * EVERY, "save"] * (STEPS // EVERY), "hook"
        ]  # fmt: skip
        # Next to nothing lies between them, but where a busy machine held this process up, or ranks waited to begin.
        between = sorted(following.at - one.at - one.seconds for one, following in itertools.pairwise(spans))
        assert sum(between[:-3]) < 0.05 * sum(line.seconds for line in spans)
        (end,) = [line for line in process.lines if line.what == "end"]
        assert (end.host_peak or 0) > 10 * 2**20


def test_a_file_is_read_up_to_the_line_that_a_kill_tore(tmp_path: Path) -> None:
    probe = Probe(tmp_path, rank=3)
    with probe.step(tokens=64):
        pass
    probe.loss(5.5)
    probe.close()
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b'{"what": "st')
    process = read_process(path)
    assert (process.start.rank, process.start.attempt) == (3, 0)
    assert [(line.what, line.step, line.tokens, line.value) for line in process.lines] == [
        ("step", 1, 64, None), ("loss", 1, None, 5.5), ("end", 1, None, None),
    ]  # fmt: skip
    assert from_json(type(process), json.loads(json.dumps(to_json(process)))) == process


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"what":"born","at":1.0}', "line.what: got 'born', want"),
        ('{"what":"step"}', "line: the field 'at' is missing"),
        ('{"what":"step","at":1.0,"steps":2}', "line: got unknown field 'steps'"),
        ("no JSON", "Expecting value"),
    ],
)
def test_a_whole_line_that_is_none_of_a_probe_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    Probe(tmp_path, rank=0).close()
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(MeasurementError, match=f"{path}: .*{message}"):
        read_process(path)
