"""The mpi launcher: for sites whose only way to a node is OpenMPI's mpirun.

One mpirun a node starts one guard there, as ssh would; MPI itself carries no message of the ranks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pytest_clusterqual.launch.plan import NO_PYTHON, NodePlan, Remote, choose, first_address
from pytest_clusterqual.launch.ssh import SAYINGS as SSH_SAYINGS

_SAYINGS = (
    *SSH_SAYINGS,
    (r"ORTE was unable to reliably start one or more daemons", "see the lines above it, usually ssh's own"),
    (r"There are not enough slots available", "the host list of mpirun's own configuration does not have this host"),
    (r"mpirun was unable to find the specified executable file", NO_PYTHON),
    (r"ORTE has lost communication with a remote daemon", "the host went down or the network to it is cut"),
)  # fmt: skip


class MpiLauncher(Remote):
    """`hosts` as mpirun knows them; the nodes reach the session at `address`."""

    sayings = _SAYINGS

    def __init__(self, hosts: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self._hosts = tuple(hosts)

    def nodes(self, count: int, nproc_per_node: int) -> tuple[NodePlan, ...]:
        """The first `count` hosts, and the address at which they reach this machine."""
        chosen = choose(self._hosts, count, "--qual-hosts or launcher.hosts")
        self.address = self.address or first_address(chosen)
        return chosen

    def command(self, node: NodePlan, program: Sequence[str], *, store: tuple[str, int] | None = None) -> list[str]:
        """One process on the host, not bound to any core; its standard input is ours, as for every first process."""
        return [*_mpirun([node], 1), *program]

    def together(self, nodes: Sequence[NodePlan], each: int, program: Sequence[str]) -> list[str]:
        """One job over all hosts, in their order; MPI itself speaks over the launcher's interface."""
        at = self.interface
        over = ["--mca", "oob_tcp_if_include", at, "--mca", "btl_tcp_if_include", at] if at else []
        return [*_mpirun(nodes, each), *over, *program]


def _mpirun(nodes: Sequence[NodePlan], each: int) -> list[str]:
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [
        "mpirun", *as_root, "--host", ",".join(f"{node.host}:{each}" for node in nodes), "-np", str(each * len(nodes)),
        "--bind-to", "none",
        "--mca", "plm_rsh_args", "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10",
    ]  # fmt: skip
