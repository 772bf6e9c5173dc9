"""Launch plans become exact command lines; the machine is split or refused with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.local import LocalLauncher, visible_gpus
from pytest_clusterqual.launch.plan import (
    GUARD,
    OWN_ADDRESS,
    LaunchPlan,
    NodePlan,
    environment,
    own_line,
    split,
    torchrun,
)
from pytest_clusterqual.rank.settings import share_of

NODE = NodePlan(name="node1", host="h", address="127.0.0.102", cores=(2, 3), gpus=())
PLAN = LaunchPlan(
    nodes=(NODE, NODE), nproc_per_node=2, device="cpu", mode="serve", launch="ab12", store=("127.0.0.1", 4711),
    interface="lo", timeout=30.5,
)  # fmt: skip


def test_the_agents_command_line() -> None:
    assert torchrun(PLAN, NODE, "/opt/python") == [
        "/opt/python", "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:4711", "--rdzv-id=ab12",
        "--rdzv-conf=is_host=0,join_timeout=31,timeout=31,keep_alive_max_attempt=100", "--local-addr=127.0.0.102",
        "--max-restarts=0", "--monitor-interval=0.1", "-m", "pytest_clusterqual.rank", "serve",
    ]  # fmt: skip


def test_a_launcher_line_of_the_file_is_filled_for_each_node() -> None:
    nodes = (NodePlan(name="a", host="gpu001"), NodePlan(name="b", host="gpu002"))
    plan = replace(
        PLAN, nodes=nodes, mode="command", words=("train.py", "{nodes}"), script="/shared/rank.py", port=4712,
        max_restarts=1,
        line=("launch", "-n={ranks}", "-r={node_rank}/{nodes}", "{address}:{port}", "{nproc_per_node}x{restarts}"),
    )  # fmt: skip
    last = ["/shared/rank.py", "command", "train.py", "{nodes}"]
    assert own_line(plan, nodes[0]) == ["launch", "-n=4", "-r=0/2", f"{OWN_ADDRESS}:4712", "2x1", *last]
    assert own_line(plan, nodes[1]) == ["launch", "-n=4", "-r=1/2", "gpu001:4712", "2x1", *last]
    assert own_line(replace(plan, nodes=(NODE,)), NODE)[3] == "127.0.0.102:4712"


def test_the_ranks_environment() -> None:
    got = environment(PLAN, NODE, secret="00ff")
    assert got["CLUSTERQUAL_STORE"] == "127.0.0.1:4711"
    assert got["CLUSTERQUAL_CORES"] == "2,3"
    assert got["OMP_NUM_THREADS"] == "1"  # two cores for two ranks
    assert got["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in got


def test_the_secret_stands_on_no_command_line() -> None:
    secret = "5ec2e7" * 10
    assert secret in environment(PLAN, NODE, secret=secret).values()
    assert not any(secret in word for word in torchrun(PLAN, NODE, "python"))
    assert not any(secret in word for word in LocalLauncher(device="cpu").command(NODE, GUARD))


@pytest.mark.parametrize(
    ("items", "parts", "want"),
    [([0, 1], 2, ((0,), (1,))), ([0, 1, 2, 3, 4], 2, ((0, 1), (2, 3))), ([5, 7], 1, ((5, 7),))],
)
def test_split(items: list[int], parts: int, want: tuple[tuple[int, ...], ...]) -> None:
    assert split(items, parts) == want


def test_split_refuses_too_many_parts() -> None:
    with pytest.raises(LaunchError, match="3 parts asked of 2"):
        split([0, 1], 3)


def machine(monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int = 0) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr("pytest_clusterqual.launch.local.visible_gpus", lambda: list(range(gpus)))


def test_nodes_get_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 8)
    launcher = LocalLauncher(device="auto")
    nodes = launcher.nodes(2, 2)
    assert launcher.device == "cpu"
    assert [node.cores for node in nodes] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [(node.name, node.address) for node in nodes] == [("node0", "127.0.0.101"), ("node1", "127.0.0.102")]
    assert not launcher.oversubscribed


def test_too_many_ranks_are_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2)
    with pytest.raises(LaunchError) as caught:
        LocalLauncher(device="cpu").nodes(4, 1)
    assert str(caught.value) == (
        "4 nodes x 1 ranks = 4 ranks need 4 cores, this machine has 2; ask for fewer with --nodes and "
        "--nproc-per-node, or set launcher.oversubscribe: true (every record then says that ranks share cores)"
    )


def test_oversubscription_is_allowed_on_request_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2)
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    assert [node.cores for node in launcher.nodes(4, 1)] == [(0,), (1,), (0,), (1,)]
    assert launcher.oversubscribed


def test_gpus_are_shared_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 8, gpus=4)
    launcher = LocalLauncher(device="auto")
    assert launcher.device == "cuda"
    assert [node.gpus for node in launcher.nodes(2, 2)] == [(0, 1), (2, 3)]
    with pytest.raises(LaunchError, match="2 nodes x 4 ranks = 8 ranks need 8 GPUs, this machine has 4"):
        LocalLauncher(device="cuda", oversubscribe=True).nodes(2, 4)


def test_visible_gpus_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    monkeypatch.setattr("glob.glob", lambda _pattern: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == [0, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_gpus() == [1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


@pytest.mark.parametrize(
    ("cores", "local_rank", "size", "want"),
    [([0, 1, 2, 3], 1, 2, (2, 3)), ([4], 1, 2, (4,)), ([4, 5], 2, 3, (4,)), ([], 0, 2, ())],
)
def test_cores_of_one_rank(cores: list[int], local_rank: int, size: int, want: tuple[int, ...]) -> None:
    assert share_of(cores, local_rank, size) == want
