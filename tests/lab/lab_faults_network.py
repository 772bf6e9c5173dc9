"""Faults of a host's link and ports. Each is a context manager that undoes itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Literal

from lab_host import Host, in_network, ip, refused
from lab_hosts import LOGIN_ADDRESS

_numbers = count(1)


@contextmanager
def link_rate(host: Host, rate: str, *, direction: Literal["both", "out", "in"] = "both") -> Iterator[None]:
    """The host's link carries no more than `rate` (as tc writes it: ``200mbit``), leaving it, reaching it, or both."""
    ends = [(host.pid, "eth0")] * (direction != "in") + [(host.anchor, host.name)] * (direction != "out")
    with ExitStack() as stack:
        for pid, device in ends:
            shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "400ms"]
            _try(pid, ["tc", "qdisc", "add", "dev", device, "root", *shape])
            stack.callback(in_network, pid, ["tc", "qdisc", "del", "dev", device, "root"])
        yield


@contextmanager
def link_down(host: Host) -> Iterator[None]:
    """The host's port at the switch is down: its interface stays, without a carrier."""
    ip(host.anchor, f"link set {host.name} down")
    try:
        yield
    finally:
        ip(host.anchor, f"link set {host.name} up")


@contextmanager
def packet_loss(host: Host, share: float) -> Iterator[None]:
    """That share of the packets that reach the host is lost, and of those that leave it, at random."""
    lose = f"numgen random mod 1000000 < {round(share * 1_000_000)} drop"
    with ExitStack() as stack:
        for pid, device in ((host.pid, "eth0"), (host.anchor, host.name)):
            _try(pid, ["ethtool", "-K", device, *_offloads("off")])  # they would make one packet of many
            stack.callback(in_network, pid, ["ethtool", "-K", device, *_offloads("on")])
        stack.enter_context(_rule(host.pid, "inet", "input", f"iif eth0 {lose}"))
        # In the switch, since a packet that the host itself drops is an error to its sender.
        stack.enter_context(_rule(host.anchor, "bridge", "forward", f"iif {host.name} {lose}"))
        yield


def _offloads(state: str) -> list[str]:
    return [word for name in ("tx", "tso", "gso", "gro") for word in (name, state)]


@contextmanager
def blocked_port(
    host: Host,
    ports: int | str,
    *,
    how: Literal["reject", "drop"] = "drop",
    direction: Literal["in", "out"] = "in",
) -> Iterator[None]:
    """TCP ports (``29500`` or ``"1024-65535"``) of the host, or of others seen from it, are closed by a firewall."""
    hook, interface = ("input", "iif") if direction == "in" else ("output", "oif")
    verdict = "reject with tcp reset" if how == "reject" else "drop"
    with _rule(host.pid, "inet", hook, f"{interface} eth0 tcp dport {ports} {verdict}"):
        yield


@contextmanager
def blocked_pair(one: Host, other: Host) -> Iterator[None]:
    """The switch carries nothing between these two hosts; each reaches all others."""
    with ExitStack() as stack:
        for sender, receiver in ((one, other), (other, one)):
            rule = f"iifname {sender.name} oifname {receiver.name} drop"
            stack.enter_context(_rule(sender.anchor, "bridge", "forward", rule))
        yield


@contextmanager
def slow_names(host: Host) -> Iterator[None]:
    """Whatever /etc/hosts does not know, reverse look-ups too, is asked from a name server that never answers."""
    files = {path: host.read(path) for path in ("/etc/nsswitch.conf", "/etc/resolv.conf")}
    # No name server is there, and nobody says so.
    with _rule(host.pid, "inet", "input", "icmp type destination-unreachable drop"):
        host.write("/etc/nsswitch.conf", files["/etc/nsswitch.conf"].replace("hosts: files", "hosts: files dns"))
        host.write("/etc/resolv.conf", f"nameserver {LOGIN_ADDRESS}\n")
        try:
            yield
        finally:
            for path, text in files.items():
                host.write(path, text)


@contextmanager
def _rule(pid: int, family: str, hook: str, rule: str) -> Iterator[None]:
    """A packet filter rule in a table of its own, which is removed as a whole."""
    table = f"{family} lab{next(_numbers)}"
    chain = f"chain only {{ type filter hook {hook} priority 0; {rule}; }}"
    _try(pid, ["nft", "-f", "-"], f"table {table} {{ {chain}; }}\n")
    try:
        yield
    finally:
        in_network(pid, ["nft", "delete", "table", *table.split()])


def _try(pid: int, argv: Sequence[str], input: str = "") -> None:
    try:
        in_network(pid, argv, input)
    except RuntimeError as error:
        raise refused(str(error)) from None
