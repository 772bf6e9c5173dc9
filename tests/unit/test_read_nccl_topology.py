"""NCCL's topology XML: dumps and hand-made files; what a file is silent about is not reported."""

from __future__ import annotations

from collections import Counter

import pytest
from captures import capture, damaged
from hypothesis import given, settings

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import NodeHardware, NodeLinks
from pytest_clusterqual.read.nccl_topology import read_nccl_topology


def switch(*inner: str, address: str = "ffff:ff:01.0") -> str:
    return f'<pci busid="{address}" class="0x060400" link_speed="16 GT/s" link_width="16">{"".join(inner)}</pci>'


def gpu(address: str, inner: str = "") -> str:
    return f'<pci busid="{address}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">{inner}</pci>'


def nic(address: str, *names: str, kind: str = "0x020700") -> str:
    nets = "".join(f'<net name="{name}" dev="0" speed="400000" port="1" gdr="1"/>' for name in names)
    return f'<pci busid="{address}" class="{kind}">{f"<nic>{nets}</nic>" if names else ""}</pci>'


def system(*cpus: str, version: int = 1) -> str:
    inner = "".join(f'<cpu numaid="{numa}" affinity="ff" arch="x86_64">{cpu}</cpu>' for numa, cpu in enumerate(cpus))
    return f'<?xml version="1.0"?>\n<system version="{version}">{inner}</system>\n'


def dumped(number: int, *links: tuple[str, int], tag: str = "nvlink") -> str:
    inner = "".join(f'<{tag} target="{target}" count="{count}" tclass="0x068000"/>' for target, count in links)
    return f'<gpu dev="{number}" sm="90" rank="{number}" gdr="1">{inner}</gpu>'


def ways(links: NodeLinks) -> dict[tuple[str, str], str]:
    return {(path.one, path.other): path.kind + (str(path.lanes) if path.lanes else "") for path in links.paths}


HAND_MADE = system(
    switch(gpu("0002:00:00.0"), nic("0101:00:00.0"), switch(nic("0102:00:00.0"))) + nic("0103:00:00.0"),
    switch(gpu("0001:00:00.0")),
)
DUMP = system(
    switch(gpu("0000:1B:00.0", dumped(1, ("0000:c0:00.0", 8), ("0000:c1:00.0", 9)))) + nic("0000:20:00.0", "mlx5_0"),
    switch(gpu("0000:2b:00.0", dumped(0, ("0000:c0:00.0", 9), ("0000:c1:00.0", 7)))),
    version=2,
)


@pytest.mark.parametrize(
    ("tree", "way"),
    [
        (switch(gpu("1"), nic("2")), "PIX"),
        (switch(gpu("1"), switch(nic("2"))), "PXB"),
        (switch(switch(gpu("1")), switch(nic("2"))), "PXB"),
        (switch(switch(gpu("1"), nic("2"))), "PIX"),
        (switch(gpu("1")) + switch(nic("2")), "PHB"),
        (gpu("1") + nic("2"), "PHB"),
        (gpu("1") + '<nic><net name="eth0" speed="25000"/></nic>', "PHB"),
        (f'{gpu("1")}</cpu><cpu numaid="1">{nic("2")}', "SYS"),
    ],
)
def test_the_path_to_a_nic_is_classed_by_the_tree(tree: str, way: str) -> None:
    assert set(ways(read_nccl_topology(system(tree))).values()) == {way}


def test_a_hand_made_file_tells_devices_and_the_ways_to_nics_only() -> None:
    links = read_nccl_topology(HAND_MADE)
    assert links.complete
    assert [(gpu.name, gpu.pci, gpu.numa) for gpu in links.gpus or ()] == [
        ("GPU0", "0001:00:00.0", 1),
        ("GPU1", "0002:00:00.0", 0),
    ]
    assert [(nic.name, nic.pci, nic.numa, nic.rate, nic.kind) for nic in links.nics or ()] == [
        (address, address, 0, None, "infiniband") for address in ("0101:00:00.0", "0102:00:00.0", "0103:00:00.0")
    ]
    assert ways(links) == {
        **{("GPU0", name): "SYS" for name in ("0101:00:00.0", "0102:00:00.0", "0103:00:00.0")},
        ("GPU1", "0101:00:00.0"): "PIX",
        ("GPU1", "0102:00:00.0"): "PXB",
        ("GPU1", "0103:00:00.0"): "PHB",
    }


def test_a_dump_tells_numbers_rates_and_nvlinks_through_the_switches() -> None:
    links = read_nccl_topology(DUMP)
    assert links.complete
    assert [(gpu.index, gpu.pci, gpu.pcie_generation_max, gpu.pcie_width_max) for gpu in links.gpus or ()] == [
        (0, "0000:2b:00.0", 5, 16),
        (1, "0000:1B:00.0", 5, 16),
    ]
    assert links.nics is not None
    assert (links.nics[0].name, links.nics[0].rate) == ("mlx5_0", 50e9)
    assert ways(links) == {("GPU0", "GPU1"): "NV15", ("GPU0", "mlx5_0"): "SYS", ("GPU1", "mlx5_0"): "PHB"}


@pytest.mark.parametrize(
    ("first", "second", "way"),
    [
        (dumped(0, ("0000:2B:00.0", 4)), dumped(1, ("0000:1b:00.0", 4)), "NV4"),
        (dumped(0, ("0000:2b:00.0", 1), tag="xgmi"), dumped(1, ("0000:1b:00.0", 1), tag="xgmi"), "XGMI"),
        (dumped(0, ("0000:3b:00.0", 4)), dumped(1, ("0000:4b:00.0", 4)), "PIX"),
        (dumped(0), dumped(1), "PIX"),
    ],
)
def test_gpus_are_joined_directly_or_over_pci(first: str, second: str, way: str) -> None:
    links = read_nccl_topology(system(switch(gpu("0000:1b:00.0", first), gpu("0000:2b:00.0", second), nic("9"))))
    assert ways(links)[("GPU0", "GPU1")] == way


def test_two_gpus_linked_to_a_third_are_not_linked_to_each_other() -> None:
    tree = (
        gpu("0000:1b:00.0", dumped(0, ("0000:3b:00.0", 4))),
        gpu("0000:2b:00.0", dumped(1, ("0000:3b:00.0", 4))),
        gpu("0000:3b:00.0", dumped(2, ("0000:1b:00.0", 4), ("0000:2b:00.0", 4))),
    )
    links = read_nccl_topology(system(switch(*tree)))
    assert ways(links) == {("GPU0", "GPU1"): "PIX", ("GPU0", "GPU2"): "NV4", ("GPU1", "GPU2"): "NV4"}


def test_two_ports_of_one_name_are_told_apart() -> None:
    links = read_nccl_topology(system(switch(gpu("1"), nic("2", "mlx5_0", "mlx5_0", kind="0x020000"))))
    assert [(nic.name, nic.kind) for nic in links.nics or ()] == [("mlx5_0", "ethernet"), ("mlx5_0:2", "ethernet")]
    assert set(ways(links)) == {("GPU0", "mlx5_0"), ("GPU0", "mlx5_0:2")}


def test_what_has_no_class_is_not_reported_and_never_zero() -> None:
    links = read_nccl_topology(system('<pci busid="1"><pci busid="2"/><pci busid="3"/></pci>', '<pci busid="4"/>'))
    assert (links.gpus, links.nics, links.paths, links.complete) == (None, None, (), False)
    assert links.problems == (
        "3 PCI devices have no class: which of them are GPUs or NICs is not reported",
        "no GPU is reported",
        "no NIC is reported",
    )


def test_gpus_of_one_number_are_numbered_by_address() -> None:
    links = read_nccl_topology(system(gpu("b", dumped(0)) + gpu("a", dumped(0)) + nic("c")))
    assert links.problems == ("GPUs are not numbered once each: numbered by PCI address here",)
    assert [(gpu.index, gpu.pci) for gpu in links.gpus or ()] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'NCCL topology: want XML with the root <system>, got ""'),
        ("NCCL INFO Channel 00", 'got "NCCL INFO Channel 00"'),
        ("<graphs version='1'/>", 'got the root "graphs", want "system"'),
        ('<!DOCTYPE system [<!ENTITY a "b">]><system>&a;</system>', "got an entity declaration, want plain XML"),
        ('<system><cpu host_hash="1"/><cpu host_hash="2"/></system>', "got 2 nodes in one file, want the file of one"),
        (system("<pci>" * 40 + "</pci>" * 40), "PCI switches nested deeper than 32 levels"),
        (system("".join(nic(str(i)) for i in range(300))), "0 GPUs and 300 NICs, at most 256 of each"),
        (system(nic("1", *["a"] * 20_000)), "0 GPUs and 20000 NICs, at most 256 of each"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ReadError) as error:
        read_nccl_topology(text)
    assert message in str(error.value)


@given(damaged(HAND_MADE, DUMP))
@settings(deadline=None)
def test_any_text_gives_links_between_known_devices_or_a_read_error(text: str) -> None:
    try:
        links = read_nccl_topology(text)
    except ReadError:
        return
    names = [device.name for device in (*(links.gpus or ()), *(links.nics or ()))]
    assert all(path.one in names and path.other in names for path in links.paths)


# file: (GPUs, NIC ports, GPU to GPU, GPU to NIC), each way with its count
GOLDEN: dict[str, tuple[int, int, dict[str, int], dict[str, int]]] = {
    "aws_p4de-24xl-topo": (8, 4, {}, {"PIX": 8, "PHB": 8, "SYS": 16}),
    "azure_ndv4-topo": (8, 8, {}, {"PIX": 16, "SYS": 48}),
    "oci_H100-topology": (8, 16, {"NV18": 28}, {"PXB": 16, "PHB": 48, "SYS": 64}),
    "oci_H100-topology-kubernetes": (8, 16, {"NV18": 28}, {"PXB": 16, "PHB": 48, "SYS": 64}),
    "oci_topo-flattened-b4": (8, 8, {}, {"PIX": 16, "SYS": 48}),
    "rccl_topo_3p_pcie": (3, 1, {"PHB": 1, "SYS": 2}, {"PHB": 1, "SYS": 2}),
    "rccl_topo_8p_940": (8, 8, {"XGMI": 28}, {"PXB": 8, "PHB": 24, "SYS": 32}),
    "rccl_topo_collnet_n4": (8, 4, {"XGMI": 12, "SYS": 16}, {"PXB": 8, "SYS": 24}),
    "superbench_ndv5-topo": (8, 8, {}, {"PIX": 8, "PHB": 24, "SYS": 32}),
}
NUMA = {
    "aws_p4de-24xl-topo": [0, 0, 0, 0, 1, 1, 1, 1],
    "azure_ndv4-topo": [1, 1, 0, 0, 3, 3, 2, 2],
    "oci_H100-topology": [0, 0, 0, 0, 1, 1, 1, 1],
    "oci_H100-topology-kubernetes": [0, 0, 0, 0, 1, 1, 1, 1],
    "oci_topo-flattened-b4": [3, 3, 1, 1, 7, 7, 5, 5],
    "rccl_topo_3p_pcie": [0, 1, 1],
    "rccl_topo_8p_940": [0, 0, 0, 0, 1, 1, 1, 1],
    "rccl_topo_collnet_n4": [0, 0, 1, 1, 2, 2, 3, 3],
    "superbench_ndv5-topo": [0, 0, 0, 0, 1, 1, 1, 1],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_real_files_give_the_answers_of_a_careful_reader(name: str) -> None:
    gpus, nics, between, to_nics = GOLDEN[name]
    links = read_nccl_topology(capture(f"nccl_topo_xml/{name}.xml"))
    assert links.complete
    assert links.nics is not None
    assert links.gpus is not None
    assert ([gpu.index for gpu in links.gpus], len(links.nics)) == (list(range(gpus)), nics)
    assert [gpu.numa for gpu in links.gpus] == NUMA[name]
    assert Counter(way for (_one, other), way in ways(links).items() if other.startswith("GPU")) == between
    assert Counter(way for (_one, other), way in ways(links).items() if not other.startswith("GPU")) == to_nics


@pytest.mark.parametrize(("name", "devices"), [("aws_p5.48xl-topo", 32), ("aws_g5.48xl-topo", 9)])
def test_real_files_without_classes_report_neither_gpus_nor_nics(name: str, devices: int) -> None:
    links = read_nccl_topology(capture(f"nccl_topo_xml/{name}.xml"))
    assert (links.gpus, links.nics) == (None, None)
    assert links.problems[0].startswith(f"{devices} PCI devices have no class")


def test_real_rails_of_a_dump() -> None:
    links = read_nccl_topology(capture("nccl_topo_xml/rccl_topo_8p_940.xml"))
    node = NodeHardware(node="n", host="n", gpus=links.gpus or (), nics=links.nics or (), paths=links.paths)
    assert [node.nearest_nics(gpu) for gpu in range(8)] == [((f"mlx5_{gpu}",), "PXB") for gpu in range(8)]
    assert {nic.rate for nic in node.nics} == {50e9}
