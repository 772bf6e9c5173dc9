"""Nodes as a healthy cluster has them, to be changed by a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_clusterqual.model.hardware import Cpu, Gpu, Nic, NodeHardware, Path
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.project import TopologyDemand, TopologyPlan

GIB, MIB = 2**30, 2**20
PLAN = TopologyPlan(source="clusterqual.yaml:9")


def gpu(index: int, **changes: Any) -> Gpu:
    usual = Gpu(
        index=index, model="NVIDIA H100 80GB HBM3", pci=f"0000:{index:02x}:00.0", memory=81559 * MIB, numa=index // 4,
        mig=False, ecc=True, uncorrected=0, pcie_generation=1, pcie_generation_max=5, pcie_width=16, pcie_width_max=16,
        clock=1980e6, clock_max=1980e6, power_limit=700.0, temperature=31.0,
    )  # fmt: skip
    return replace(usual, **changes)


def nic(index: int, **changes: Any) -> Nic:
    usual = Nic(
        name=f"mlx5_{index}", label=f"NIC{index}", kind="infiniband", interface=f"ib{index}", up=True, rate=50e9,
        mtu=4092, firmware="28.39.1002", pcie_width=16, pcie_width_max=16, pcie_speed=32e9,
    )  # fmt: skip
    return replace(usual, **changes)


def node(name: str, **changes: Any) -> NodeHardware:
    usual = NodeHardware(
        node=name,
        host=name,
        cpu=Cpu(model="Xeon", packages=2, cores=96, threads=192, numa={"0": (0, 1), "1": (2, 3)}),
        memory=2048 * GIB,
        gpus=tuple(gpu(i) for i in range(8)),
        nics=(*(nic(i) for i in range(8)), Nic(name="eno1", up=False), Nic(name="docker0", up=False, virtual=True)),
        paths=(
            *(Path(one=f"GPU{i}", other=f"GPU{j}", kind="NV", lanes=18) for i in range(8) for j in range(i)),
            *(Path(one=f"GPU{i}", other=f"NIC{i}", kind="PIX") for i in range(8)),
            *(Path(one=f"GPU{i}", other=f"NIC{j}", kind="SYS") for i in range(8) for j in range(8) if i != j),
        ),
        peer_access={f"GPU{j}-GPU{i}": "OK" for i in range(8) for j in range(i)},
        driver="550.90.07",
        versions={"python": "3.11.7", "torch": "2.13.0"},
        settings={"NCCL_DEBUG": "WARN"},
    )  # fmt: skip
    return replace(usual, **changes)


def with_gpu(index: int, **changes: Any) -> dict[str, Any]:
    """Changes of a node: one of its GPUs is different."""
    return {"gpus": tuple(gpu(i, **changes) if i == index else gpu(i) for i in range(8))}


def with_gpus(**changes: Any) -> dict[str, Any]:
    return {"gpus": tuple(gpu(i, **changes) for i in range(8))}


def with_nic(index: int, **changes: Any) -> dict[str, Any]:
    return {"nics": tuple(nic(i, **changes) if i == index else nic(i) for i in range(8))}


def cluster(count: int = 8, **odd: dict[str, Any]) -> NodesMeasurement:
    """`count` nodes; ``node3={...}`` holds the changes to one of them."""
    names = [f"node{i}" for i in range(count)]
    assert set(odd) <= set(names)
    return NodesMeasurement(
        nodes=tuple(node(name, **odd.get(name, {})) for name in names), started=1_796_003_304.0, seconds=1.5
    )


def everywhere(count: int = 4, **changes: Any) -> NodesMeasurement:
    return cluster(count, **{f"node{i}": changes for i in range(count)})


def plan(clock_tolerance: float | None = None, **demands: Any) -> TopologyPlan:
    """Counts and names as they are, a bound as (op, value)."""
    made = []
    for line, (key, want) in enumerate(demands.items(), 10):
        bound = want if isinstance(want, tuple) else ("in" if isinstance(want, str) else "==", want)
        text = f"{bound[0]} {bound[1]:g}" if isinstance(want, tuple) else str(want)
        source = f"clusterqual.yaml:{line}"
        made.append(TopologyDemand(key=key, op=bound[0], value=bound[1], text=text, source=source))
    return TopologyPlan(source="clusterqual.yaml:9", demands=tuple(made), clock_tolerance=clock_tolerance)
