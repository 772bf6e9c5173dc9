"""Who failed in a run of a command, from what the processes beside its ranks have written."""

from __future__ import annotations

import shutil
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_made import JOB, begins, ends, left_behind, made_folder, probes, step

from pytest_clusterqual.errors import JobError, LaunchError, MeasurementError
from pytest_clusterqual.launch.plan import NodePlan
from pytest_clusterqual.model.command import OUTPUT, PROBES, CommandJob
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.session import command_launch
from pytest_clusterqual.session.command_launch import CommandLaunch, _Launched, _whole
from pytest_clusterqual.session.command_trouble import _printed, failure_of, steps_done, struck

LOST = "Traceback ...\nRuntimeError: [1] Connection closed by peer [127.0.0.1]:2117"


@dataclass
class Guards:
    """A launch whose guards have ended, but for those that are `lost`."""

    lost: tuple[str, ...] = ()
    processes: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.processes = [
            SimpleNamespace(
                node=SimpleNamespace(name=name), tail=lambda size, name=name: f"log of {name}",
                event=lambda event, name=name: None if name in self.lost else event,
            )
            for name in ("node0", "node1")
        ]  # fmt: skip

    def ended(self) -> list[Any]:
        return self.processes

    def why(self, process: Any) -> str:
        return ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = made_folder(tmp_path / "run")
    for rank in (0, 1):
        begins(made, rank)
    return made


def launch_in(place: Path, launcher: Any, job: CommandJob) -> CommandLaunch:
    return CommandLaunch(
        launcher=launcher, nproc_per_node=1, job=job, steps=None, hang_timeout=30.0, device="cpu",
        limits=LauncherOptions(), folder=place / "run", logs=place, tell=lambda _progress: None,
        what="full run of own",
    )  # fmt: skip


def failed(folder: Path, limit: float | None = None, **launch: Any) -> JobError:
    return failure_of(Guards(**launch), folder, "full run of own", limit)  # type: ignore[arg-type]


def test_a_lost_peer_is_a_consequence(folder: Path) -> None:
    ends(folder, 0, 1, LOST)
    ends(folder, 1, 1, "Traceback ...\nValueError: no such shard")
    error = failed(folder)
    assert str(error).startswith(
        "full run of own failed: rank 1 on node1 left with exit code 1: ValueError: no such shard; besides, "
        "rank 0 on node0 left with exit code 1: RuntimeError: [1] Connection closed by peer [127.0.0.1]:2117\n"
        "last lines of rank 1 on node1:\nTraceback ..."
    )
    assert error.culprits == ("rank 1 on node1",)
    assert error.out_of_memory == ""


def test_a_killed_rank_outweighs_one_that_raised(folder: Path) -> None:
    ends(folder, 0, 1, "ValueError: what comes of it")
    ends(folder, 1, -signal.SIGKILL)
    assert failed(folder).culprits == ("rank 1 on node1",)
    assert "rank 1 on node1 was killed by SIGKILL" in str(failed(folder))


def test_who_aborts_for_want_of_a_peer_is_not_guilty(folder: Path) -> None:
    ends(folder, 0, -signal.SIGABRT, ended=9.1)
    ends(folder, 1, 1, "Traceback ...\nValueError: no such shard")
    assert failed(folder).culprits == ("rank 1 on node1",)
    assert "1: ValueError: no such shard; besides, rank 0 on node0 was killed by SIGABRT\nlast lines of rank 1" in str(
        failed(folder)
    )


@pytest.mark.parametrize(("ended", "host", "both"), [(9.1, "vm", True), (8.9, "vm", False), (9.1, "other", False)])
def test_an_error_like_that_of_a_lost_peer_is_a_cause_where_it_came_first(
    folder: Path, ended: float, host: str, both: bool
) -> None:
    begins(folder, 0, host=host)
    ends(folder, 0, 1, "EOFError: stream ended early", ended=ended)
    ends(folder, 1, 1, "ConnectionResetError: Connection reset by peer: object store")
    error = failed(folder)
    assert error.culprits == (("rank 1 on node1",) if both else ()) + ("rank 0 on node0",)
    assert "rank 1 on node1 left with exit code 1: ConnectionResetError" in str(error)


def test_of_many_that_went_with_it_who_raised_is_told_and_the_rest_is_counted(folder: Path) -> None:
    for rank in range(2, 8):
        begins(folder, rank)
    for rank in range(6):
        ends(folder, rank, -signal.SIGABRT)
    ends(folder, 6, 1, "ValueError: what comes of it")
    ends(folder, 7, -signal.SIGKILL)
    error = failed(folder)
    assert error.culprits == ("rank 7 on node7",)
    assert "SIGKILL; besides, rank 6 on node6 left with exit code 1: ValueError: what comes of it; " in str(error)
    assert "rank 1 on node1 was killed by SIGABRT; and 4 more\nlast lines of rank 6" in str(error)


def test_who_was_only_told_to_end_is_not_guilty(folder: Path) -> None:
    ends(folder, 0, 1, LOST)
    ends(folder, 1, -signal.SIGTERM)
    assert failed(folder).culprits == ("rank 0 on node0",)


@pytest.mark.parametrize(
    ("code", "said", "killed"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
        (1, "MemoryError", False),
        (1, "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory", False),
        (-signal.SIGKILL, "", True),
    ],
)
def test_want_of_memory_is_told_apart(folder: Path, code: int, said: str, killed: bool) -> None:
    ends(folder, 0, 1, LOST)
    ends(folder, 1, code, said, out_of_memory=killed)
    error = failed(folder)
    assert error.out_of_memory.startswith("rank 1 on node1 ")
    assert ("want of memory" if killed else said) in error.out_of_memory


def test_the_last_attempt_counts(folder: Path) -> None:
    ends(folder, 0, 1, LOST)
    ends(folder, 1, -signal.SIGKILL)
    for rank in (0, 1):
        begins(folder, rank, attempt=1)
    ends(folder, 0, 1, "ValueError: cannot resume", attempt=1)
    ends(folder, 1, -signal.SIGTERM, attempt=1)
    assert failed(folder).culprits == ("rank 0 on node0",)


def test_a_node_that_went_away_comes_first(folder: Path) -> None:
    ends(folder, 0, 1, "ValueError: what comes of it")
    error = failed(folder, lost=("node1",))
    assert error.culprits == ("node1",)
    assert "node1 went away\nlast lines of node1:\nlog of node1" in str(error)


def test_where_nothing_began_the_log_of_the_node_is_shown(tmp_path: Path) -> None:
    made = made_folder(tmp_path / "run")
    begins(made, 0)
    ends(made, 0, -signal.SIGTERM)
    error = failed(made)
    assert error.culprits == ("node1",)
    assert str(error) == "full run of own failed: it did not begin on node1\nlast lines of node1:\nlog of node1"


def test_at_the_limit_whoever_is_behind_is_named(folder: Path) -> None:
    probes(folder, 0, step(1), step(2))
    probes(folder, 1, step(1))
    (folder / OUTPUT / "rank1.log").write_text("loading shard 7\n")
    error = failed(folder, limit=120.0)
    assert error.culprits == ("rank 1 on node1",)
    assert "did not end within its limit of 120 s: rank 1 on node1 has done 1 steps; a run that needs" in str(error)
    assert str(error).endswith("workload.time_limit, now 120 s\nlast lines of rank 1 on node1:\nloading shard 7")


def test_of_a_long_output_only_the_end_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("all of it was read"))
    (folder / OUTPUT / "rank1.log").write_bytes(b"x" * 10_000 + "\nloading shard ä\n".encode())
    told = _printed(folder, 1)
    assert told.endswith("x\nloading shard ä") and 2990 < len(told) <= 3000
    assert _printed(folder, 0) == "none"


def test_a_failure_on_purpose_is_found_however_many_lines_come_after_it(folder: Path) -> None:
    probes(folder, 0, {"what": "hook", "at": 1.0, "name": "fault"})
    probes(folder, 1, step(1))
    assert not struck(folder / PROBES)
    fault = {"what": "fault", "at": 2.0, "name": "sigterm"}
    probes(folder, 1, step(1), fault, *(step(number) for number in range(2, 200)))
    assert struck(folder / PROBES)


def test_steps_are_of_files_that_are_named_after_a_rank(folder: Path) -> None:
    probes(folder, 1, step(1), step(2))
    for name in ("ranknode0-attempt0.jsonl", "rank1.0-attempt0.jsonl"):
        (folder / PROBES / name).write_text("{}\n")
    assert steps_done(folder / PROBES) == {1: 2}


@pytest.mark.parametrize(
    ("simulated", "patience", "told"),
    [(True, 60.0, "behind it, on each rank$"), (False, -1.0, "the nodes do not share .* with --qual-run-dir$")],
)
def test_a_launcher_line_that_starts_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool, patience: float, told: str
) -> None:
    def waited(_seconds: float) -> None:
        pytest.fail("storage of this machine is not waited for")

    launched = _Launched(began={}, ended={"node0": 1.0, "node1": 1.0}, samples={})
    monkeypatch.setattr(CommandLaunch, "_launch", lambda *_: launched)
    monkeypatch.setattr("time.sleep", waited)
    monkeypatch.setattr(command_launch, "_BEHIND_SECONDS", patience)
    launcher: Any = SimpleNamespace(simulated=simulated)
    launch = launch_in(tmp_path, launcher, replace(JOB, launcher_line=("true", "{nodes}")))
    with pytest.raises(LaunchError, match=rf"no rank has begun, though true .*: workload\.launcher_line .*{told}"):
        launch.run([NodePlan(name="node0", host="vm"), NodePlan(name="node1", host="vm")], None, None)


def test_a_command_that_removes_the_folder_of_its_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tidied(*_: Any, **__: Any) -> Any:
        shutil.rmtree(tmp_path / "run")
        return SimpleNamespace(launch=Guards(), close=lambda: None)

    monkeypatch.setattr(command_launch, "Wire", tidied)
    monkeypatch.setattr(command_launch, "_ended", lambda *_: True)
    launch = launch_in(tmp_path, SimpleNamespace(simulated=True, interface=""), JOB)
    with pytest.raises(JobError, match=r"/run, where its ranks write, is gone: .* tidy up in \{run\} only"):
        launch.run([NodePlan(name="node0", host="vm")], None, None)


def test_a_world_that_is_not_whole_is_no_world(folder: Path) -> None:
    ends(folder, 0)
    ends(folder, 1)
    whole = left_behind(folder).processes
    assert _whole(whole, 2, folder) == whole
    with pytest.raises(LaunchError, match=r"of 1 of 3 ranks \(first rank 2\) nothing is written in .*--qual-run-dir"):
        _whole(whole, 3, folder)
    begins(folder, 1, world=1)
    with pytest.raises(LaunchError, match="rank 1 on node1 was in a world of 1, asked were 2 ranks"):
        _whole(left_behind(folder).processes, 2, folder)
    begins(folder, 1, script="bb")
    with pytest.raises(LaunchError, match="the ranks ran different scripts: digests aa, bb"):
        _whole(left_behind(folder).processes, 2, folder)
    begins(folder, 1, attempt=1)
    with pytest.raises(MeasurementError, match="rank 1 on node1 did not tell that it ended well"):
        _whole(left_behind(folder).processes, 2, folder)
