"""The network map as a person reads it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_clusterqual.model.traffic import Exchange, Flow, NetworkMap
from pytest_clusterqual.report.network_map import network_map, traffic_lines

MIB = 1024**2


def flow(layout: str = "ddp", **changes: Any) -> Flow:
    exchange = {"dimension": "replicate", "collective": "all_reduce", "bytes": MIB, "calls": 2, "why": "gradients"}
    place = {"group": "world", "shape": "1 group of 4 ranks over 2 nodes", "covered": True}
    exchange.update({key: value for key, value in changes.items() if key in exchange})
    place.update({key: value for key, value in changes.items() if key in place})
    return Flow(layout=layout, exchange=Exchange(**exchange), **place)  # type: ignore[arg-type]


def made(*flows: Flow, nodes: int = 2, **untold: str) -> NetworkMap:
    return NetworkMap(nodes=nodes, nproc_per_node=2, flows=flows, untold=untold)


TWO = made(
    flow(),
    flow(bytes=4 * MIB, calls=1),
    flow("tp2", dimension="tensor", collective="all_gather", bytes=16384, calls=144, group="tp2.tensor",
         shape="2 groups of 2 ranks inside a node", why="activations"),
    flow("tp2", dimension="tensor", collective="reduce_scatter", bytes=16384, calls=144, group="tp2.tensor",
         shape="2 groups of 2 ranks inside a node", why="activations", covered=False),
)  # fmt: skip


def test_a_part_for_each_group_and_a_row_for_each_exchange() -> None:
    lines = network_map(TWO, width=120).splitlines()
    assert "2 nodes x 2 ranks; estimate" in lines[0]
    assert "nothing is measured" in lines[0]
    assert [re.split(r"\s{2,}", line) for line in lines[2:10] if line] == [
        ["ddp.replicate: 1 group of 4 ranks over 2 nodes"],
        ["collective", "size", "calls", "a step", "measured in", "what"],
        ["all_reduce", "1 MiB", "2", "2 MiB", "world", "gradients"],
        ["all_reduce", "4 MiB", "1", "4 MiB", "world", "gradients"],
        ["tp2.tensor: 2 groups of 2 ranks inside a node"],
        ["collective", "size", "calls", "a step", "measured in", "what"],
        ["all_gather", "16 KiB", "144", "2.25 MiB", "tp2.tensor", "activations"],
    ]
    assert re.split(r"\s{2,}", lines[10])[4] == "no test"
    assert lines[-1].startswith("no test: Fabric does not measure that collective among these ranks")


def test_nothing_is_said_of_missing_tests_where_none_is_missing() -> None:
    assert "no test" not in network_map(made(flow()), width=100)


def test_columns_stand_under_each_other_in_all_parts() -> None:
    heads = [line for line in network_map(TWO, width=100).splitlines() if line.startswith("collective")]
    assert len(heads) == 2
    assert len(set(heads)) == 1


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    wordy = made(flow(why="activations around attention and feed-forward of 4 layers, embedding, head"), tp4="x " * 80)
    text = network_map(wordy, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert all(not line.endswith(" ") for line in text.splitlines())
    assert "embedding, head" in " ".join(text.split())


def test_a_layout_without_a_map_says_why() -> None:
    text = network_map(made(tp4="4 does not fit"), width=100)
    assert text.splitlines()[-1] == "tp4: nothing can be derived: 4 does not fit"
    assert network_map(made(nodes=1), width=100).splitlines()[-1] == "one rank exchanges nothing"
    assert "1 node x 2 ranks" in network_map(made(nodes=1), width=100)


def test_color_only_on_request() -> None:
    assert "\x1b" not in network_map(TWO, width=100)
    assert "\x1b" in network_map(TWO, width=100, color=True)


def test_what_could_steer_a_terminal_is_shown_as_text() -> None:
    hostile = made(flow("\x1b[31mx", why="a\nb"), bad="\x1b]0;y\x07")
    assert "\x1b" not in network_map(hostile, width=100)
    assert "a b" in network_map(hostile, width=100)
    assert not any("\x1b" in line for line in traffic_lines(hostile))


def test_one_line_a_layout_sums_the_messages_of_a_collective() -> None:
    assert traffic_lines(TWO) == [
        "ddp: all_reduce in world, 6 MiB in 3 calls a step",
        "tp2: all_gather in tp2.tensor, 2.25 MiB in 144 calls a step; "
        "reduce_scatter in tp2.tensor (not covered), 2.25 MiB in 144 calls a step",
    ]
    assert traffic_lines(made(flow(calls=1))) == ["ddp: all_reduce in world, 1 MiB in 1 call a step"]
    assert traffic_lines(made(tp4="x")) == []
