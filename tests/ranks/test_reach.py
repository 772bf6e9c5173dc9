"""Nodes that try each other: real sockets on loopback addresses of their own, a thread in place of a supervisor."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from rank_harness import PATIENCE, until

from pytest_clusterqual import channel as channel_module
from pytest_clusterqual.channel import Channel
from pytest_clusterqual.rank.reach import take_part
from pytest_clusterqual.session import reach

NODES = {"node1": "127.0.0.11", "node2": "127.0.0.12", "node3": "127.0.0.13"}
ELSEWHERE = "203.0.113.1"  # an address for documentation: nobody's


def asked(nodes: Mapping[str, str], **doors: tuple[str, int]) -> reach.Unreached:
    """What the session learns from `nodes` (name -> address), and from others that only claim to listen somewhere."""
    server = channel_module.listen("127.0.0.1")
    port = server.getsockname()[1]
    session = Channel(channel_module.host(server), b"secret", "launch")
    for name, door in doors.items():
        session.put(f"round/door/{name}", door)
        session.put(f"round/lost/{name}", {})

    def supervise(node: str) -> None:
        channel = Channel(channel_module.join("127.0.0.1", port), b"secret", "launch")
        take_part(channel, "round", node=node, address=nodes[node])

    threads = [threading.Thread(target=supervise, args=(node,), daemon=True) for node in nodes]

    def order(message: dict[str, Any]) -> None:
        assert message == {"do": "reach", "name": "round"}
        for thread in threads:
            thread.start()
        # Only who cannot open a door at all is waited for by the clock.
        assert until(lambda: session.has(*(f"round/door/{node}" for node in nodes if nodes[node] != ELSEWHERE)))

    unreached = reach.ask(session, order, "round", [*nodes, *doors])
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "the round is over for everyone"
    return unreached


def test_nodes_that_reach_each_other() -> None:
    assert asked(NODES) == {"node1": {}, "node2": {}, "node3": {}}


@pytest.fixture
def closed() -> Iterator[tuple[str, int]]:
    """A door where nobody listens, and nobody else can meanwhile."""
    with socket.socket() as door:
        door.bind(("127.0.0.14", 0))
        yield door.getsockname()


def test_a_door_that_is_closed(closed: tuple[str, int]) -> None:
    seen = {"node4": "127.0.0.14: Connection refused"}
    assert asked(NODES, node4=closed) == {"node1": seen, "node2": seen, "node3": seen, "node4": {}}


def test_what_a_node_itself_lacks_accuses_nobody(monkeypatch: pytest.MonkeyPatch, closed: tuple[str, int]) -> None:
    """As when it has too many files open; a refused connection stands for that here."""
    monkeypatch.setattr("pytest_clusterqual.rank.reach._OWN_LACK", {errno.ECONNREFUSED})
    assert asked(NODES, node4=closed) == {"node1": {}, "node2": {}, "node3": {}, "node4": {}}


def test_a_door_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its queue full, a listener drops what comes, as a firewall does."""
    monkeypatch.setattr("pytest_clusterqual.rank.reach._SECONDS", 1.5)
    with socket.create_server(("127.0.0.14", 0), backlog=0) as silent, socket.create_connection(silent.getsockname()):
        found = asked(NODES, node4=silent.getsockname())
    assert found["node1"] == {"node4": "127.0.0.14: no answer within 1.5 s"}
    assert list(reach.blocked(found)) == ["node4"]


def test_more_nodes_than_are_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_clusterqual.rank.reach._AT_ONCE", 2)
    many = {f"node{number}": f"127.0.0.{20 + number}" for number in range(8)}
    assert asked(many) == {node: {} for node in many}


def test_a_node_without_its_address_takes_no_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pytest_clusterqual.session.reach._DOOR_SECONDS", 0.1)
    assert asked({**NODES, "node4": ELSEWHERE}) == {"node1": {}, "node2": {}, "node3": {}}
    assert f"cannot listen on {ELSEWHERE}" in capsys.readouterr().err
