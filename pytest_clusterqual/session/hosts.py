"""Which hosts are meant, and what they answer when they are asked what they are and have."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pytest_clusterqual.errors import ClusterQualError, LaunchError
from pytest_clusterqual.launch.launchers import make_launcher
from pytest_clusterqual.launch.plan import Launcher, NodePlan
from pytest_clusterqual.launch.surveys import survey
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.host_check import HostCheck
from pytest_clusterqual.model.project import LAUNCHERS, LauncherOptions
from pytest_clusterqual.read.hosts import expand_hosts, fold_hosts, read_hosts
from pytest_clusterqual.read.survey import read_host_check, read_survey


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What the hosts told, by node; `silent` says why the others did not. `asked` holds all in order."""

    asked: tuple[str, ...]
    checks: dict[str, HostCheck]
    hardware: dict[str, NodeHardware]
    silent: dict[str, str]


def launcher_options(options: LauncherOptions, *, kind: str | None, hosts: str | None) -> LauncherOptions:
    """A project's launcher, with what the command line says about it.

    Raises:
        ClusterQualError: there is no such kind, or the kind and the hosts do not go together.
    """
    chosen = next((known for known in LAUNCHERS if known == (kind or options.kind)), None)
    if chosen is None:
        raise ClusterQualError(f"--qual-launcher: got {kind!r}, want one of {', '.join(LAUNCHERS)}")
    if hosts and chosen in ("local", "slurm"):
        if kind:
            raise ClusterQualError(f"--qual-hosts: the {kind} launcher takes no hosts; want --qual-launcher ssh")
        chosen = "ssh"  # who names hosts wants to reach them
    return replace(options, kind=chosen, hosts=read_hosts(hosts, where="--qual-hosts") if hosts else options.hosts)


def to_ask(options: LauncherOptions, *, count: int | None, python: str | None) -> LauncherOptions:
    """The first `count` hosts of a launcher, and another Python there.

    Raises:
        ClusterQualError: there are fewer hosts, or nothing says which nodes are meant.
    """
    if options.kind == "local" and python:
        raise ClusterQualError(f"--python: want --qual-hosts; this machine runs on {sys.executable} itself")
    if options.kind == "slurm" and not count and not _allocated():
        raise ClusterQualError("say how many nodes to ask Slurm for with --nodes, or run this inside an allocation")
    if options.kind in ("ssh", "mpi") and len(options.hosts) < (count or 1):
        told = f"the {options.kind} launcher has {len(options.hosts)} hosts, want {count or 'at least 1'}"
        raise ClusterQualError(f"{told}; name them with --qual-hosts 'gpu[001-016]'")
    return replace(options, hosts=options.hosts[:count], python=python or options.python)


def _allocated() -> int:
    """The number of nodes of the Slurm allocation that this runs in, 0 outside one."""
    number = os.environ.get("SLURM_JOB_NUM_NODES", "")
    return int(number) if number.isdecimal() else 0


def in_short(hosts: Sequence[str]) -> str:
    """Hosts as one expression that gives them in the same order."""
    folded = fold_hosts(hosts)
    return folded if not hosts or expand_hosts(folded, where="hosts") == tuple(hosts) else ",".join(hosts)


def ask(
    options: LauncherOptions, *, count: int | None, timeout: float, tell: Callable[[str], None] = lambda text: None
) -> Answers:
    """Ask all nodes side by side what they are and have; `tell` hears what a scheduler makes us wait for.

    Raises:
        LaunchError: the scheduler gives no nodes. A node that does not answer is in `silent` instead.
    """
    launcher = make_launcher(options, tell=tell)
    try:
        nodes = _nodes(launcher, options, count)
        answers = Answers(asked=tuple(node.name for node in nodes), checks={}, hardware={}, silent={})
        for name, answer in survey(launcher, nodes, timeout=timeout).items():
            try:
                if answer.problem:
                    raise LaunchError(answer.problem)
                answers.checks[name] = read_host_check(
                    answer.text, node=name, clock_offset=answer.clock_offset, clock_error=answer.clock_error
                )
                answers.hardware[name] = read_survey(answer.text, node=name)
            except ClusterQualError as error:
                answers.silent[name] = str(error)
    finally:
        launcher.close()
    return answers


def _nodes(launcher: Launcher, options: LauncherOptions, count: int | None) -> tuple[NodePlan, ...]:
    """The nodes to ask; this machine once, however many nodes it will play."""
    if options.kind == "slurm":
        return launcher.nodes(count or _allocated(), 1)
    # Not from the launcher, whose choice may fail with the first host: the bad ones are wanted, too.
    hosts = (socket.gethostname(),) if options.kind == "local" else options.hosts
    return tuple(NodePlan(name=host, host=host) for host in hosts)
