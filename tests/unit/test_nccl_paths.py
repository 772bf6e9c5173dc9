"""Ways from GPUs to NICs out of the file that NCCL reads: in a virtual machine the bus does not tell them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_read_nccl_topology import gpu, nic, switch, system
from test_read_survey import PCI, PORT, SMI, TOPO, said, survey

from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.read.survey import read_survey

# As `nvidia-smi topo -m` shows it where the bus is virtual: every NIC is equally far.
FLAT = TOPO.replace("PIX", "SYS")
PLACED = re.sub(r'<gpu id="([0-9A-F:.]+)">', r'<gpu id="\1"><pci><pci_bus_id>\1</pci_bus_id></pci>', SMI)


def port(name: str, address: str) -> dict[str, Any]:
    return {**PORT, "device": name, "interface": None, "pci": {**PCI, "address": address}}


PORTS = [port("mlx5_0", "0101:00:00.0"), port("mlx5_1", "0102:00:00.0")]


def found(file: str) -> NodeHardware:
    answer = survey(
        nvidia_smi=said(PLACED), nvidia_topo=said(FLAT), infiniband=PORTS, net=[], nccl_topology=said(file)
    )  # fmt: skip
    return read_survey(answer, node="n")


def ways(node: NodeHardware) -> set[str]:
    return {path.kind for path in node.paths if "NIC" in path.one + path.other}


@pytest.mark.parametrize("domain", ["0000:", "00000000:", "", "0:"])
def test_the_file_says_which_nic_is_near(domain: str) -> None:
    """By PCI address, in whatever form; the file numbers GPUs as it likes and does not name NICs."""
    file = system(
        switch(gpu(f"{domain}9A:00.0"), nic("0101:00:00.0")), switch(gpu(f"{domain}1b:00.0"), nic("0102:00:00.0"))
    )
    node = found(file)
    assert node.nearest_nics(1) == (("mlx5_0",), "PIX")
    assert node.nearest_nics(0) == (("mlx5_1",), "PIX")


def test_nvlinks_stay_what_the_driver_says() -> None:
    node = found(system(switch(gpu("0000:1b:00.0", "<gpu dev='0'/>"), gpu("0000:9a:00.0", "<gpu dev='1'/>"))))
    (path,) = (path for path in node.paths if {path.one, path.other} == {"GPU0", "GPU1"})
    assert (path.kind, path.lanes) == ("NV", 18)


def test_what_the_file_does_not_tell_of_stays_as_it_was() -> None:
    alone = found(system(switch(gpu("0000:1b:00.0"), nic("0101:00:00.0"))))
    assert alone.nearest_nics(0) == (("mlx5_0",), "PIX")
    assert alone.nearest_nics(1) == (("mlx5_0", "mlx5_1"), "SYS")
    elsewhere = found(system(switch(gpu("0007:1b:00.0"), nic("0101:00:00.0"))))
    assert ways(elsewhere) == {"SYS"}


@pytest.mark.parametrize("file", ["<system", "<other/>", system()])
def test_a_file_that_is_none_changes_nothing_and_is_told(file: str) -> None:
    node = found(file)
    assert "NCCL" in " ".join(node.unread)
    assert ways(node) == {"SYS"}
