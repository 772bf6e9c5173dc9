"""What nodes say of their own links and of what NCCL is told there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from nodes_made import gpu, nic, node

from pytest_clusterqual.model.hardware import Nic, Path
from pytest_clusterqual.model.topology import Links, found_links

NONE = Links()
FULL = Links(intra_node=450e9, nic=50e9, nics_per_node=8)


def meshed(model: str | None, lanes: int, gpus: int, **changes: Any) -> Any:
    """A node whose GPUs are all joined by so many NVLinks each."""
    paths = tuple(Path(one=f"GPU{i}", other=f"GPU{j}", kind="NV", lanes=lanes) for i in range(gpus) for j in range(i))
    return node("a", gpus=tuple(gpu(i, model=model) for i in range(gpus)), paths=paths, nics=(), **changes)


def test_all_fast_nics_of_a_node_and_the_least_over_nodes() -> None:
    assert found_links([node("a"), node("b")]) == FULL
    one_down = node("b", nics=(*(nic(i) for i in range(7)), nic(7, up=False)))
    assert found_links([node("a"), one_down]) == replace(FULL, nics_per_node=7)
    slower = node("b", nics=tuple(nic(i, rate=25e9) for i in range(8)))
    assert found_links([node("a"), slower]) == replace(FULL, nic=25e9)


@pytest.mark.parametrize(
    "other",
    [
        Nic(name="eno1", up=True, rate=3.125e9),
        Nic(name="bond0", up=True, rate=100e9, virtual=True),
        nic(8, rate=100e9, up=False),
        nic(8, rate=100e9, up=None),
        nic(8, rate=None),
    ],
)
def test_slower_virtual_and_unknown_nics_do_not_count(other: Nic) -> None:
    nics = (other, *(nic(i) for i in range(8)))
    assert found_links([node("a", nics=nics), node("b", nics=nics)]) == FULL


def test_what_one_node_does_not_tell_is_not_known() -> None:
    assert found_links([]) == NONE
    assert found_links([node("a"), node("b", nics=())]) == replace(NONE, intra_node=450e9)
    assert found_links([node("a"), node("b", gpus=(), paths=())]) == replace(FULL, intra_node=None)


@pytest.mark.parametrize(
    ("model", "lanes", "gpus", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 18, 8, 450e9),  # through a switch: the same 18 lanes lead everywhere
        ("NVIDIA H200", 18, 2, 450e9),
        ("NVIDIA GB200", 18, 4, 900e9),
        ("NVIDIA H800", 8, 8, 200e9),
        ("NVIDIA H100 NVL", 12, 2, 300e9),  # a bridge
        ("NVIDIA A100-SXM4-40GB", 4, 4, 300e9),  # 3 peers, lanes of their own to each
        ("NVIDIA A100-SXM4-40GB", 4, 2, 100e9),
        ("Tesla V100-SXM2-16GB", 2, 3, 100e9),
        ("NVIDIA RTX A6000", 4, 2, None),
        (None, 18, 2, None),
        ("NVIDIA H100 80GB HBM3", 18, 1, None),
    ],
)
def test_nvlink_between_all_gpus_gives_a_rate(model: str, lanes: int, gpus: int, rate: float | None) -> None:
    assert found_links([meshed(model, lanes, gpus)]).intra_node == rate


def test_nvlink_between_some_gpus_gives_none_and_unused_gpus_do_not_count() -> None:
    whole = meshed("NVIDIA A100-SXM4-40GB", 4, 4)
    assert found_links([replace(whole, paths=whole.paths[1:])]).intra_node is None
    over_pcie = (replace(whole.paths[0], kind="SYS", lanes=0), *whole.paths[1:])
    assert found_links([replace(whole, paths=over_pcie)]).intra_node is None
    assert found_links([replace(whole, gpus=whole.gpus[:2])]).intra_node == 100e9
    mixed = (whole.gpus[0], *(replace(each, model="NVIDIA RTX A6000") for each in whole.gpus[1:]))
    assert found_links([replace(whole, gpus=mixed)]).intra_node is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, None),
        ({"NCCL_ALGO": "Ring"}, "Ring"),
        ({"NCCL_ALGO": "Ring", "~/.nccl.conf": "NCCL_ALGO=Tree"}, "Ring"),
        ({"~/.nccl.conf": "NCCL_DEBUG=WARN\nNCCL_ALGO=Tree\n", "/etc/nccl.conf": "NCCL_ALGO=NVLS"}, "Tree"),
        ({"/etc/nccl.conf": " NCCL_ALGO = NVLS "}, "NVLS"),
        ({"/etc/nccl.conf": "#NCCL_ALGO=NVLS\nNCCL_ALGORITHM=x"}, None),
    ],
)
def test_nccl_is_told_by_a_variable_before_a_file(settings: dict[str, str], told: str | None) -> None:
    assert node("a", settings=settings).told_nccl("NCCL_ALGO") == told
