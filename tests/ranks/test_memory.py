"""Memory of one rank: exact, repeatable, against the right limit."""

from __future__ import annotations

import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.memory import RankMemory
from pytest_clusterqual.model.workload import ModelShape
from pytest_clusterqual.rank.control_groups import cgroup_limit
from pytest_clusterqual.rank.limits import cpu_limit, device_confined, not_allocated, process_confined
from pytest_clusterqual.rank.memory import measure
from pytest_clusterqual.rank.memory_counters import resident_peak
from pytest_clusterqual.rank.settling import wait_for_gloo

MIB = 2**20


def measured(folder: Path, ranks: int, layout: dict[str, Any]) -> list[RankMemory]:
    answers = run_ranks(measure, folder, nodes=["a"] * ranks, workload=to_json(TINY), layout=layout, steps=3)
    return [from_json(RankMemory, answer) for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [DDP, FSDP, FSDP_AC], ids=["ddp", "fsdp", "fsdp-ac"])
def test_two_runs_count_the_same_bytes(tmp_path: Path, layout: dict[str, Any]) -> None:
    first, again = measured(tmp_path, 2, layout), measured(tmp_path, 2, layout)
    # But for the one number that ranks meet with: gloo's thread lets go of it a moment later.
    for one, other in zip(first, again, strict=True):
        assert one.step_peaks == pytest.approx(other.step_peaks, rel=0, abs=4)
    assert all(len(rank.step_peaks) == 3 for rank in first)
    assert first[0].losses == first[1].losses == again[0].losses


@pytest.mark.slow
def test_the_peak_holds_parameters_gradients_optimizer_and_more(tmp_path: Path) -> None:
    (alone,) = measured(tmp_path, 1, DDP)
    logits = TINY.microbatch * TINY.sequence_length * TINY.model.vocab * 4
    assert alone.parts["parameters"] == TINY.model.parameters * 4
    at_rest = sum(alone.parts[name] for name in ("parameters", "gradients", "optimizer"))
    assert max(alone.step_peaks) >= at_rest + logits
    assert max(alone.step_peaks) < 3 * at_rest
    # The optimizer's state does not exist before the first step's end, so later steps hold more.
    assert alone.step_peaks[1] - alone.step_peaks[0] >= 0.9 * alone.parts["optimizer"]
    assert alone.step_peaks[1] == alone.step_peaks[2]


@pytest.mark.slow
def test_sharding_and_recomputing_save_memory(tmp_path: Path) -> None:
    peaks = {layout["name"]: max(measured(tmp_path, 2, layout)[0].step_peaks) for layout in (DDP, FSDP, FSDP_AC)}
    assert peaks["fsdp-ac"] < peaks["fsdp"] < peaks["ddp"]


@pytest.mark.slow
def test_the_conditions_of_the_count_are_named(tmp_path: Path) -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for rank in measured(tmp_path, 2, DDP):
        assert rank.counted.startswith("bytes held by torch's CPU allocator (profiler memory events)")
        assert rank.reserved_peaks == ()
        assert max(rank.step_peaks) < rank.device_used < total
        assert 0 < rank.limit <= total / 2
        assert " / 2 ranks " in rank.limit_from


def test_gloo_is_waited_for_while_one_of_its_threads_works(tmp_path: Path) -> None:
    for number, (name, state) in enumerate([("python", "R"), ("pt_gloo_runloop", "S"), ("pt_gloo_runloop", "R")]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} ({name}) {state} 1 1")
    (tmp_path / "ended").mkdir()
    assert not wait_for_gloo(tmp_path, seconds=0.05)
    (tmp_path / "2" / "stat").write_text("2 (pt_gloo_runloop) S 1 1")
    assert wait_for_gloo(tmp_path, seconds=3600.0)  # and no longer than is needed


def test_the_resident_peak_is_in_bytes(tmp_path: Path) -> None:
    assert 10 * MIB < resident_peak() < 100_000 * MIB
    (tmp_path / "status").write_text("VmPeak:\t  99 kB\nVmHWM:\t  12 kB\n")
    assert resident_peak(tmp_path / "status") == 12 * 1024
    (tmp_path / "status").write_text("Name: x\n")
    with pytest.raises(MeasurementError, match="no VmHWM line"):
        resident_peak(tmp_path / "status")


def grouped(root: Path, membership: str, limits: dict[str, str]) -> tuple[Path, Path]:
    """A control group hierarchy in `root`: (membership file, mount point)."""
    mount = root / "cgroup"
    mount.mkdir(parents=True)
    (root / "membership").write_text(membership)
    for path, limit in limits.items():
        (mount / path).parent.mkdir(parents=True, exist_ok=True)
        (mount / path).write_text(limit + "\n")
    return root / "membership", mount


V1_UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4096"}, (4096, "a")),
        ("0::/a/b\n", {"a/b/memory.max": "100", "a/memory.max": "4096"}, (100, "a/b")),
        ("0::/hidden\n", {"memory.max": "77"}, (77, "")),
        ("0::/../../outer\n", {"memory.max": "77"}, (77, "")),
        ("3:cpu:/c\n9:memory:/m\n0::/\n", {"memory/m/memory.limit_in_bytes": "500"}, (500, "memory/m")),
        ("9:memory:/m\n", {"memory/m/memory.limit_in_bytes": V1_UNLIMITED}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_tightest_visible_cgroup_limit_counts(
    tmp_path: Path, membership: str, limits: dict[str, str], expected: tuple[int, str] | None
) -> None:
    file, mount = grouped(tmp_path, membership, limits)
    found = cgroup_limit(file, mount)
    assert (found and (found[0], found[1].resolve())) == (expected and (expected[0], (mount / expected[1]).resolve()))


def limits_in(ctx: Any, *, proc: str, groups: list[str]) -> list[Any]:
    """The limit of a rank that lives in the hierarchy `groups[rank]`."""
    limit = cpu_limit(ctx, proc=Path(proc), cgroups=Path(groups[ctx.rank]))
    return [limit.bytes, limit.origin]


@pytest.mark.slow
def test_ranks_share_a_limit_only_under_the_same_control_group(tmp_path: Path) -> None:
    for name in ("one", "two"):
        grouped(tmp_path / name, "0::/\n", {"memory.max": str(600 * MIB)})
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/\n")
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("boot\n")
    (proc / "meminfo").write_text(f"MemTotal: {2000 * 1024} kB\n")
    one, two = str(tmp_path / "one" / "cgroup"), str(tmp_path / "two" / "cgroup")
    together = run_ranks(limits_in, tmp_path, nodes=["a", "a"], proc=str(proc), groups=[one, one])
    apart = run_ranks(limits_in, tmp_path, nodes=["a", "b"], proc=str(proc), groups=[one, two])
    assert together == [[300 * MIB, "control group limit / 2 ranks under it"]] * 2
    assert apart == [[600 * MIB, "control group limit / 1 ranks under it"]] * 2
    (proc / "meminfo").write_text(f"MemTotal: {400 * 1024} kB\n")
    small = run_ranks(limits_in, tmp_path, nodes=["a", "b"], proc=str(proc), groups=[one, two])
    assert small == [[200 * MIB, "MemTotal / 2 ranks on this machine"]] * 2


# Its peak is 43 MiB, and with recomputation 26 MiB.
LARGER = replace(
    TINY, model=ModelShape(layers=4, hidden=128, heads=4, kv_heads=4, ffn=384, vocab=256), sequence_length=128,
    microbatch=4,
)  # fmt: skip
PLAIN, REPEATED = {"name": "plain"}, {"name": "ac", "activation_checkpointing": "full"}


def confined_measure(ctx: Any, **arguments: Any) -> Any:
    """What the job gave, or what it could not allocate; and that afterwards there is all memory again."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        answer = measure(ctx, **arguments)
    except Exception as error:
        answer = not_allocated(error)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    return answer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "mib", "fits"), [(PLAIN, 48, True), (PLAIN, 40, False), (REPEATED, 31, True), (REPEATED, 24, False)]
)
def test_a_job_has_no_more_memory_than_it_is_given(
    tmp_path: Path, layout: dict[str, Any], mib: int, fits: bool
) -> None:
    (answer,) = run_ranks(
        confined_measure, tmp_path, nodes=["a"], workload=to_json(LARGER), layout=layout, steps=2,
        device_memory=mib * MIB,
    )  # fmt: skip
    if not fits:
        assert isinstance(answer, str) and answer.endswith("iB"), "torch's allocator was refused so much"
        return
    rank = from_json(RankMemory, answer)
    assert (rank.limit, rank.limit_from) == (mib * MIB, "memory.device_memory of the project file")
    assert max(rank.step_peaks) <= rank.device_used <= rank.limit, "tensors only: no interpreter, no libraries"


@pytest.mark.slow
def test_memory_that_was_refused_is_given_afterwards(tmp_path: Path) -> None:
    assert run_ranks(asks_too_much, tmp_path, nodes=["a"]) == [["128 MiB", True]]


def asks_too_much(ctx: Any) -> list[Any]:
    refused = ""
    try:
        with process_confined(64 * MIB):
            torch.zeros(32 * MIB)
    except RuntimeError as error:
        refused = not_allocated(error)
    return [refused, torch.zeros(32 * MIB).sum().item() == 0]


def chained(first: BaseException, then: BaseException) -> BaseException:
    then.__cause__ = first
    return then


CUDA_SAYS = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (torch.OutOfMemoryError(CUDA_SAYS), "2.00 GiB"),
        (RuntimeError("alloc_cpu.cpp: DefaultCPUAllocator: not enough memory: you tried to allocate 1048576 bytes."),
         "1 MiB"),
        (MemoryError(), "memory"),
        (RuntimeError("std::bad_alloc"), "memory"),
        (chained(torch.OutOfMemoryError(CUDA_SAYS), RuntimeError("failed to run stage backward")), "2.00 GiB"),
        (RuntimeError("Connection closed by peer"), ""),
        (ValueError("out of memory"), ""),
    ],
)  # fmt: skip
def test_want_of_memory_is_told_from_other_failures(error: BaseException, what: str) -> None:
    assert not_allocated(error) == what


class Accelerator:
    """A device of 100 MiB, of which this process' allocator has 10 and others 20."""

    def __init__(self) -> None:
        self.fractions: list[float] = []

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return 70 * MIB, 100 * MIB

    def memory_reserved(self, device: Any) -> int:
        return 10 * MIB

    def set_per_process_memory_fraction(self, fraction: float, device: Any) -> None:
        self.fractions.append(fraction)


@pytest.mark.parametrize(("most", "fraction"), [(60, 0.4), (10, 0.0), (500, 1.0)])
def test_on_a_device_the_allocator_gets_what_others_leave(
    monkeypatch: pytest.MonkeyPatch, most: int, fraction: float
) -> None:
    device = Accelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda _: device)
    with device_confined(torch.device("cuda", 0), most * MIB):
        assert device.fractions == [pytest.approx(fraction)]
    assert device.fractions[-1] == 1.0
