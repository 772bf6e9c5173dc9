"""Faults of the network: each is seen to be there, and seen to be gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import lab_faults_disks as disks
import lab_faults_network as network
import pytest
from lab_host import Host, Impossible, refused
from lab_hosts import Lab
from lab_probes import connection, python, until

MIB = 1 << 20
RECEIVE = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
peer, _ = server.accept()
while peer.recv(1 << 20):
    pass
"""
SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000), timeout=60)
began = time.perf_counter()
peer.sendall(bytes(int(sys.argv[2])))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)  # it ends once all was received
print(time.perf_counter() - began)
"""
LEAST = 0.25  # seconds: at 100 Mbit/s 4 MiB take longer, whatever else the machine does


def seconds(source: Host, target: Host) -> float:
    """How long 4 MiB take through a socket."""
    with target.popen([sys.executable, "-S", "-c", RECEIVE], stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None and receiver.stdout.readline()
        return float(python(source, SEND, target.name, 4 * MIB))


def is_fast(source: Host, target: Host) -> bool:
    """Whether nothing on the way holds them up; other work may hold up one try, and not ten."""
    return any(seconds(source, target) < LEAST for _ in range(10))


@pytest.mark.parametrize(
    ("direction", "slow_to", "slow_from"), [("both", True, True), ("in", True, False), ("out", False, True)]
)  # fmt: skip
def test_link_rate(lab: Lab, direction: Any, slow_to: bool, slow_from: bool) -> None:
    one, two = lab.nodes
    with network.link_rate(two, "100mbit", direction=direction):
        for slow, source, target in ((slow_to, one, two), (slow_from, two, one)):
            assert seconds(source, target) > LEAST if slow else is_fast(source, target)
    assert is_fast(one, two) and is_fast(two, one)


def test_a_mistake_is_not_taken_for_what_the_kernel_cannot_do(lab: Lab) -> None:
    node = lab["node2"]
    with network.link_rate(node, "100mbit"), pytest.raises(RuntimeError), network.link_rate(node, "50mbit"):
        pass
    with pytest.raises(RuntimeError, match="mount"), disks.read_only(node, "/no-such-folder"):
        pass
    with pytest.raises(Impossible, match="kind is unknown"):
        raise refused("tc qdisc add dev eth0 root tbf ended with 2: Error: Specified qdisc kind is unknown.")


def test_link_down(lab: Lab) -> None:
    one, two = lab.nodes
    with network.link_down(two):
        assert connection(one, two) != "connected"
        assert two.read("/sys/class/net/eth0/carrier") == "0\n"
    until(lambda: connection(one, two) == "connected")


COUNT_DATAGRAMS = """
import socket
server = socket.socket(type=socket.SOCK_DGRAM)
server.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE: what is lost is lost on the way
server.bind(("", 5001))
server.settimeout(60)
print("listening", flush=True)
received = 0
while server.recv(16) != b"end":
    received += 1
print(received)
"""
SEND_DATAGRAMS = """
import socket, sys, time
client = socket.socket(type=socket.SOCK_DGRAM)
for number in range(4000):
    client.sendto(b"datagram", (sys.argv[1], 5001))
    if number % 100 == 0:
        time.sleep(0.001)
for _ in range(20):  # some of them may be lost
    time.sleep(0.02)
    client.sendto(b"end", (sys.argv[1], 5001))
"""


def arrived(source: Host, target: Host) -> float:
    """The share of 4000 datagrams that arrives."""
    with target.popen([sys.executable, "-S", "-c", COUNT_DATAGRAMS], stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None and receiver.stdout.readline()
        python(source, SEND_DATAGRAMS, target.name)
        return int(receiver.stdout.read()) / 4000


def test_packet_loss(lab: Lab) -> None:
    one, two = lab.nodes
    with network.packet_loss(two, 0.2):
        assert arrived(one, two) == pytest.approx(0.8, abs=0.05)
        assert arrived(two, one) == pytest.approx(0.8, abs=0.05)
        assert "tcp-segmentation-offload: off" in two.run(["ethtool", "-k", "eth0"]).stdout
    assert arrived(one, two) > 0.95
    assert "tcp-segmentation-offload: on" in two.run(["ethtool", "-k", "eth0"]).stdout


@pytest.mark.parametrize(("how", "seen"), [("drop", "TimeoutError"), ("reject", "ConnectionRefusedError")])
@pytest.mark.parametrize("ports", [22, "20-25"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_blocked_port(lab: Lab, ports: int | str, how: Any, seen: str, direction: Any) -> None:
    one, two = lab.nodes
    inward, outward = connection, lambda a, b: connection(b, a)
    blocked, free = (inward, outward) if direction == "in" else (outward, inward)
    with network.blocked_port(two, ports, how=how, direction=direction):
        assert blocked(one, two) == seen
        assert free(one, two) == "connected"
        assert connection(two, two) == "connected"  # a firewall leaves the host's own connections alone
    assert blocked(one, two) == "connected"


def test_other_ports_stay_open(lab: Lab) -> None:
    one, two = lab.nodes
    with network.blocked_port(two, "23-100", how="reject"):
        assert connection(one, two) == "connected"


def test_slow_names(lab: Lab) -> None:
    least = 0.9  # seconds: the resolver waits for one
    code = "import socket, time\nbegan = time.monotonic()\ntry: socket.gethostbyaddr('10.77.0.77')\n"
    code += "except OSError: print(time.monotonic() - began)"
    options = {"RES_OPTIONS": "timeout:1 attempts:1"}
    with network.slow_names(lab["node2"]):
        assert float(python(lab["node2"], code, env=options)) > least
        assert connection(lab["node2"], lab["node1"]) == "connected"
    assert any(float(python(lab["node2"], code, env=options)) < least / 10 for _ in range(10))
