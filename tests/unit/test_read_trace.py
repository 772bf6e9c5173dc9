"""What of a profiler trace is compute, communication and copy, which step asked for it, and what is no trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from traces_made import ALL_REDUCE, Event, document, event, kernel, launch, step, written

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.trace import Collective, Trace
from pytest_clusterqual.read import trace_events
from pytest_clusterqual.read.trace import read_trace

STEPS = [step(5, 1000, 100), step(6, 1100, 100)]


def read(tmp_path: Path, *events: Event, name: str = "a.json", indent: int | None = 2, **more: Any) -> Trace:
    return read_trace(written(tmp_path / name, document(events, **more), indent=indent))


def counts(trace: Trace) -> tuple[int, int, int]:
    return len(trace.compute.start), len(trace.communication.start), len(trace.memory.start)


COMPUTE, COMMUNICATION, MEMORY, NOTHING = (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)


@pytest.mark.parametrize(
    ("category", "name", "expected"),
    [
        ("kernel", "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)", COMPUTE),
        ("kernel", "void softmax_warpAllReduce_forward<float>(float*)", COMPUTE),
        ("kernel", "void at::native::reduce_kernel<512, 1, all_reduce_like<float> >(Op)", COMPUTE),
        ("kernel", "aten::_to_copy_triton_fused", COMPUTE),
        ("Kernel", "volta_sgemm_128x64_nn", COMPUTE),
        ("mtia_ccp_events", "mm", COMPUTE),
        ("kernel", ALL_REDUCE, COMMUNICATION),
        ("kernel", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", COMMUNICATION),
        ("kernel", "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)", COMMUNICATION),
        ("kernel", "void rcclGenericKernel<1, false>(ncclDevKernelArgs)", COMMUNICATION),
        ("kernel", "mscclKernel_Sum_float_Simple_false(ncclDevComm*, mscclWork)", COMMUNICATION),
        ("kernel", "nvshmemi_proxy_rma_entrypoint(void*, void*)", COMMUNICATION),
        ("kernel", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", COMMUNICATION),
        ("kernel", "void (anonymous namespace)::one_shot_all_reduce_kernel<float>(float**)", COMMUNICATION),
        ("kernel", "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>(AllReduceParams)", COMMUNICATION),
        ("kernel", "void multimem_all_gather_kernel<16>(char*)", COMMUNICATION),
        ("kernel", "void deep_ep::intranode::dispatch<8>(int4*)", COMMUNICATION),
        ("collective_comm", "AllReduce", COMMUNICATION),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", MEMORY),
        ("gpu_memset", "Memset (Device)", MEMORY),
        ("Memcpy", "Memcpy DtoD (Device -> Device)", MEMORY),
        ("kernel", "Memcpy PtoP", MEMORY),
        ("cuda_sync", "Stream Synchronize", NOTHING),
        ("cuda_sync", "Context Sync", NOTHING),
        ("cuda_runtime", "cudaStreamSynchronize", NOTHING),
        ("cuda_runtime", "cudaLaunchKernel", NOTHING),
        ("gpu_user_annotation", "ProfilerStep#5", NOTHING),
        ("user_annotation", "nccl:all_reduce", NOTHING),
        ("cpu_op", "aten::mm", NOTHING),
        ("python_function", "train.py(12): forward", NOTHING),
        ("overhead", "CUPTI instrumentation", NOTHING),
    ],
)
def test_what_counts_as_what(category: str, name: str, expected: tuple[int, int, int], tmp_path: Path) -> None:
    marker = kernel("marker", 1000, 1)
    extra = {"device": 0} if category == "kernel" else {}
    found = counts(read(tmp_path, marker, event(category, name, 1001, 5, **extra)))
    assert found == tuple(have + one for have, one in zip(expected, COMPUTE, strict=True))


def test_metadata_makes_any_kernel_a_collective_of_its_group(tmp_path: Path) -> None:
    told = {"Collective name": "allreduce", "Process Group Name": "3", "Process Group Ranks": "[0, 2]", "Seq": 17}
    trace = read(tmp_path, kernel("home_made", 1000, 5, **told), kernel("home_made", 1010, 5))
    assert counts(trace) == (1, 1, 0)
    assert trace.collectives == (Collective(name="allreduce", group="3 [0, 2]"),)
    assert list(trace.sequence) == [17]


def test_without_metadata_the_hosts_call_names_the_collective(tmp_path: Path) -> None:
    name = "ncclDevKernel_SendRecv(ncclDevComm*)"
    trace = read(
        tmp_path, event("user_annotation", "nccl:all_to_all", 1000, 10, tid=100), launch(1, 1005), launch(2, 1020),
        kernel(name, 1030, 5, correlation=1), kernel(name, 1040, 5, correlation=2),
    )  # fmt: skip
    assert [trace.collectives[kind].name for kind in trace.communication.kind] == [
        "all_to_all",
        "ncclDevKernel_SendRecv",
    ]


def test_work_is_of_the_step_that_asked_for_it_however_late_it_runs(tmp_path: Path) -> None:
    trace = read(
        tmp_path, *STEPS, launch(1, 1010), launch(2, 1090, "cudaGraphLaunch"), launch(3, 1110),
        kernel("a", 1020, 5, correlation=1), kernel("a", 1150, 5, correlation=2), kernel("a", 1160, 5, correlation=3),
        kernel("a", 1005, 5, correlation=99), kernel("a", 1170, 5, correlation=98),
        kernel("b", 1004, 5, tid=8, correlation=97), launch(4, 1120),
    )  # fmt: skip
    assert [(one.number, one.start, one.end) for one in trace.steps] == [(5, 0, 100_000), (6, 100_000, 200_000)]
    # Not told of: before all others of its stream -> before the trace; else, as on a stream of its own, by its start.
    assert list(trace.compute.step) == [0, 0, 1, -1, 1, 0]


def test_times_are_nanoseconds_since_the_first_event(tmp_path: Path) -> None:
    trace = read(tmp_path, kernel("a", 4203669603187.439, 9.288), kernel("a", 4203669603187.5, 0.061))
    assert list(trace.compute.start) == [0, 61]
    assert list(trace.compute.end) == [9288, 122]


def test_kernels_of_another_shape_are_others(tmp_path: Path) -> None:
    trace = read(tmp_path, *(kernel("gemm", 1000, 5, grid=[size, 1, 1]) for size in (1, 2, 1)))
    assert list(trace.compute.kind) == [0, 1, 0]
    assert trace.kernels == ("gemm", "gemm")


def test_rank_world_and_what_is_not_told(tmp_path: Path) -> None:
    trace = read(tmp_path, *STEPS, kernel("a", 1000, 5), rank=3, world=8)
    assert (trace.rank, trace.world, trace.name, trace.problems) == (3, 8, "rank 3", ())
    bare = read_trace(
        written(tmp_path / "b.json", {"traceEvents": [kernel("a", 1000, 5), kernel("a", 9, 5, device=1)]})
    )
    assert (bare.rank, bare.world, bare.name) == (None, None, str(tmp_path / "b.json"))
    assert [problem[:17] for problem in bare.problems] == ["no ProfilerStep: ", "work of 2 devices"]


@pytest.mark.parametrize("wrong", [{"dur": -1}, {"ts": None}, {"ts": "soon"}, {"args": None}, {"dur": [1]}])
def test_events_without_a_usable_time_are_told_of(wrong: Event, tmp_path: Path) -> None:
    trace = read(tmp_path, *STEPS, kernel("a", 1000, 5), {**kernel("a", 1010, 5), **wrong}, kernel("a", 1020, 5))
    assert list(trace.compute.end) == [5000, 25000]
    assert trace.problems == ("1 events without a usable time are left out",)


WRITINGS = {"torch": {"indent": 2}, "compact": {"indent": None}, "zipped": {"name": "a.json.gz"}}


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("block", [1, 7, 100, 100_000])
def test_the_form_of_the_file_changes_nothing(writing: str, block: int, tmp_path: Path, monkeypatch: Any) -> None:
    events = [
        *STEPS, {"ph": "M", "name": "process_name", "args": {"labels": [{"a": 1}, {"b": 2}]}}, launch(1, 1010),
        event("cpu_op", "odd: },{ [{\"ph\": 1}] {", 1000, 5, inner=[{"ph": "X", "cat": "kernel"}, {"x": [{}, {}]}]),
        kernel("a {lambda()#1}, {lambda()#2}", 1020, 5, correlation=1, inner=[{"x": 1}, {"y": 2}]),
        kernel(ALL_REDUCE, 1030, 5, correlation=1), {"ph": "i", "name": "end", "args": [{"a": 1}, {"b": [{}]}]},
    ]  # fmt: skip
    monkeypatch.setattr(trace_events, "_BLOCK", block)
    trace = read(tmp_path, *events, **WRITINGS[writing], INFO=[{"a": 1}, {"b": [{}]}])
    assert counts(trace) == (1, 1, 0)
    assert (trace.rank, len(trace.steps), list(trace.compute.step)) == (0, 2, [0])


def test_the_order_of_keys_changes_nothing(tmp_path: Path) -> None:
    events = [*STEPS, launch(1, 1110), kernel("a", 1120, 5, correlation=1), event("cpu_op", "aten::mm", 1000, 5)]
    made = json.dumps(document(events), sort_keys=True)
    trace = read_trace(written(tmp_path / "a.json", made))
    assert (counts(trace), list(trace.compute.step)) == ((1, 0, 0), [1])


def test_a_job_on_cpus(tmp_path: Path) -> None:
    trace = read(
        tmp_path, *STEPS, event("cpu_op", "aten::mm", 1000, 50, tid=100), event("cpu_op", "aten::t", 1010, 5, tid=100),
        event("cpu_op", "c10d::allreduce_", 1050, 5, tid=100), event("cpu_op", "aten::copy_", 1060, 5, tid=200),
        event("user_annotation", "gloo:all_reduce", 1060, 20, tid=200), backend="gloo",
    )  # fmt: skip
    assert trace.cpu
    assert counts(trace) == (2, 1, 0)
    assert trace.collectives == (Collective(name="all_reduce", group=""),)
    assert len(trace.problems) == 1
    assert "understates" in trace.problems[0]


ONE = json.dumps(document([kernel("a", 1000, 5), kernel("b", 1010, 5)]))
HOST = [event("cpu_op", "aten::mm", 1000, 5)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE[:-60], "not valid JSON from byte"),
        (ONE[: ONE.index('"b"')], "not valid JSON from byte"),
        (ONE.replace('"dur": 5', '"dur": ,', 1), "not valid JSON from byte"),
        (ONE[:-1], "not valid JSON around the events"),
        ('{"a": 1}', 'no list "traceEvents", want a trace of the PyTorch profiler'),
        ("", 'no list "traceEvents"'),
        (json.dumps([kernel("a", 1, 1)]), 'no list "traceEvents"'),
        (json.dumps(document([])), "no work of a device, though there is one: profile with ProfilerActivity.CUDA"),
        (json.dumps(document(HOST)), "no work of a device, though there is one"),
        (json.dumps({"traceEvents": [event("browser", "paint", 1, 1)]}), "no work of a device and no operators"),
        (json.dumps({"traceEvents": []}), "no work of a device and no operators"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=f"^{re.escape(str(tmp_path))}/a.json: {re.escape(message)}"):
        read_trace(written(tmp_path / "a.json", text))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"none\.json: No such file"):
        read_trace(tmp_path / "none.json")
    whole = written(tmp_path / "a.json.gz", ONE).read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[:-20])
    with pytest.raises(ReadError, match=r"cut\.json\.gz: not whole as a gzip file .*copy it again"):
        read_trace(tmp_path / "cut.json.gz")
