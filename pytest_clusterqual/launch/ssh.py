"""The ssh launcher: hosts that need nothing but sshd and this package.

It runs the system's ssh, so port, user, identity and jump host come from ssh's own configuration.
The session's store is carried to each host through the same connection (``-R``): it listens on
loopback here and there, needs no open port, and works behind a jump host.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from pytest_clusterqual.launch.plan import NO_PACKAGE, NO_PYTHON, NodePlan, Remote, choose

# Never ask for anything, know the host, notice a dead connection in 15 s, have a connection of our own.
OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3",
    "ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes", "PermitLocalCommand=no", "EscapeChar=none",
)  # fmt: skip

# What ssh itself says, and what to do about it; the command's own failures match none of these.
SAYINGS = (
    (r"Could not resolve hostname \S+: .*", "correct the name in --qual-hosts, or add it to DNS or ssh's config"),
    (r"Host key verification failed", "connect once by hand and compare the host key, or deploy known_hosts"),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED", "find out why the host key changed before you trust the host"),
    (r"Permission denied \(.*\)", "give this user a key that the host accepts without a password"),
    (r"Too many authentication failures", "name the right key for this host in ssh's config"),
    (r"connect to host \S+ port \d+: .*", "check that the host is up, that sshd runs there, and the way to it"),
    (r"Connection timed out during banner exchange", "check that sshd runs there and has free sessions (MaxStartups)"),
    (r"kex_exchange_identification: .*", "sshd refused the connection: check MaxStartups and hosts.deny there"),
    (r"remote port forwarding failed for listen port \d+",
     "allow it (AllowTcpForwarding) on that host, or set launcher.address to an address that the nodes can reach"),
    (r"Timeout, server \S+ not responding", "the host hangs or the network to it is cut"),
    (r"client_loop: send disconnect: .*", "the host went down or the network to it is cut"),
    (r"Connection (?:to \S+ )?(?:closed|reset) by (?:remote host|\S+ port \d+)", "the host or its sshd went down"),
    (r"No module named '?pytest_clusterqual\S*", NO_PACKAGE),
    (r"\S*python\S*: (?:not found|No such file or directory)", NO_PYTHON),
)  # fmt: skip


class SshLauncher(Remote):
    """`hosts` as ssh knows them. With `address` the nodes reach the session there instead of through ssh."""

    sayings = SAYINGS

    def __init__(self, hosts: Sequence[str], *, address: str | None = None, **options: Any) -> None:
        super().__init__(address=address or "127.0.0.1", **options)
        self._hosts = tuple(hosts)
        self._tunnel = address is None

    def nodes(self, count: int, nproc_per_node: int) -> tuple[NodePlan, ...]:
        """The first `count` hosts."""
        return choose(self._hosts, count, "--qual-hosts or launcher.hosts")

    def command(self, node: NodePlan, program: Sequence[str], *, store: tuple[str, int] | None = None) -> list[str]:
        """One remote command: ssh hands it to the remote shell as text, so every word is quoted."""
        argv = ["ssh", "-T", "-x"]
        for option in OPTIONS:
            argv += ["-o", option]
        if store and self._tunnel:
            address, port = store
            argv += ["-R", f"{address}:{port}:{address}:{port}"]
        return [*argv, "--", node.host, shlex.join(program)]
