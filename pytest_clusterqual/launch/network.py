"""A host's own address and interface on the way to the others. Standard library only: the guard uses it.

IPv4 only: gloo and NCCL are told an interface by name, and torchrun an address.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

_SIOCGIFADDR = 0x8915
_ANY_PORT = 9


class NoRoute(Exception):
    """There is no such interface, name or route; the message names it."""


def interfaces() -> dict[str, str]:
    """Interface -> its IPv4 address, of those that have one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def route_to(host: str) -> str:
    """The address of this machine that packets to `host` leave from; sends nothing."""
    try:
        address = socket.getaddrinfo(host, _ANY_PORT, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
    except OSError as error:
        raise NoRoute(f"{socket.gethostname()} cannot resolve the name {host}: {error.strerror or error}") from None
    if str(address[0]).startswith("127."):
        raise NoRoute(
            f"on {socket.gethostname()} the name {host} means {address[0]}, which is itself; correct /etc/hosts there, "
            "or set launcher.interface"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)
        except OSError as error:
            raise NoRoute(f"{socket.gethostname()} has no route to {host} ({address[0]}): {error.strerror}") from None
        return str(probe.getsockname()[0])


def own_place(interface: str | None, peers: Sequence[str]) -> tuple[str, str]:
    """(address, interface) by which this host meets its `peers`: the named interface, else the one on their route.

    Raises:
        NoRoute: no such interface, or the peers lie on different interfaces, or cannot be reached.
    """
    mine = interfaces()
    if interface is not None:
        if interface not in mine:
            there = ", ".join(f"{name} {address}" for name, address in mine.items())
            raise NoRoute(
                f"{socket.gethostname()} has no interface {interface} with an IPv4 address (it has {there}); correct "
                "launcher.interface"
            )
        return mine[interface], interface
    ways = {route_to(peer) for peer in peers} or {_outward(mine)}
    names = sorted({name for name, address in mine.items() if address in ways})
    if len(ways) > 1 or len(names) != 1:
        raise NoRoute(
            f"{socket.gethostname()} reaches the other nodes from {' and '.join(sorted(ways))}; say which interface "
            "they share with launcher.interface"
        )
    return ways.pop(), names[0]


def _outward(mine: dict[str, str]) -> str:
    """A node without peers meets nobody: any address will do, loopback last."""
    return next((address for address in mine.values() if not address.startswith("127.")), "127.0.0.1")


def reachable(address: str, port: int, timeout: float) -> str:
    """Empty if a TCP connection can be made within `timeout` seconds, else the reason."""
    try:
        socket.create_connection((address, port), timeout).close()
    except TimeoutError:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return str(error.strerror or error)
    return ""
