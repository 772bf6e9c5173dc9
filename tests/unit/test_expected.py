from __future__ import annotations

import pytest

from pytest_clusterqual.model.expected import expected_busbw
from pytest_clusterqual.model.topology import Links

# Two 8-GPU nodes: 450 GB/s out of a GPU, 8 NICs of 50 GB/s.
RACK = Links(intra_node=450e9, nic=50e9, nics_per_node=8)


@pytest.mark.parametrize(
    ("collective", "group", "nodes", "local", "links", "value"),
    [
        ("all_reduce", "intra_node", 2, 8, RACK, 450e9),
        ("all_to_all", "intra_node", 2, 8, RACK, 450e9),
        ("send_recv", "world", 1, 8, RACK, 450e9),
        ("all_reduce", "world", 2, 8, RACK, 400e9),
        ("all_gather", "world", 4, 8, RACK, 400e9),
        ("send_recv", "world", 2, 8, RACK, 400e9),
        ("reduce_scatter", "world", 2, 8, Links(intra_node=300e9, nic=50e9, nics_per_node=8), 300e9),
        ("all_reduce", "world", 2, 8, Links(nic=50e9, nics_per_node=8), 400e9),
        ("all_reduce", "inter_node", 2, 8, RACK, 400e9),
        ("all_to_all", "inter_node", 4, 8, RACK, 400e9),
        # one rank a node never uses the link inside it
        ("all_reduce", "world", 2, 1, Links(intra_node=1e9, nic=50e9), 50e9),
        # 400 GB/s / 8 ranks = 50 GB/s each for the 8 of 15 peers on the other node: 50 x 15/8
        ("all_to_all", "world", 2, 8, RACK, 93.75e9),
        # 24 of 31 peers are on other nodes: 50 x 31/24
        ("all_to_all", "world", 4, 8, RACK, 50e9 * 31 / 24),
        # 2 x 2 and one NIC: 5 GB/s each for 2 of 3 peers
        ("all_to_all", "world", 2, 2, Links(nic=10e9), 7.5e9),
        # the link inside binds: 1 of 3 peers over 2 GB/s
        ("all_to_all", "world", 2, 2, Links(intra_node=2e9, nic=10e9), 6e9),
    ],
)
def test_expected_by_hand(  # the columns of the table above
    collective: str, group: str, nodes: int, local: int, links: Links, value: float
) -> None:
    expected = expected_busbw(collective, group, nodes=nodes, nproc_per_node=local, links=links)
    assert expected.value == pytest.approx(value)


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("local", [2, 4, 8])
def test_all_to_all_agrees_with_counting_bytes(nodes: int, local: int) -> None:
    ranks, size = nodes * local, 1 << 30
    node_of = [rank // local for rank in range(ranks)]
    leaving = sum(size / ranks for a in range(local) for b in range(ranks) if node_of[b] != 0 and a != b)
    seconds = leaving / 400e9
    busbw = size / seconds * (ranks - 1) / ranks
    links = Links(nic=50e9, nics_per_node=8)
    expected = expected_busbw("all_to_all", "world", nodes=nodes, nproc_per_node=local, links=links)
    assert expected.value == pytest.approx(busbw)


def test_the_arithmetic_is_said_in_words() -> None:
    def why(collective: str, group: str, links: Links = RACK) -> str:
        return expected_busbw(collective, group, nodes=2, nproc_per_node=8, links=links).why

    assert why("all_reduce", "intra_node") == "links.intra_node 450 GB/s of one rank inside its node"
    assert why("all_reduce", "world") == (
        "8 x links.nic 50 GB/s = 400 GB/s: a ring leaves each node once and shares all its NICs"
    )
    assert why("all_reduce", "inter_node") == (
        "8 x links.nic 50 GB/s = 400 GB/s out of a node; one rank a node, which reaches this only if it can use "
        "all NICs of the node"
    )
    assert why("all_to_all", "world") == (
        "8 x links.nic 50 GB/s = 400 GB/s shared by 8 ranks of a node, of whose 15 peers 8 are on other nodes: "
        "/ 8 x 15 / 8 = 93.8 GB/s"
    )
    assert why("all_reduce", "world", Links(intra_node=300e9, nic=50e9, nics_per_node=8)) == (
        "links.intra_node 300 GB/s, which is less than 8 x links.nic 50 GB/s = 400 GB/s out of a node"
    )
    slow_inside = Links(intra_node=1e9, nic=50e9, nics_per_node=8)
    assert why("all_to_all", "world", slow_inside).startswith(
        "links.intra_node 1 GB/s carries what goes to 7 of 15 peers: x 15 / 7 = 2.14 GB/s, which is less than 8 x"
    )


@pytest.mark.parametrize(
    ("group", "nodes", "local", "links", "why"),
    [
        ("world", 2, 8, Links(intra_node=450e9), "fabric.links.nic is not given, so nothing is promised between nodes"),
        (
            "intra_node",
            2,
            8,
            Links(nic=50e9),
            "fabric.links.intra_node is not given, so nothing is promised inside a node",
        ),
        ("intra_node", 2, 1, RACK, "a group intra_node of 1 rank has nobody to talk to"),
        ("inter_node", 1, 8, RACK, "a group inter_node of 1 rank has nobody to talk to"),
    ],
)
def test_what_cannot_be_said_has_no_value(group: str, nodes: int, local: int, links: Links, why: str) -> None:
    expected = expected_busbw("all_reduce", group, nodes=nodes, nproc_per_node=local, links=links)
    assert (expected.value, expected.why) == (None, why)


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(ValueError, match="got group 'rack', want intra_node, inter_node or world"):
        expected_busbw("all_reduce", "rack", nodes=2, nproc_per_node=8, links=RACK)
