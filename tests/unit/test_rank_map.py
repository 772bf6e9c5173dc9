"""Rank maps: which rank sits where under each strategy, and what is near to it."""

from __future__ import annotations

import pytest

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.model.hardware import Cpu, Gpu, Nic, NodeHardware, Path, PathClass
from pytest_clusterqual.model.rank_map import STRATEGIES, Seat, arrange, surrounded
from pytest_clusterqual.model.topology import RankPlace

NODES = ("a", "b", "c")


def seats(*places: str) -> tuple[Seat, ...]:
    """``a0`` is node a, local rank 0, device 0; ``a1:3`` the second process of a with device 3."""
    found = []
    for place in places:
        process, _, device = place.partition(":")
        found.append(Seat(node=process[0], local_rank=int(process[1:]), device=int(device or process[1:])))
    return tuple(found)


def node(name: str, paths: list[PathClass | tuple[PathClass, ...]]) -> NodeHardware:
    """A node whose GPU i reaches NIC j by ``paths[i][j]``; a single class is that to every one of four NICs."""
    rows = [(row,) * 4 if isinstance(row, str) else row for row in paths]
    return NodeHardware(
        node=name, host=name, gpus=tuple(Gpu(index=i, numa=i // 2) for i in range(len(paths))),
        nics=tuple(Nic(name=f"mlx5_{j}", label=f"NIC{j}") for j in range(4)),
        paths=tuple(
            Path(one=f"GPU{i}", other=f"NIC{j}", kind=kind) for i, row in enumerate(rows) for j, kind in enumerate(row)
        ),
    )  # fmt: skip


def test_block_fills_a_node_before_the_next() -> None:
    assert arrange("block", NODES, 2, {}) == seats("a0", "a1", "b0", "b1", "c0", "c1")


def test_cyclic_deals_ranks_out_in_turn() -> None:
    assert arrange("cyclic", NODES, 2, {}) == seats("a0", "b0", "c0", "a1", "b1", "c1")


def test_nic_near_takes_the_devices_beside_a_nic_first() -> None:
    far = node("a", ["SYS", ("PXB", "SYS", "SYS", "SYS"), "SYS", ("SYS", "PIX", "SYS", "SYS")])
    assert arrange("nic-near", ["a"], 4, {"a": far}) == seats("a0:3", "a1:1", "a2:0", "a3:2")


def test_nic_near_spreads_ranks_over_the_nics() -> None:
    """GPU0 and GPU1 share NIC0: with two ranks the second one takes a GPU with a NIC of its own."""
    shared = node("a", [("PIX", "SYS", "SYS", "SYS")] * 2 + [("SYS", "PIX", "SYS", "SYS")] * 2)
    assert arrange("nic-near", ["a"], 2, {"a": shared}) == seats("a0:0", "a1:2")


def test_nic_near_knows_nothing_where_nothing_is_known() -> None:
    bare = NodeHardware(node="a", host="a")
    assert arrange("nic-near", ["a"], 2, {"a": bare}) == seats("a0", "a1")


def test_an_explicit_list_is_taken_as_it_is() -> None:
    assert arrange(((1, 0), (0, 1), (1, 1), (0, 0)), ["a", "b"], 2, {}) == seats("b0:0", "a0:1", "b1:1", "a1:0")


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        (((0, 0), (2, 0)), "rank 1 sits on node 2, this run has nodes 0 to 1"),
        (((0, 0), (0, 1)), "want 1 ranks on each node, got a 2, b 0"),
        (((0, 0),), "want 1 ranks on each node, got b 0"),
    ],
)
def test_an_explicit_list_that_seats_nobody_somewhere_is_refused(pairs: tuple[tuple[int, int], ...], told: str) -> None:
    with pytest.raises(LaunchError, match=told):
        arrange(pairs, ["a", "b"], 1, {})


def test_two_ranks_cannot_share_a_device() -> None:
    with pytest.raises(LaunchError, match="two ranks share a device"):
        arrange(((0, 1), (0, 1)), ["a"], 2, {})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_seats_every_process_once(strategy: str) -> None:
    hardware = {name: node(name, ["PIX", "SYS", "NODE", "PHB"]) for name in NODES}
    found = arrange(strategy, NODES, 4, hardware)  # type: ignore[arg-type]  # one of the strategies
    assert sorted((seat.node, seat.local_rank) for seat in found) == [(n, i) for n in NODES for i in range(4)]
    assert len({(seat.node, seat.device) for seat in found}) == 12


def place(device: str, cores: tuple[int, ...] = (0,)) -> RankPlace:
    return RankPlace(
        rank=0, local_rank=0, node="a", host="a", pid=1, device=device, device_name="x", backend="gloo", cores=cores,
        versions={},
    )  # fmt: skip


def test_a_rank_on_a_gpu_knows_its_numa_node_and_nic() -> None:
    found = surrounded(place("cuda:2"), node("a", ["SYS", "SYS", ("NODE", "PIX", "PIX", "SYS"), "SYS"]))
    assert (found.numa, found.nics, found.nic_path) == (1, ("mlx5_1", "mlx5_2"), "PIX")


def test_a_rank_on_cores_is_near_to_the_nics_of_its_numa_node() -> None:
    machine = NodeHardware(
        node="a", host="a", cpu=Cpu(numa={"0": (0, 1), "1": (2, 3)}),
        nics=(Nic(name="eth0", numa=0), Nic(name="eth1", numa=1), Nic(name="veth0", numa=1, virtual=True)),
    )  # fmt: skip
    found = surrounded(place("cpu", (2, 3)), machine)
    assert (found.numa, found.nics, found.nic_path) == (1, ("eth1",), "NODE")
    both = surrounded(place("cpu", (1, 2)), machine)
    assert (both.numa, both.nics, both.nic_path) == (None, ("eth0", "eth1"), "SYS")


def test_what_is_not_known_stays_unknown() -> None:
    found = surrounded(place("cpu"), NodeHardware(node="a", host="a"))
    assert (found.numa, found.nics, found.nic_path) == (None, (), None)
