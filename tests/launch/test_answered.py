"""The world that answered is the one that was asked for."""

from __future__ import annotations

import pytest

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.model.topology import RankPlace, check_world


def place(rank: int, **other: object) -> RankPlace:
    values: dict[str, object] = {
        "rank": rank, "local_rank": 0, "node": f"node{rank}", "host": "ab"[rank], "pid": 1, "device": "cpu",
        "device_name": "x", "backend": "gloo", "cores": (rank,), "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    return RankPlace(**{**values, **other})  # type: ignore[arg-type]  # made by hand


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([place(0)], r"asked for ranks 0 to 1, got \[0\]"),
        ([place(0), place(1, node="node0")], "node0 has 2 ranks, asked were 1"),
        (
            [place(0, host="b.site"), place(1, host="a.site")],
            "rank 0 on node0 answered from b.site, asked was a: the names of these hosts are exchanged",
        ),
        ([place(0), place(1, device="cuda:0")], "rank 1 on node1 uses cuda:0 over gloo, asked were cpu over gloo"),
        ([place(0), place(1, backend="mpi")], "rank 1 on node1 uses cpu over mpi, asked were cpu over gloo"),
        (
            [place(0), place(1, versions={"torch": "2.12.0"})],
            r"rank 1 on node1: torch 2\.12\.0 \(rank 0 has 2\.13\.0\); all ranks must run the same versions",
        ),
    ],
)
def test_the_world_that_answered_is_checked(places: list[RankPlace], told: str) -> None:
    asked = {"nodes": ["node0", "node1"], "hosts": ["a", "b"], "nproc_per_node": 1, "device": "cpu", "backend": "gloo"}
    check_world([place(0), place(1)], **asked)
    with pytest.raises(LaunchError, match=told):
        check_world(places, **asked)


def test_a_host_may_be_reached_by_an_address_or_an_alias() -> None:
    asked = {"nodes": ["node0", "node1"], "nproc_per_node": 1, "device": "cpu", "backend": "gloo"}
    check_world([place(0), place(1)], hosts=["10.0.0.1", "rack-b"], **asked)


def test_two_ranks_on_one_gpu_are_refused() -> None:
    same = {"device": "cuda:0", "backend": "nccl", "node": "node0", "host": "h"}
    with pytest.raises(LaunchError, match="two ranks use the same GPU: rank 0 on node0: h cuda:0, rank 1 on node0"):
        check_world(
            [place(0, **same), place(1, **same)],
            nodes=["node0"],
            hosts=["h"],
            nproc_per_node=2,
            device="cuda",
            backend="nccl",
        )
