"""Which other nodes this one can connect to, tried by the first rank of every node at the same time."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys

from pytest_clusterqual.channel import Channel

_SECONDS = 5.0  # a lost first packet is sent again after 1 s and after 3 s
_AT_ONCE = 500  # a process may have 1,024 files open where nobody has raised that
# What this process lacks says nothing of the way to another node.
_OWN_LACK = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}


def take_part(channel: Channel, name: str, *, node: str, address: str) -> None:
    """Listen on a free port of `address`, try the ports of all other nodes, tell the session which gave no connection.

    `name` is the session's for this round; an address that cannot be listened on takes no part in it.
    """
    try:
        door = socket.create_server((address, 0), backlog=4096)
    except OSError as error:
        print(f"cannot listen on {address}: {error}", file=sys.stderr)
        return
    with door:
        asyncio.run(_take_part(channel, name, node, door))


async def _take_part(channel: Channel, name: str, node: str, door: socket.socket) -> None:
    door.setblocking(False)
    asyncio.get_running_loop().add_reader(door, _let_in, door)
    channel.put(f"{name}/door/{node}", door.getsockname())
    doors = channel.get(f"{name}/doors")
    others = [other for other in doors if other != node]
    slots = asyncio.Semaphore(_AT_ONCE)
    problems = await asyncio.gather(*(_problem(*doors[other], slots=slots) for other in others))
    channel.put(
        f"{name}/lost/{node}", {other: problem for other, problem in zip(others, problems, strict=True) if problem}
    )
    while not channel.has(f"{name}/over"):  # nodes that began later still have to be let in
        await asyncio.sleep(0.2)
    asyncio.get_running_loop().remove_reader(door)


def _let_in(door: socket.socket) -> None:
    try:
        door.accept()[0].close()
    except OSError:
        pass  # whoever came has left again


async def _problem(address: str, port: int, *, slots: asyncio.Semaphore) -> str:
    """The address and why no connection was made; empty if one was."""
    async with slots:
        try:
            with socket.socket() as trying:
                trying.setblocking(False)
                connecting = asyncio.get_running_loop().sock_connect(trying, (address, port))
                await asyncio.wait_for(connecting, _SECONDS)
        except asyncio.TimeoutError:
            return f"{address}: no answer within {_SECONDS:g} s"
        except OSError as error:
            return "" if error.errno in _OWN_LACK else f"{address}: {os.strerror(error.errno or 0)}"
        return ""
