"""Warm ranks, for real: what they return, how they fail, and that nothing is left running."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, alive, make_world, ours, until

from pytest_clusterqual.channel import Channel
from pytest_clusterqual.errors import JobError, LaunchError
from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.launch.plan import LaunchPlan, NodePlan, torchrun
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.rank_map import Seat
from pytest_clusterqual.model.workload import ModelShape, Optimizer, Workload
from pytest_clusterqual.session import reach
from pytest_clusterqual.session.reach import Unreached
from pytest_clusterqual.session.world import Job, Progress, World

pytestmark = pytest.mark.slow


def job(function: str, *, ranks: tuple[int, ...] = (0, 1), timeout: float = 60, **args: object) -> Job:
    return Job(name=f"jobs_for_tests:{function}", args=args, ranks=ranks, timeout=timeout)


def test_results_come_back_by_rank(world: World) -> None:
    first, second = (result.value for result in world.run(job("where")))
    assert (first["rank"], first["node"], first["world_size"], first["sum"]) == (0, "node0", 2, 3.0)
    assert (second["rank"], second["node"], second["world_size"], second["sum"]) == (1, "node1", 2, 3.0)
    assert first["cores"] == first["threads"]


def test_ranks_stay_warm_and_a_fresh_job_gets_new_processes(world: World) -> None:
    before = [result.value["pid"] for result in world.run(job("where"))]
    assert [result.value["pid"] for result in world.run(job("where"))] == before
    world.fresh()
    after = [result.value["pid"] for result in world.run(job("where"))]
    assert not set(before) & set(after)
    assert not any(alive(pid) for pid in before)


@pytest.mark.parametrize("ranks", [(0,), (1,)])
def test_a_part_of_the_world_is_a_group_of_its_own(world: World, ranks: tuple[int, ...]) -> None:
    (only,) = world.run(job("where", ranks=ranks))
    assert only.rank == ranks[0]
    assert (only.value["rank"], only.value["world_size"], only.value["sum"]) == (0, 1, float(ranks[0] + 1))


def test_ranks_sit_where_they_are_put(world: World) -> None:
    """Another rank map is another generation of workers on the same warm supervisors."""
    nodes = [place.node for place in world.ready().places]
    turned = (Seat(node="node1", local_rank=0, device=0), Seat(node="node0", local_rank=0, device=0))
    assert nodes == ["node0", "node1"]
    assert [place.node for place in world.ready(turned).places] == ["node1", "node0"]
    assert [result.value["rank"] for result in world.run(job("where"))] == [0, 1]
    assert [result.value["node"] for result in world.run(job("where"))] == ["node1", "node0"]
    world.ready(tuple(reversed(turned)))


def test_a_group_of_its_own_for_the_whole_world(world: World) -> None:
    for _ in range(3):
        results = world.run(Job(name="jobs_for_tests:where", ranks=(0, 1), timeout=60, new_group=True))
        assert [result.value["sum"] for result in results] == [3.0, 3.0]


def test_arguments_are_json(world: World) -> None:
    args = {"text": "ü \"' $HOME", "list": [1, 2.5, None], "nested": {"a": True}}
    assert [result.value for result in world.run(job("echo", **args))] == [args, args]


WANTED = "could not allocate 4096 TiB"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raise", "rank 1 on node1 raised ValueError: boom"),
        ("exit", "rank 1 on node1 left with exit code 3"),
        ("sys.exit", "rank 1 on node1 left with exit code 4"),
        ("leave", "rank 1 on node1 left with exit code 0"),
        ("kill", "rank 1 on node1 was killed by SIGKILL"),
        ("stop", "rank 1 on node1 is stopped (state T (stopped))"),
        ("sleep", "rank 1 on node1 did not answer"),
        ("allocate", "rank 1 on node1 raised RuntimeError: "),
        ("kill-supervisor", "rank 1 on node1 was killed by SIGKILL"),
        (
            "unserializable",
            "rank 1 on node1 raised jobs_for_tests:misbehave returned what JSON cannot hold: Object of type",
        ),
    ],
)
def test_the_guilty_rank_is_named(how: str, told: str, world: World) -> None:
    world.ready()
    marker = f"CLUSTERQUAL_LAUNCH={world._wire.plan.launch}"
    before = len(ours(marker))
    assert before >= 6  # 2 agents, 2 supervisors, 2 workers
    with pytest.raises(JobError) as caught:
        world.run(job("misbehave", how=how, timeout=6 if how in ("stop", "sleep") else 60))
    assert told in str(caught.value)
    assert caught.value.culprits == ("rank 1 on node1",)
    assert caught.value.out_of_memory == (f"rank 1 on node1 {WANTED}" if how == "allocate" else "")
    assert "rank 0 on node0 raised" not in str(caught.value)
    if how == "sleep":
        stacks = str(caught.value)
        assert "in misbehave" in stacks, "the stack of the stuck rank is part of the error"
        assert "all_reduce" in stacks, "and so is the stack of the rank that waits for it"
    assert world.usable == (how != "kill-supervisor")
    if world.usable:  # the next job gets a new generation, not a new launch
        assert [result.value["sum"] for result in world.run(job("where"))] == [3.0, 3.0]
        assert len(ours(marker)) == before
    else:
        world.close()
        assert ours(marker) == []


@pytest.fixture
def memory_group(tmp_path: Path) -> Iterator[Path]:
    """A control group with little memory, where this machine allows one."""
    name = f"clusterqual-test-{os.getpid()}"
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        try:
            (root / name).mkdir()
            (root / name / limit).write_text(str(700 << 20))
        except OSError:
            continue
        yield root / name
        (root / name).rmdir()
        return
    pytest.skip("no control group with a memory limit can be made here (needs root)")


def test_a_rank_that_the_kernel_kills_for_want_of_memory(memory_group: Path, world: World) -> None:
    pids = [result.value["pid"] for result in world.run(job("where"))]
    (memory_group / "cgroup.procs").write_text(str(pids[1]))
    with pytest.raises(JobError) as caught:
        world.run(job("misbehave", how="exhaust"))
    assert "rank 1 on node1 was killed by the kernel for want of memory" in str(caught.value)
    assert caught.value.culprits == ("rank 1 on node1",)
    assert caught.value.out_of_memory == (
        "rank 1 on node1 was killed by the kernel for want of memory (SIGKILL, out of memory)"
    )


def test_a_job_on_some_ranks_of_a_node_knows_how_many_there_are(tmp_path: Path) -> None:
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    world = make_world(launcher, 1, tmp_path, nproc_per_node=2)
    try:
        for ranks in ((0,), (1,), (0, 1)):
            found = [result.value for result in world.run(job("where", ranks=ranks))]
            assert [(each["global_rank"], each["nproc_per_node"]) for each in found] == [
                (rank, len(ranks)) for rank in ranks
            ]
    finally:
        world.close()


@pytest.mark.parametrize("split", ["tensor", "context", "pipeline"])
def test_a_layout_can_be_run_again_in_another_group(world: World, split: str) -> None:
    """torch remembers groups; those that it remembers must not end with a job."""
    work = Workload(
        model=ModelShape(layers=2, hidden=32, heads=2, kv_heads=2, ffn=64, vocab=256),
        optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=16, microbatch=1, global_batch=2,
        steps=1, seed=1,
    )  # fmt: skip
    again = Job(
        name="pytest_clusterqual.rank.training:fixed_work", ranks=(0, 1), timeout=60, new_group=True,
        args={"workload": to_json(work), "layout": {"name": split, split: 2}, "warmup": 1},
    )  # fmt: skip
    first, second = ([result.value["losses"] for result in world.run(again)] for _ in range(2))
    assert first == second


BLOCKED = {"node0": {"node1": "127.0.0.102: no answer"}, "node1": {"node0": "127.0.0.101: no answer"}}


def slow_to_form(world: World, monkeypatch: pytest.MonkeyPatch, *, looks: float) -> None:
    """For so many looks the ranks of the next generation are not together, however fast they are."""
    genuine = world._channel.has
    seen = []

    def has(*keys: str) -> bool:
        if "/hello/" in keys[0] and len(seen) < looks:
            seen.append(keys)
            return False
        return genuine(*keys)

    world.fresh()
    monkeypatch.setattr(world._channel, "has", has)
    monkeypatch.setattr("pytest_clusterqual.session.world._JOIN_SECONDS", -1.0)


def test_a_world_that_is_slow_to_form_asks_its_nodes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []

    def ask(*about: Any) -> Unreached:
        answers.append(reach.ask(*about))
        return answers[-1]

    monkeypatch.setattr("pytest_clusterqual.session.world.ask", ask)
    slow_to_form(world, monkeypatch, looks=1)
    assert [place.node for place in world.ready().places] == ["node0", "node1"]
    assert answers == [{"node0": {}, "node1": {}}]


def test_its_nodes_are_asked_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[str] = []
    monkeypatch.setattr(
        "pytest_clusterqual.session.world.ask", lambda _channel, _order, name, _nodes: rounds.append(name) or {}
    )
    slow_to_form(world, monkeypatch, looks=3)
    world.ready()
    assert len(rounds) == 1


def test_nodes_that_cannot_connect_are_named_and_their_ranks_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_clusterqual.session.world.ask", lambda *about: BLOCKED)
    slow_to_form(world, monkeypatch, looks=math.inf)
    marker = f"CLUSTERQUAL_LAUNCH={world._wire.plan.launch}"
    before = len(ours(marker))
    with pytest.raises(LaunchError, match="node0 - node1: neither can connect to the other") as caught:
        world.ready()
    assert caught.value.culprits == ("node0 - node1",)
    monkeypatch.undo()
    assert [result.value["sum"] for result in world.run(job("where"))] == [3.0, 3.0]
    assert len(ours(marker)) == before + 2


def test_a_world_that_forms_meanwhile_is_a_world(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(channel: Channel, order: Any, name: str, nodes: Any) -> Unreached:
        for rank in (0, 1):
            channel.get(name.replace("/reach", f"/hello/{rank}"))
        return BLOCKED

    monkeypatch.setattr("pytest_clusterqual.session.world.ask", ask)
    slow_to_form(world, monkeypatch, looks=1)
    assert [place.node for place in world.ready().places] == ["node0", "node1"]


def test_a_world_of_another_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun can form a world of one and end well: then nothing is measured, and the message says why."""

    def alone(plan: LaunchPlan, node: NodePlan, python: str) -> list[str]:
        return [
            f"--rdzv-id={node.name}" if word.startswith("--rdzv-id=") else word
            for word in torchrun(replace(plan, nodes=(node,)), node, python)
        ]

    monkeypatch.setattr("pytest_clusterqual.launch.plan.torchrun", alone)
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    with pytest.raises(
        LaunchError, match="node0 is in a world of 1 ranks, asked were 2: torchrun formed another world"
    ):
        make_world(launcher, 2, tmp_path)


def test_megabytes_of_output_disturb_nothing(world: World) -> None:
    assert [result.value for result in world.run(job("chatter", megabytes=8))] == [8, 8]
    assert [result.value["sum"] for result in world.run(job("where"))] == [3.0, 3.0]


def test_a_job_that_does_not_exist(world: World) -> None:
    with pytest.raises(JobError, match=r"no_such_module:f: cannot import 'no_such_module' on this node"):
        world.run(Job(name="no_such_module:f", ranks=(0, 1), timeout=30))
    with pytest.raises(JobError, match="the module 'jobs_for_tests' has no function 'nothing'"):
        world.run(job("nothing"))


def test_arguments_that_are_not_json_are_refused_and_the_next_job_runs(world: World) -> None:
    with pytest.raises(JobError, match="jobs_for_tests:echo: an argument is not a JSON value: Object of type set"):
        world.run(job("echo", value={1, 2}))
    assert [result.value["sum"] for result in world.run(job("where"))] == [3.0, 3.0]


def test_results_do_not_pile_up_in_the_store(world: World) -> None:
    world.ready()
    before = world._channel.store.num_keys()
    for _ in range(5):
        world.run(job("where"))
    assert world._channel.store.num_keys() <= before + 5 * 2  # a counter and a flag a job, no results


def test_progress_is_told(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        (tmp_path / f"{progress.done:g}").touch()

    world.ready()
    monkeypatch.setattr(world, "_tell", tell)
    args = {"steps": 5, "seen": str(tmp_path)}
    world.run(Job(name="jobs_for_tests:progress", args=args, ranks=(0,), timeout=60, what="a count"))
    assert {progress.what for progress in told} == {"a count"}
    done = [progress.done for progress in told]
    assert done == sorted(done)
    assert set(done) == {0, 1, 2, 3, 4}
    assert told[-1].total == 5


def test_a_launch_that_does_not_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    # It reads what it is told and never says a word.
    monkeypatch.setattr(launcher, "command", lambda node, program, *, store=None: ["sh", "-c", "cat > /dev/null"])
    with pytest.raises(LaunchError, match=r"no answer within 0 s on node0, node1"):
        make_world(launcher, 2, tmp_path, start_timeout=0.2, tell=told.append)
    assert {progress.what for progress in told} == {"starting"}


def test_a_killed_session_leaves_no_rank_behind(tmp_path: Path) -> None:
    """SIGKILL of the session: the guards see their lifeline end and kill everything below them."""
    script = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from pytest_clusterqual.launch.local import LocalLauncher
        from pytest_clusterqual.session.world import Job, World
        launcher = LocalLauncher(device="cpu", oversubscribe=True)
        world = World(launcher, launcher.nodes(2, 1), 1, device="cpu", logs=Path({str(tmp_path)!r}), start_timeout=120,
                      path=[{HERE!r}], tell=lambda p: None)
        print(world._wire.plan.launch, flush=True)
        world.run(Job(name="jobs_for_tests:misbehave", args={{"how": "sleep"}}, ranks=(0, 1), timeout=300))
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        marker = f"CLUSTERQUAL_LAUNCH={session.stdout.readline().strip()}"
        assert until(lambda: len(ours(marker)) >= 6)  # 2 agents, 2 supervisors, 2 workers
        session.kill()
    assert until(lambda: not ours(marker))


def test_a_killed_guard_takes_its_ranks_along(world: World) -> None:
    marker = f"CLUSTERQUAL_LAUNCH={world._wire.plan.launch}"
    world.ready()
    second = world.rank_map[1].pid
    world._wire.launch.processes[1]._process.kill()
    assert until(lambda: not alive(second)), "the worker must have gone with the guard"
    with pytest.raises(JobError) as caught:
        world.run(job("where", timeout=60))
    assert "rank 1 on node1" in str(caught.value)
    assert not world.usable
    world.close()
    assert ours(marker) == []


def test_no_scratch_is_left(world: World) -> None:
    scratch = [Path(p.event("began").data["scratch"]) for p in world._wire.launch.processes]  # type: ignore[union-attr]  # it began
    assert all(path.is_dir() for path in scratch)
    world.close()
    assert not any(path.exists() for path in scratch)
    assert os.path.isdir(scratch[0].parent)
