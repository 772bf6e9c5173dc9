"""Checkpoints: what was saved comes back, what is torn never does."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.rank.checkpoints import (
    METADATA,
    Checkpointer,
    complete_steps,
    disk_trouble,
    latest_complete,
    remove_torn,
    step_folder,
    write_marker,
)
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import global_losses


def planted(folder: Path, step: int, *, ranks: int = 2, markers: int = 2, metadata: bool = True) -> Path:
    place = step_folder(folder, step)
    place.mkdir(parents=True)
    for rank in range(markers):
        write_marker(place, rank, ranks)
    if metadata:
        (place / METADATA).write_bytes(b"x")
    return place


def test_nothing_is_complete_in_an_empty_or_absent_folder(tmp_path: Path) -> None:
    assert latest_complete(tmp_path / "absent") is None
    (tmp_path / "step-notanumber").mkdir()
    (tmp_path / "step-00000007.txt").touch()
    assert latest_complete(tmp_path) is None


def test_the_latest_complete_one_is_found_past_torn_ones(tmp_path: Path) -> None:
    planted(tmp_path, 9)
    place = planted(tmp_path, 10)
    assert place.name == "step-00000010"
    planted(tmp_path, 20, metadata=False)
    planted(tmp_path, 30, markers=1)
    planted(tmp_path, 40, markers=0)
    half_written = planted(tmp_path, 50)
    (half_written / "rank-00001.done").write_text('{"world')
    assert latest_complete(tmp_path) == (place, 10)
    remove_torn(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000009", "step-00000010"]


def test_a_checkpoint_of_another_world_size_does_not_count_for_this_one(tmp_path: Path) -> None:
    planted(tmp_path, 10, ranks=2, markers=2)
    place = planted(tmp_path, 20, ranks=4, markers=4)
    assert latest_complete(tmp_path, 2) == (step_folder(tmp_path, 10), 10)
    assert latest_complete(tmp_path, 4) == latest_complete(tmp_path) == (place, 20)
    assert latest_complete(tmp_path, 3) is None


def test_a_marker_is_whole_or_absent(tmp_path: Path) -> None:
    write_marker(tmp_path, 3, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00003.done"]
    assert json.loads((tmp_path / "rank-00003.done").read_text()) == {"world_size": 8}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left for the checkpoint; free some"),
        (RuntimeError("[enforce fail at inline_container.cc] unexpected pos 64 vs 0"), "no space left"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot be written; point the run folder to a writable disk"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written; point the run folder"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "cannot be written or read ([Errno 20] Not a directory"),
        (RuntimeError("Connection closed by peer [127.0.0.1]:9"), None),
        (ConnectionResetError(errno.ECONNRESET, "reset"), None),
    ],
)
def test_disk_trouble_is_told_from_lost_peers(error: Exception, reason: str | None) -> None:
    found = disk_trouble([error])
    assert found is None if reason is None else reason in str(found)


def made(ctx: Any, folder: str, layout: dict[str, Any], mode: Any) -> tuple[Any, Any, Checkpointer, list[int]]:
    saved: list[int] = []
    group: Any = dist.new_group(backend="gloo")
    keeper = Checkpointer(folder=Path(folder), group=group, mode=mode, on_complete=saved.append)
    return ByteData.open(ctx, TINY), build(ctx, TINY, from_json(Layout, layout)), keeper, saved


def trained(ctx: Any, data: ByteData, job: Any, first: int, last: int) -> list[torch.Tensor]:
    world = {"rank": ctx.rank, "world_size": ctx.world_size}
    return [job.step(data.batches(step, **world)) for step in range(first, last + 1)]


def save_and_go_on(ctx: Any, *, folder: str, layout: dict[str, Any], mode: str) -> Any:
    data, job, keeper, saved = made(ctx, folder, layout, mode)
    trained(ctx, data, job, 1, 3)
    blocked = keeper.save(job, 3)
    losses = global_losses(ctx, trained(ctx, data, job, 4, 6))
    keeper.wait()
    return {"losses": losses, "saved": saved, "blocked": blocked, "idle": keeper.poll()}


def load_and_go_on(ctx: Any, *, folder: str, layout: dict[str, Any]) -> Any:
    data, job, keeper, _saved = made(ctx, folder, layout, "sync")
    step = keeper.load(job)
    return {"step": step, "losses": global_losses(ctx, trained(ctx, data, job, step + 1, 6))}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("layout", [DDP, FSDP_AC], ids=["ddp", "fsdp-ac"])
def test_training_goes_on_as_if_never_stopped(tmp_path: Path, layout: dict[str, Any], mode: str) -> None:
    folder = str(tmp_path / "checkpoints")
    went_on = run_ranks(save_and_go_on, tmp_path, nodes=["a", "b"], folder=folder, layout=layout, mode=mode)
    loaded = run_ranks(load_and_go_on, tmp_path, nodes=["a", "b"], folder=folder, layout=layout)
    for before, after in zip(went_on, loaded, strict=True):
        assert before["saved"] == [3]
        assert before["blocked"] > 0
        assert before["idle"] is True
        assert after["step"] == 3
        assert after["losses"] == before["losses"]


SPREAD: dict[str, dict[str, Any]] = {
    "tensor-fsdp": {"tensor": 2, "fsdp": "full", "activation_checkpointing": "full"},
    "tensor-replicas": {"tensor": 2},
    "interleaved-hybrid": {"pipeline": 2, "schedule": "interleaved", "stages_per_rank": 2, "fsdp": "hybrid"},
    "pipeline-context": {"pipeline": 2, "context": 2},
    "expert-hybrid": {"expert": 2, "fsdp": "hybrid"},
}
EXPERTS = replace(TINY, model=replace(TINY.model, layers=4, experts=2))


def save_load_and_go_on(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Per layout the losses after a save, of the job that was saved and of another that loaded it."""
    ctx = replace(ctx, nproc_per_node=2)
    group: Any = dist.new_group(backend="gloo")
    data = ByteData.open(ctx, EXPERTS)
    found = {}
    for name, layout in SPREAD.items():
        keeper = Checkpointer(folder=Path(folder) / name, group=group, mode="sync")
        losses = []
        for _ in ("saves", "loads"):
            job = build(ctx, EXPERTS, from_json(Layout, {"name": name, **layout}))
            for step in range(keeper.load(job) + 1, 4):
                loss = job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks))
                if step == 2:
                    keeper.save(job, step)
                losses.append(loss)
        found[name] = global_losses(ctx, losses)
    return found


@pytest.mark.slow
def test_spread_parameters_come_back_to_where_they_were(tmp_path: Path) -> None:
    for answer in run_ranks(save_load_and_go_on, tmp_path, nodes=["a", "a", "b", "b"], folder=str(tmp_path / "saved")):
        assert answer.keys() == SPREAD.keys()
        for name, losses in answer.items():
            assert len(losses) == 3 + 1, name
            assert losses[2] == losses[3] < losses[0], name


def save_often(ctx: Any, *, folder: str, mode: str) -> Any:
    _data, job, keeper, saved = made(ctx, folder, FSDP, mode)
    for step in (1, 2, 3, 4):
        keeper.save(job, step)
    keeper.wait()
    dist.barrier()
    return [saved, complete_steps(Path(folder), 2)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_last_two_are_kept_and_old_ones_go(tmp_path: Path, mode: str) -> None:
    for saved, kept in run_ranks(save_often, tmp_path, nodes=["a", "a"], folder=str(tmp_path / "c"), mode=mode):
        assert saved == [1, 2, 3, 4]
        assert kept[-2:] == [3, 4]
    assert complete_steps(tmp_path / "c") in ([3, 4], [2, 3, 4])  # the second: rank 1's marker came after the look


class Malicious:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


@pytest.mark.slow
def test_metadata_that_would_call_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = planted(tmp_path, 10, ranks=1, markers=1)
    (place / METADATA).write_bytes(pickle.dumps(Malicious()))
    (answer,) = run_ranks(load_and_go_on, tmp_path / "s", nodes=["a"], folder=str(tmp_path), layout=DDP)
    assert answer.startswith(f"ClusterQualError: {place}: not a checkpoint of this package: its metadata names posix")
    assert not (tmp_path / "owned").exists()


def save_on_a_small_disk(ctx: Any, *, folder: str, mode: str, options: str) -> Any:
    """Save where a file system of its own allows too little; None where this user may not mount one."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000):  # CLONE_NEWNS: nobody else sees the mount
        return None
    commands = (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", options, "small", folder])
    if any(subprocess.run(command, check=False, capture_output=True).returncode for command in commands):
        return None
    _data, job, keeper, saved = made(ctx, folder, DDP, mode)
    try:
        keeper.save(job, 1)
        keeper.wait()
    finally:
        assert saved == []
    return "no error"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("size=64k", "no space left for the checkpoint; free some, or point the run folder to a larger disk"),
        ("ro", "the checkpoint folder cannot be written; point the run folder to a writable disk"),
    ],
)
def test_a_full_or_read_only_disk_is_named(tmp_path: Path, mode: str, options: str, message: str) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    (answer,) = run_ranks(
        save_on_a_small_disk, tmp_path / "s", nodes=["a"], folder=str(folder), mode=mode, options=options
    )
    if answer is None:
        pytest.skip("this user may not mount a file system")
    assert answer == f"ClusterQualError: {folder / 'step-00000001'}: {message}"
