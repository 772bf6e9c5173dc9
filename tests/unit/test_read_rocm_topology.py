"""`rocm-smi --showtopo`: link types with hops and weights, also where the blanks were collapsed."""

from __future__ import annotations

import re

import pytest
from captures import capture, damaged
from hypothesis import given, settings

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Path
from pytest_clusterqual.read.rocm_topology import read_rocm_topology

WHOLE = """\
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           72
GPU1   15           0            40
GPU2   72           40           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            3
GPU1   1            0            2
GPU2   3            2            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

============================ Link accessibility between two GPUs =========================
       GPU0         GPU1         GPU2
GPU0   True         True         False
GPU1   True         True         False
GPU2   False        False        True

======================================= Numa Nodes =======================================
GPU[0]		: (Topology) Numa Node: 0
GPU[0]		: (Topology) Numa Affinity: 7
GPU[1]		: (Topology) Numa Node: 1
GPU[1]		: (Topology) Numa Affinity: 7
GPU[2]		: (Topology) Numa Node: -1
================================== End of ROCm SMI Log ===================================
"""
COLLAPSED = re.sub(r"[ \t]+", " ", WHOLE).replace("\n ", "\n")


@pytest.mark.parametrize("text", [WHOLE, COLLAPSED, WHOLE.replace("\n", "\r\n")], ids=["whole", "collapsed", "windows"])
def test_all_tables_are_read_together(text: str) -> None:
    links = read_rocm_topology(text)
    assert links.complete, links.problems
    assert [(gpu.index, gpu.numa) for gpu in links.gpus or ()] == [(0, 0), (1, 1), (2, None)]
    assert links.nics is None  # this tool does not know of NICs
    assert links.paths == (
        Path(one="GPU0", other="GPU1", kind="XGMI", hops=1, weight=15),
        Path(one="GPU0", other="GPU2", kind="PCIE", hops=3, weight=72),
        Path(one="GPU1", other="GPU2", kind="PCIE", hops=2, weight=40),
    )


def test_link_types_alone_are_enough() -> None:
    links = read_rocm_topology("GPU0 GPU1\nGPU0 0 PCIE\nGPU1 PCIE 0\n***")
    assert (links.paths, links.complete) == ((Path(one="GPU0", other="GPU1", kind="PCIE"),), True)


def test_cut_text_gives_no_wrong_value() -> None:
    whole = read_rocm_topology(WHOLE)
    start, end = (
        WHOLE.index("Link Type"),
        WHOLE.index("PCIE         PCIE         0\n") + len("PCIE         PCIE        "),
    )
    read = 0
    for length in range(start, end):
        try:
            links = read_rocm_topology(WHOLE[:length])
        except ReadError:
            continue
        read += 1
        assert set(links.paths) <= set(whole.paths), WHOLE[:length]
        assert not links.complete, WHOLE[:length]
    assert read > 20


@pytest.mark.parametrize(
    ("old", "new", "problem", "left"),
    [
        ("GPU1   XGMI         0            PCIE\n", "", "rows are missing: GPU1", 3),
        ("XGMI         0            PCIE", "XGMI         0            MAGIC",
         'row GPU1 has a cell "MAGIC", which is no link', 3),
        ("GPU1   XGMI", "GPU1   PCIE", "rows contradict each other: GPU0-GPU1", 2),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_said(old: str, new: str, problem: str, left: int) -> None:
    assert old in WHOLE
    links = read_rocm_topology(WHOLE.replace(old, new))
    assert links.problems == (problem,)
    assert len(links.paths) == left


@pytest.mark.parametrize(
    "text", ["", "ERROR: No AMD GPUs", WHOLE[: WHOLE.index("=============================== Link Type")]]
)
def test_without_link_types_it_is_refused(text: str) -> None:
    with pytest.raises(
        ReadError, match=r"^rocm-smi --showtopo: got \".*\", want the table of link types between GPUs$"
    ):
        read_rocm_topology(text)


@given(damaged(WHOLE, COLLAPSED))
@settings(deadline=None)
def test_any_text_gives_links_between_known_devices_or_a_read_error(text: str) -> None:
    try:
        links = read_rocm_topology(text)
    except ReadError:
        return
    names = [gpu.name for gpu in links.gpus or ()]
    assert all(path.one in names and path.other in names and path.kind in ("XGMI", "PCIE") for path in links.paths)


@pytest.mark.parametrize("name", ["dstack_8x_mi300x_a", "dstack_8x_mi300x_b"])
def test_real_eight_gpus_fully_joined_by_xgmi(name: str) -> None:
    links = read_rocm_topology(capture(f"topo_rocm/{name}.txt"))
    assert links.complete
    assert [gpu.numa for gpu in links.gpus or ()] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {(path.kind, path.hops, path.weight) for path in links.paths} == {("XGMI", 1, 15)}
    assert len(links.paths) == 28


def test_real_single_gpu_has_no_pairs() -> None:
    links = read_rocm_topology(capture("topo_rocm/kvm_1gpu.txt"))
    assert ([gpu.index for gpu in links.gpus or ()], links.paths, links.complete) == ([0], (), True)


def test_real_two_gpus_over_pcie_although_a_bridge_was_there() -> None:
    links = read_rocm_topology(capture("topo_rocm/rocm1503_2x_mi100_pcie_collapsed.txt"))
    assert (links.paths, links.complete) == ((Path(one="GPU0", other="GPU1", kind="PCIE"),), True)
