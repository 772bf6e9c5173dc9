"""The fixed work, timed."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rank_harness import DDP, TINY, run_ranks

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.training import RankTraining
from pytest_clusterqual.rank.training import check_finite, collector_at_rest, fixed_work, timed_steps


def fixed_work_noting_reports(ctx: Any, **arguments: Any) -> Any:
    """The measurement, and whether any report came between the first and the last step."""
    reports: list[float] = []
    ctx.tell = lambda done, total, what: reports.append(done)
    return {"result": fixed_work(ctx, **arguments), "reports": reports}


@pytest.mark.slow
def test_every_step_of_the_fixed_work_is_kept(tmp_path: Path) -> None:
    began = time.perf_counter()
    answers = run_ranks(
        fixed_work_noting_reports, tmp_path, nodes=["a", "b"], workload=to_json(TINY), layout=DDP, warmup=2
    )
    elapsed = time.perf_counter() - began
    results = [from_json(RankTraining, answer["result"]) for answer in answers]
    for rank, result in enumerate(results):
        assert result.rank == rank
        assert (len(result.warmup_seconds), len(result.step_seconds), len(result.data_seconds)) == (2, 4, 4)
        assert len(result.losses) == 6
        assert result.tokens_per_step == 8 * 16
        assert result.work_seconds == pytest.approx(sum(result.step_seconds))
        assert 0 < sum(result.warmup_seconds) + result.work_seconds < elapsed
        assert all(0 < data < step for data, step in zip(result.data_seconds, result.step_seconds, strict=True))
    assert results[0].losses == results[1].losses
    assert results[0].losses[-1] < results[0].losses[0]
    assert results[0].data_digest == results[1].data_digest
    assert [answer["reports"] for answer in answers] == [[0, 2, 6]] * 2


@pytest.mark.slow
def test_routing_and_stages_are_kept_with_the_steps(tmp_path: Path) -> None:
    workload = replace(TINY, model=replace(TINY.model, experts=2))
    layout = {"name": "pp2", "pipeline": 2, "context": 2}
    answers = run_ranks(fixed_work, tmp_path, nodes=["a"] * 4, workload=to_json(workload), layout=layout, warmup=1)
    for result in (from_json(RankTraining, answer) for answer in answers):
        assert result.routing is not None
        assert [sum(tokens) for tokens in result.routing.tokens] == [5 * TINY.tokens_per_step] * TINY.model.layers
        assert result.pipeline is not None
        assert (result.pipeline.stages, result.pipeline.microbatches, len(result.pipeline.seconds)) == (2, 4, 4)
        assert all(0 < own < step for own, step in zip(result.pipeline.computing, result.step_seconds, strict=True))
        assert "keys and values of all tokens are gathered" in result.otherwise[0]
        assert result.losses[-1] < result.losses[0]


@pytest.mark.slow
def test_a_diverging_job_is_no_measurement(tmp_path: Path) -> None:
    workload = replace(TINY, optimizer=replace(TINY.optimizer, lr=1e30))
    for answer in run_ranks(fixed_work, tmp_path, nodes=["a"], workload=to_json(workload), layout=DDP, warmup=1):
        assert answer.startswith("MeasurementError: the loss of step ")
        assert "lower optimizer.lr or use precision fp32" in answer


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_names_its_step(loss: float) -> None:
    check_finite(1.0, 6)
    with pytest.raises(MeasurementError, match=f"the loss of step 7 is {loss}: this job does not train"):
        check_finite(loss, 7)


def test_data_time_and_step_time_are_told_apart() -> None:
    def slow_data() -> Iterator[list[Any]]:
        for step in range(1, 4):
            time.sleep(0.02 if step == 2 else 0)
            yield []

    def slow_step(batches: object) -> torch.Tensor:
        time.sleep(0.01)
        return torch.zeros(())

    ctx: Any = SimpleNamespace(rank=0, world_size=1, synchronize=lambda: None)
    job: Any = SimpleNamespace(step=slow_step)
    times = timed_steps(ctx, job, slow_data(), 3)
    assert min(times.data_seconds) < 0.02 <= times.data_seconds[1]
    assert times.step_seconds[1] >= 0.03
    assert times.step_seconds[0] >= 0.01
    assert times.whole == pytest.approx(sum(times.step_seconds))


def test_the_instrument_costs_as_little_as_some_looks_at_the_clock() -> None:
    ctx: Any = SimpleNamespace(rank=0, world_size=1, synchronize=lambda: None)
    job: Any = SimpleNamespace(step=lambda batches: None)
    step = min(computing(lambda: timed_steps(ctx, job, itertools.repeat([]), 1000)) for _ in range(5)) / 1000
    look = min(computing(lambda: [time.perf_counter() for _ in range(1000)]) for _ in range(5)) / 1000
    assert step < 100 * look


def computing(call: Callable[[], object]) -> float:
    """Seconds of this thread's own, whatever else the machine does meanwhile."""
    began = time.thread_time()
    call()
    return time.thread_time() - began


def test_the_collector_rests_inside_and_works_again_after() -> None:
    assert gc.isenabled()
    with contextlib.suppress(KeyError), collector_at_rest():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
