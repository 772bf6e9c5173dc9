"""A rank whose data come slowly is the one that is blamed for it in a full run, however much the others wait."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_harness import DDP, TINY, run_ranks

from pytest_clusterqual.judge.full_run.verdict import judge_full_run
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.full_run import Checkpoints, FullRun, FullRunMeasurement, RankRun
from pytest_clusterqual.model.workload import Loader
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.full_run import run

pytestmark = pytest.mark.slow

STEPS, SLOW_READ = 6, 0.06  # seconds a sample, of which a rank takes four a step


def with_slow_reader(ctx: Any, **arguments: Any) -> Any:
    if ctx.rank == 1:
        read = ByteData._sample

        def slow(self: ByteData, number: int) -> bytes:
            time.sleep(SLOW_READ)
            return read(self, number)

        ByteData._sample = slow  # type: ignore[method-assign]
    return run(ctx, **arguments)


@pytest.mark.parametrize("loader", [Loader(), Loader(workers=1)], ids=["thread", "process"])
def test_the_rank_with_slow_data_is_named(tmp_path: Path, loader: Loader) -> None:
    folder, saving = tmp_path / "checkpoints", Checkpoints(every=STEPS, mode="sync")
    folder.mkdir()
    answers = run_ranks(
        with_slow_reader, tmp_path, nodes=["a", "b"], workload=to_json(replace(TINY, loader=loader)), layout=DDP,
        steps=STEPS, checkpoints=to_json(saving), failure=None, folder=str(folder),
    )  # fmt: skip
    conditions = Conditions(
        nodes=2, nproc_per_node=1, ranks=2, hosts=("a", "b"), rank_nodes=("a", "b"), simulated=False,
        oversubscribed=False, device="cpu", device_name="cpu", backend="gloo", versions={},
    )  # fmt: skip
    full_run = FullRun(
        conditions=conditions, ranks=tuple(rank for told in answers for rank in from_json(tuple[RankRun, ...], told)),
        steps=STEPS, tokens_per_step=TINY.tokens_per_step, checkpoints=saving,
    )  # fmt: skip
    measured = FullRunMeasurement(conditions=conditions, run=full_run, started=0.0, seconds=1.0)
    (stall,) = [each for each in judge_full_run(measured, ()) if each.quantity == "data_stall"]
    assert "rank 1 on b" in stall.reason
    assert stall.per_rank["1"] > 2 * stall.per_rank["0"]
