"""Hosts as they should be, to be changed by a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_clusterqual.judge.nodes.hosts import judge_hosts
from pytest_clusterqual.model.hardware import Gpu, NodeHardware
from pytest_clusterqual.model.host_check import HostCheck, HostProblem, Space

GIB = 2**30
PACKAGE = "0.1.0"


def space(path: str, free: float, total: float = 64) -> Space:
    """A file system with so many GiB."""
    return Space(path=path, free=int(free * GIB), total=int(total * GIB))


def check(node: str, **changes: Any) -> HostCheck:
    usual = HostCheck(
        node=node, host=node, user="ada", executable="/opt/python3", boot=f"boot of {node}", python="3.11.7",
        torch="2.13.0+cu126", package=PACKAGE, cpus=96, open_files=65536.0, open_files_hard=65536.0,
        shm=space("/dev/shm", 60), temp=space("/tmp", 50), cwd=space("/home/ada", 50), reverse_dns=0.01,
        clock_offset=0.02, clock_error=0.001,
    )  # fmt: skip
    return replace(usual, **changes)


def hardware(node: str, **changes: Any) -> NodeHardware:
    gpus = tuple(Gpu(index=index, model="NVIDIA H100 80GB HBM3", memory=80 * GIB) for index in range(8))
    return replace(NodeHardware(node=node, host=node, gpus=gpus, driver="550.90.07"), **changes)


class Hosts:
    """``node1`` to ``node4``, of which a test changes what it is about."""

    def __init__(self, names: Sequence[str] = ("node1", "node2", "node3", "node4")) -> None:
        self.asked = tuple(names)
        self.checks = {name: check(name) for name in names}
        self.hardware = {name: hardware(name) for name in names}
        self.silent: dict[str, str] = {}

    def change(self, *names: str, **changes: Any) -> Hosts:
        for name in names:
            self.checks[name] = replace(self.checks[name], **changes)
        return self

    def rebuild(self, *names: str, **changes: Any) -> Hosts:
        for name in names:
            self.hardware[name] = replace(self.hardware[name], **changes)
        return self

    def silence(self, name: str, reason: str) -> Hosts:
        del self.checks[name], self.hardware[name]
        self.silent[name] = reason
        return self

    def problems(self) -> tuple[HostProblem, ...]:
        return judge_hosts(self.checks, self.hardware, self.silent, package=PACKAGE)
