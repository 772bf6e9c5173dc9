"""Checkpoints: what was saved comes back, what is torn never does."""

from __future__ import annotations

import ctypes
import errno
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks, until

from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.rank.checkpoint_folders import (
    METADATA,
    complete_steps,
    latest_complete,
    part_size,
    remove_torn,
    step_folder,
    write_marker,
)
from pytest_clusterqual.rank.checkpoint_storage import Writer, trouble
from pytest_clusterqual.rank.checkpoints import Checkpointer, Saved
from pytest_clusterqual.rank.data import ByteData
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.training import global_losses


def planted(folder: Path, step: int, *, ranks: int = 2, markers: int = 2, metadata: bool = True) -> Path:
    place = step_folder(folder, step)
    place.mkdir(parents=True)
    if metadata:
        (place / METADATA).write_bytes(b"x")
    for rank in range(markers):
        (place / f"__{rank}_0.distcp").write_bytes(b"weights")
        write_marker(place, rank, ranks)
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


def test_a_checkpoint_of_any_world_size_counts_once_all_its_ranks_have_marked_it(tmp_path: Path) -> None:
    planted(tmp_path, 10, ranks=2, markers=2)
    place = planted(tmp_path, 20, ranks=4, markers=4)
    planted(tmp_path, 30, ranks=4, markers=2)
    mixed = planted(tmp_path, 40, ranks=2, markers=1)
    write_marker(mixed, 1, 4)
    assert complete_steps(tmp_path) == [10, 20]
    assert latest_complete(tmp_path) == (place, 20)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", METADATA])
@pytest.mark.parametrize("left", [b"", b"w", None], ids=["empty", "cut", "gone"])
def test_one_that_has_lost_data_gives_way_to_the_one_before(tmp_path: Path, name: str, left: bytes | None) -> None:
    before = planted(tmp_path, 10)
    damaged = planted(tmp_path, 20)
    planted(tmp_path, 30, markers=1)
    if left is None:
        (damaged / name).unlink()
    else:
        (damaged / name).write_bytes(left[: (damaged / name).stat().st_size - 1])
    assert remove_torn(tmp_path) == ([] if (name, left) == (METADATA, None) else [20])
    assert latest_complete(tmp_path) == (before, 10)


def test_a_marker_is_whole_or_absent(tmp_path: Path) -> None:
    write_marker(tmp_path, 3, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00003.done"]
    assert json.loads((tmp_path / "rank-00003.done").read_text()) == {"world_size": 8, "bytes": 0}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space left for the checkpoint; free some"),
        (RuntimeError("[enforce fail at inline_container.cc] unexpected pos 64 vs 0"), "no space left"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot be written; point the run folder to a writable disk"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written; point the run folder"),
        (OSError(errno.EIO, "Input/output error"), "cannot be written or read ([Errno 5] Input/output error"),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_12_3_0>: No space left on device (28)"),
         "through /dev/shm, which has no room for it"),
        (RuntimeError("Missing key in checkpoint state_dict: model.head.weight."), "of another job or layout (Missing"),
        (ValueError("Size mismatch between saved torch.Size([4]) and current: torch.Size([8]) for model.norm.weight"),
         "of another job or layout (Size mismatch"),
        (NotADirectoryError(errno.ENOTDIR, "Not a directory"), "cannot be written or read ([Errno 20] Not a directory"),
        (RuntimeError("Connection closed by peer [127.0.0.1]:9"), None),
        (ConnectionResetError(errno.ECONNRESET, "reset"), None),
    ],
)  # fmt: skip
def test_trouble_with_a_checkpoint_is_told_from_lost_peers(error: Exception, reason: str | None) -> None:
    found = trouble([error])
    assert found is None if reason is None else reason in str(found)


def made(
    ctx: Any,
    folder: str | Path,
    layout: dict[str, Any],
    mode: Any,
    writer: type[Writer] = Writer,
    work: Any = TINY,
    group: Any = None,
) -> tuple[Any, Any, Checkpointer, list[Saved]]:
    saved: list[Saved] = []
    group = group or dist.new_group(backend="gloo")
    keeper = Checkpointer(folder=Path(folder), group=group, mode=mode, on_complete=saved.append, writer=writer)
    if mode == "async-process":
        os.environ["MASTER_ADDR"] = "127.0.0.1"  # as torchrun sets it; the saving processes meet there
        keeper.prepare()
    return ByteData.open(ctx, work), build(ctx, work, from_json(Layout, layout)), keeper, saved


def trained(ctx: Any, data: ByteData, job: Any, first: int, last: int) -> list[torch.Tensor]:
    world = {"rank": job.data_rank, "world_size": job.data_ranks}
    return [job.step(data.batches(step, **world)) for step in range(first, last + 1)]


def save_and_go_on(ctx: Any, *, folder: str, layout: dict[str, Any], mode: str) -> Any:
    data, job, keeper, saved = made(ctx, folder, layout, mode)
    left_over = [path.name for path in Path(folder).glob("*")]
    trained(ctx, data, job, 1, 3)
    keeper.poll()
    blocked = keeper.save(job, 3)
    losses = global_losses(ctx, trained(ctx, data, job, 4, 6))
    keeper.wait()
    size = part_size(step_folder(Path(folder), 3), ctx.rank)
    savers = [child.pid for child in multiprocessing.active_children()]
    return {"losses": losses, "saved": saved, "blocked": blocked, "idle": keeper.poll(), "size": size,
            "savers": savers, "left over": left_over}  # fmt: skip


def load_and_go_on(ctx: Any, *, folder: str, layout: dict[str, Any]) -> Any:
    data, job, keeper, _saved = made(ctx, folder, layout, "sync")
    step = keeper.load(job)
    return {"step": step, "losses": global_losses(ctx, trained(ctx, data, job, step + 1, 6))}


def gone(process: int) -> bool:
    """Whether it has ended; one that nobody waits for any more has, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "mode"),
    [(DDP, "sync"), (DDP, "async"), (FSDP_AC, "sync"), (FSDP_AC, "async"), (FSDP_AC, "async-process")],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_training_goes_on_as_if_never_stopped(tmp_path: Path, layout: dict[str, Any], mode: str) -> None:
    folder = str(tmp_path / "checkpoints")
    went_on = run_ranks(save_and_go_on, tmp_path, nodes=["a", "b"], folder=folder, layout=layout, mode=mode)
    loaded = run_ranks(load_and_go_on, tmp_path, nodes=["a", "b"], folder=folder, layout=layout)
    savers = [process for before in went_on for process in before["savers"]]
    assert until(lambda: all(map(gone, savers)))
    for before, after in zip(went_on, loaded, strict=True):
        (saved,) = before["saved"]
        assert (saved.step, saved.size) == (3, before["size"])
        assert saved.size > 10_000
        assert saved.extra >= 0
        assert before["blocked"] > 0
        assert before["idle"] is True
        assert before["left over"] == []
        assert len(before["savers"]) == (1 if mode == "async-process" else 0)
        if mode == "async-process":
            assert saved.extra > 50 << 20, "the saving process has torch in its memory"
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


def load_with_half_as_many_copies(ctx: Any, *, folder: str) -> dict[str, float]:
    """Per layout that two ranks are enough for, the loss of step 3."""
    found = {}
    for name, layout in SPREAD.items():
        if name != "pipeline-context":
            data, job, keeper, _saved = made(ctx, Path(folder) / name, {"name": name, **layout}, "sync", work=EXPERTS)
            (found[name],) = global_losses(ctx, trained(ctx, data, job, keeper.load(job) + 1, 3))
    return found


@pytest.mark.slow
def test_spread_parameters_come_back_to_where_they_were(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    answers = run_ranks(save_load_and_go_on, tmp_path, nodes=["a", "a", "b", "b"], folder=folder)
    for answer in answers:
        assert answer.keys() == SPREAD.keys()
        for name, losses in answer.items():
            assert len(losses) == 3 + 1, name
            assert losses[2] == losses[3] < losses[0], name
    (half, _) = run_ranks(load_with_half_as_many_copies, tmp_path, nodes=["a", "a"], folder=folder)
    assert len(half) == len(SPREAD) - 1
    for name, loss in half.items():
        assert loss == pytest.approx(answers[0][name][2], rel=1e-5), name


def part_of(ctx: Any, size: int) -> Any:
    """The first `size` ranks as a job of their own; None on the others."""
    group = dist.new_group(list(range(size)))
    if ctx.rank >= size:
        return None
    return replace(ctx, group=group, members=tuple(range(size)), nodes=ctx.nodes[:size], subgroups={})


def save_and_reshard(ctx: Any, *, folder: str, layout: dict[str, Any], sizes: Any) -> dict[str, Any]:
    """Losses of steps 4 to 6 by how many ranks saved and how many went on: the same number of them never stopped."""
    ctx = replace(ctx, nproc_per_node=2)
    found = {}
    for saves, loads in sizes:
        place = Path(folder) / f"of-{saves}"
        for size in (saves, *loads):
            here = part_of(ctx, size)
            if here is not None:
                data, job, keeper, _saved = made(here, place, layout, "sync", group=here.group)
                step = keeper.load(job)
                if not step:
                    trained(here, data, job, 1, 3)
                    keeper.save(job, 3)
                found[saves, size] = global_losses(here, trained(here, data, job, 4, 6))
            dist.barrier()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layout", [DDP, FSDP], ids=lambda layout: layout["name"])
def test_more_or_fewer_ranks_go_on_where_the_others_were(tmp_path: Path, layout: dict[str, Any]) -> None:
    found = run_ranks(
        save_and_reshard, tmp_path, nodes=["a", "a", "b", "b"], folder=str(tmp_path / "saved"), layout=layout,
        sizes=[(4, (2, 1)), (2, (4,))],
    )[0]  # fmt: skip
    assert found.keys() == {(4, 4), (4, 2), (4, 1), (2, 2), (2, 4)}
    for (saves, loads), losses in found.items():
        assert losses == pytest.approx(found[saves, saves], rel=1e-5), (saves, loads)
        assert losses[0] > losses[2]


def save_by_one_layout_and_load_by_another(ctx: Any, *, folder: str) -> Any:
    _data, job, keeper, _saved = made(
        ctx, folder, {"name": "spread", **SPREAD["interleaved-hybrid"]}, "sync", work=EXPERTS
    )
    keeper.save(job, 1)
    _data, job, keeper, _saved = made(ctx, folder, DDP, "sync", work=EXPERTS)
    return keeper.load(job)


@pytest.mark.slow
def test_a_layout_that_names_its_parameters_otherwise_is_refused(tmp_path: Path) -> None:
    for answer in run_ranks(save_by_one_layout_and_load_by_another, tmp_path, nodes=["a", "b"], folder=str(tmp_path)):
        assert answer.startswith(
            f"ClusterQualError: {step_folder(tmp_path, 1)}: the checkpoint of another job or layout (Missing key"
        ), answer


def save_often(ctx: Any, *, folder: str, mode: str) -> Any:
    _data, job, keeper, saved = made(ctx, folder, FSDP, mode)
    for step in (1, 2, 3, 4):
        keeper.save(job, step)
    keeper.wait()
    dist.barrier()
    kept = complete_steps(Path(folder))
    dist.barrier()
    if ctx.rank == 1:  # storage loses the last page
        os.truncate(step_folder(Path(folder), 4) / "__1_0.distcp", 4096)
    dist.barrier()
    return [[save.step for save in saved], kept, keeper.load(job)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_last_two_are_kept_so_that_one_may_be_damaged_and_old_ones_go(tmp_path: Path, mode: str) -> None:
    for saved, kept, loaded in run_ranks(save_often, tmp_path, nodes=["a", "a"], folder=str(tmp_path / "c"), mode=mode):
        assert saved == [1, 2, 3, 4]
        assert kept in ([3, 4], [2, 3, 4])  # the second: rank 1's marker came after the look
        assert loaded == 3


class Malicious:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


@pytest.mark.slow
def test_metadata_that_would_call_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = planted(tmp_path, 10, ranks=1, markers=1)
    (place / METADATA).write_bytes(pickle.dumps(Malicious()))
    write_marker(place, 0, 1)
    (answer,) = run_ranks(load_and_go_on, tmp_path / "s", nodes=["a"], folder=str(tmp_path), layout=DDP)
    assert answer.startswith(f"ClusterQualError: {place}: not a checkpoint of this package: its metadata names posix")
    assert not (tmp_path / "owned").exists()


class NeverDone(Writer):
    """Never comes to the end of a step."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        place = Path(self.path)
        if place.name.startswith("step-"):
            (place / "begun").touch()
            time.sleep(600)
        return super().write_data(*args, **kwargs)


def die_while_saving(ctx: Any, *, folder: str) -> None:
    _data, job, keeper, _saved = made(ctx, folder, DDP, "async-process", NeverDone)
    keeper.save(job, 1)
    (saver,) = multiprocessing.active_children()
    Path(folder, "saver").write_text(str(saver.pid))
    while not (step_folder(Path(folder), 1) / "begun").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_saving_process_ends_with_its_rank_whatever_it_is_doing(tmp_path: Path) -> None:
    assert run_ranks(die_while_saving, tmp_path, nodes=["a"], survive_death=True, folder=str(tmp_path)) == [None]
    assert until(lambda: gone(int((tmp_path / "saver").read_text())))
    assert latest_complete(tmp_path) is None


def save_on_a_small_disk(ctx: Any, *, folder: str, mode: str, options: str, disk: str) -> Any:
    """Save where a file system of its own allows too little; None where this user may not mount one."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000):  # CLONE_NEWNS: nobody else sees the mount
        return None
    commands = (["mount", "--make-rprivate", "/"], ["mount", "-t", "tmpfs", "-o", options, "small", disk])
    if any(subprocess.run(command, check=False, capture_output=True).returncode for command in commands):
        return None
    _data, job, keeper, saved = made(ctx, folder, DDP, mode)
    try:
        keeper.save(job, 1)
        keeper.wait()
    finally:
        assert saved == []
    return "no error"


FULL = "no space left for the checkpoint; free some, or point the run folder to a larger disk"
UNWRITABLE = "the checkpoint folder cannot be written; point the run folder to a writable disk"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("sync", "size=64k", FULL), ("sync", "ro", UNWRITABLE), ("async", "size=64k", FULL),
        ("async", "ro", UNWRITABLE), ("async-process", "size=64k", FULL),
    ],
)  # fmt: skip
def test_a_full_or_read_only_disk_is_named(tmp_path: Path, mode: str, options: str, message: str) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    (answer,) = run_ranks(
        save_on_a_small_disk, tmp_path / "s", nodes=["a"], folder=str(folder), mode=mode, options=options,
        disk=str(folder),
    )  # fmt: skip
    if answer is None:
        pytest.skip("this user may not mount a file system")
    assert answer == f"ClusterQualError: {folder / 'step-00000001'}: {message}"


@pytest.mark.slow
def test_shared_memory_that_cannot_hold_the_state_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    (answer,) = run_ranks(
        save_on_a_small_disk, tmp_path / "s", nodes=["a"], folder=str(tmp_path), mode="async-process",
        options="size=64k", disk="/dev/shm",
    )  # fmt: skip
    if answer is None:
        pytest.skip("this user may not mount a file system")
    where = f"ClusterQualError: {tmp_path / 'step-00000001'}: the saving process is given the state through /dev/shm"
    assert answer.startswith(where), answer
