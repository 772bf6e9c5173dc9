"""Real traces, where they are present: figures equal to HolisticTraceAnalysis 0.5.0, and the answers read from them.

HTA leaves out the last profiler step and what no recorded launch asked for, so both are left out
here, too. It cuts times to whole microseconds, which shows where a trace has finer ones.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captures import CASES

from pytest_clusterqual.judge.step.exposed import step_parts
from pytest_clusterqual.judge.step.traces import trace_times
from pytest_clusterqual.model.trace import Activity, Parts, Trace, TraceTimes
from pytest_clusterqual.read.trace import read_trace

FOLDER = CASES / "traces"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the collection of real captures is not here")


def told_by_hta(case: str, rank: int) -> tuple[dict[str, float], float]:
    """Its temporal breakdown (µs) and the percentage of communication that overlaps."""
    found = json.loads((FOLDER / "hta_0.5.0_expected.json").read_text())["hta"][case]
    (times,) = [row for row in found["temporal"] if row["rank"] == rank]
    (overlap,) = [row["comp_comm_overlap_pctg"] for row in found["overlap"] if row["rank"] == rank]
    return times, overlap


def whole(trace: Trace) -> Parts:
    return step_parts(replace(trace, steps=()))[0].parts


def without_last_step(trace: Trace) -> Trace:
    def chosen(work: Activity) -> Activity:
        step = np.asarray(work.step)
        kept = (step >= 0) & (step < len(trace.steps) - 1)
        return replace(
            work, **{name: np.asarray(getattr(work, name))[kept] for name in ("start", "end", "step", "kind")}
        )

    names = ("compute", "communication", "memory")
    return replace(trace, **{name: chosen(getattr(trace, name)) for name in names})


def in_microseconds(parts: Parts) -> dict[str, float]:
    """As HTA names them."""
    return {
        "idle_time(us)": parts.idle * 1e6, "compute_time(us)": (parts.compute + parts.overlapped) * 1e6,
        "non_compute_time(us)": (parts.exposed + parts.memory) * 1e6, "kernel_time(us)": parts.total * 1e6,
    }  # fmt: skip


SEVERAL_STEPS = [
    ("hta_diff_control", 3, "hta_trace_diff_control_rank3of8_a100.json.gz"),
    ("hta_df_index", 1, "hta_df_index_resolver_rank1of2_v100.json.gz"),
    ("hta_timeline", 0, "hta_timeline_rank0of128.json.gz"),
    ("hta_filter1", 1, "hta_trace_filter_rank1of128.json.gz"),
    ("diff_test", 0, "hta_trace_diff_test_rank1of2_v100.json.gz"),
]


@pytest.mark.parametrize(("case", "rank", "name"), SEVERAL_STEPS)
def test_figures_equal_hta_without_the_last_step(case: str, rank: int, name: str) -> None:
    trace = read_trace(FOLDER / name)
    times, overlap = told_by_hta(case, rank)
    parts = whole(without_last_step(trace))
    assert in_microseconds(parts) == pytest.approx({key: times[key] for key in in_microseconds(parts)})
    assert parts.overlap is not None
    assert round(100 * parts.overlap, 2) == overlap


# Whole traces, by a union of intervals of another program: communication, of it overlapped, exposed, and all, µs.
WHOLE = {
    "hta_timeline_rank0of128.json.gz": (396199, 59216, 336983, 1222847),
    "hta_trace_filter_rank1of128.json.gz": (379053, 75530, 303523, 1231186),
    "hta_df_index_resolver_rank1of2_v100.json.gz": (357343, 0, 357343, 1732965),
    "hta_trace_diff_control_rank3of8_a100.json.gz": (163535, 75614, 87921, 464594),
    "hta_trace_diff_test_rank1of2_v100.json.gz": (251341, 178043, 73298, 745239),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_traces(name: str) -> None:
    parts = whole(read_trace(FOLDER / name))
    found = (parts.overlapped + parts.exposed, parts.overlapped, parts.exposed, parts.total)
    assert [microseconds * 1e6 for microseconds in found] == pytest.approx(WHOLE[name])


@pytest.fixture(scope="module")
def dlrm() -> list[Trace]:
    return [read_trace(FOLDER / f"param_dlrm8__rank{rank}.pt.trace.json") for rank in range(8)]


def test_eight_ranks_equal_hta(dlrm: list[Trace]) -> None:
    assert [trace.rank for trace in dlrm] == list(range(8))
    for rank, trace in enumerate(dlrm):
        times, overlap = told_by_hta("dlrm8", rank)
        parts = whole(trace)
        assert in_microseconds(parts) == pytest.approx({key: times[key] for key in in_microseconds(parts)})
        assert round(100 * (parts.overlap or 0), 2) == overlap


def test_the_rank_with_the_least_communication_is_the_one_waited_for(dlrm: list[Trace]) -> None:
    times = trace_times(dlrm)
    assert [rank.arrivals.collectives for rank in times.ranks if rank.arrivals] == [8] * 8
    by_last = {rank.arrivals.last: rank.rank for rank in times.ranks if rank.arrivals}
    assert by_last[max(by_last)] == 7
    assert max(times.ranks, key=wait).rank == 1
    assert min(times.ranks, key=wait).rank == 7


def wait(rank: object) -> float:
    return rank.arrivals.wait  # type: ignore[attr-defined, no-any-return]


def of_one(name: str) -> TraceTimes:
    return trace_times([read_trace(FOLDER / name)])


def test_a_single_gpu_has_no_overlap_to_speak_of() -> None:
    (rank,) = of_one("neg_single_gpu_resnet_v100.json.gz").ranks
    times, _nan = told_by_hta("hta_nsres", 0)
    assert (rank.parts.overlap, rank.parts.exposed, rank.inflation, rank.arrivals) == (None, 0, None, None)
    parts = in_microseconds(whole(without_last_step(read_trace(FOLDER / "neg_single_gpu_resnet_v100.json.gz"))))
    # Some 5000 kernels, each cut by HTA by less than a microsecond at both ends.
    assert 0 <= parts["compute_time(us)"] - times["compute_time(us)"] < 5000
    assert parts["kernel_time(us)"] == pytest.approx(times["kernel_time(us)"], abs=2)


def test_rocm_without_a_rank() -> None:
    (rank,) = of_one("amd_mi250_minitoy.json.gz").ranks
    assert rank.rank is None
    assert Path(rank.file).name == rank.name.rpartition("/")[2] == "amd_mi250_minitoy.json.gz"
    assert [step.number for step in rank.steps] == [1, 2]
    assert rank.parts.compute == pytest.approx(110.9e-6, abs=1e-7)


def test_hta_tells_nothing_of_the_last_step_which_is_told_here() -> None:
    times = of_one("hta_trace_diff_control_rank3of8_a100.json.gz")
    assert times.steps == (1009, 1010, 1011, 1012, 1013, 1014)
    assert times.ranks[0].inflation is not None
    assert 1.2 < times.ranks[0].inflation.ratio < 2.2
    assert times.warnings[0].startswith("7 of 8 ranks have no trace here (0, 1, 2, 4, 5, 6, 7)")
