"""`nvidia-smi topo`: every layout is read, cut text gives no value, and what is no matrix is refused."""

from __future__ import annotations

import pytest
from captures import capture, damaged
from hypothesis import given, settings

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import NodeHardware, NodeLinks
from pytest_clusterqual.read.captured import LIMIT, cpu_list
from pytest_clusterqual.read.nvidia_topo import read_p2p_matrix, read_topology_matrix

BLANKS = """\
$ nvidia-smi topo -m
        GPU0    GPU1    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    PIX     SYS     0-7,16-23       0               N/A
GPU1    NV18     X      SYS     PXB     8-15,24-31      1               N/A
NIC0    PIX     SYS      X      SYS
NIC1    SYS     PXB     SYS      X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_3
  NIC1: mlx5_10
"""
TABS = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\tSYS\t0-7,16-23\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPXB\t8-15,24-31\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t

  NIC0: mlx5_3
  NIC1: mlx5_10
"""
OLD = """\
\tGPU0\tGPU1\tmlx5_3\tmlx5_10\tCPU Affinity
GPU0\t X \tSOC\tPIX\tSYS\t0-7,16-23
GPU1\tSOC\t X \tSYS\tPXB\t8-15,24-31
mlx5_3\tPIX\tSYS\t X \tSYS\t
mlx5_10\tSYS\tPXB\tSYS\t X \t
"""
P2P = """\
 \tGPU0\tGPU1\tGPU2
 GPU0\tX\tOK\tCNS
 GPU1\tOK\tX\tGNS
 GPU2\tCNS\tGNS\tX

Legend:
  OK   = Status Ok
"""
# How one matrix came out of terminals, editors and issue trackers.
DRESSES = {
    "blanks": BLANKS,
    "tabs": TABS,
    "underlined before the tab": TABS.replace("\tGPU0", "\x1b[4m\tGPU0", 1).replace(
        "GPU NUMA ID", "GPU NUMA ID\x1b[0m"
    ),
    "underlined after the tab": TABS.replace("\tGPU0", "\t\x1b[4mGPU0", 1).replace("GPU NUMA ID", "GPU NUMA ID\x1b[0m"),
    "no blanks before the header": BLANKS.replace("        GPU0", "GPU0", 1),
    "indented": BLANKS.replace("\n", "\n    "),
    "windows": BLANKS.replace("\n", "\r\n"),
    "double-spaced": TABS.replace("\n", "\n\n"),
    "between other lines": f"host42: uptime 3 days\n{BLANKS}\nHypervisor vendor:: KVM\n$ exit\n",
    "a status matrix behind it": BLANKS + "\n" + P2P,
    "a status matrix before it": P2P + "\n" + BLANKS,
    "wrong legend": BLANKS.replace("Self", "PIX").replace("bonded set of #", "single"),
}


def ways(links: NodeLinks) -> dict[str, str]:
    return {f"{path.one}-{path.other}": path.kind + (str(path.lanes) if path.lanes else "") for path in links.paths}


def nearest(links: NodeLinks) -> dict[int, str]:
    """The nearest NICs of each GPU as ``NIC0/NIC1(PIX)``; GPUs of which nothing is known are left out."""
    node = NodeHardware(node="n", host="n", gpus=links.gpus or (), nics=links.nics or (), paths=links.paths)
    labels = {nic.name: nic.label for nic in node.nics}
    told = {gpu.index: node.nearest_nics(gpu.index) for gpu in node.gpus}
    return {gpu: f"{'/'.join(str(labels[nic]) for nic in nics)}({kind})" for gpu, (nics, kind) in told.items() if nics}


@pytest.mark.parametrize("dress", DRESSES)
def test_one_matrix_reads_the_same_however_it_was_pasted(dress: str) -> None:
    links = read_topology_matrix(DRESSES[dress])
    assert links.complete, links.problems
    assert links.gpus is not None
    assert links.nics is not None
    assert [(gpu.index, gpu.numa, gpu.cpus) for gpu in links.gpus] == [
        (0, 0, (*range(8), *range(16, 24))),
        (1, 1, (*range(8, 16), *range(24, 32))),
    ]
    assert [(nic.label, nic.name, nic.kind) for nic in links.nics] == [
        ("NIC0", "mlx5_3", "rdma"),
        ("NIC1", "mlx5_10", "rdma"),
    ]
    assert ways(links) == {
        "GPU0-GPU1": "NV18",
        "GPU0-NIC0": "PIX",
        "GPU0-NIC1": "SYS",
        "GPU1-NIC0": "SYS",
        "GPU1-NIC1": "PXB",
        "NIC0-NIC1": "SYS",
    }
    assert nearest(links) == {0: "NIC0(PIX)", 1: "NIC1(PXB)"}


def test_the_old_layout_names_nics_in_the_header_and_calls_the_socket_link_soc() -> None:
    links = read_topology_matrix(OLD)
    assert links.complete
    assert [nic.name for nic in links.nics or ()] == ["mlx5_3", "mlx5_10"]
    assert ways(links)["GPU0-GPU1"] == "SYS"
    assert nearest(links) == {0: "mlx5_3(PIX)", 1: "mlx5_10(PXB)"}
    assert [gpu.numa for gpu in links.gpus or ()] == [None, None]


def test_no_nic_in_nvidias_own_header_is_none_there() -> None:
    links = read_topology_matrix("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-3\nGPU1\tPHB\t X \t0-3\n")
    assert (links.nics, links.complete) == ((), True)


@pytest.mark.parametrize("text", [BLANKS, TABS, OLD], ids=["blanks", "tabs", "old"])
def test_cut_text_gives_no_wrong_value_and_says_so(text: str) -> None:
    whole = read_topology_matrix(text)
    rows = [line for line in text.split("\n") if line.startswith(("GPU1", "mlx5_10", "NIC1"))]
    end = text.index(rows[-1]) + len(rows[-1].rstrip())
    read = 0
    for length in range(end):
        try:
            links = read_topology_matrix(text[:length])
        except ReadError:
            continue
        read += 1
        assert set(links.paths) <= set(whole.paths), text[:length]
        assert not links.complete, text[:length]
        if "NUMA" in text:  # else the list of CPUs stands last, and where it is cut is not seen
            assert all(gpu in (whole.gpus or ()) for gpu in links.gpus or () if gpu.cpus), text[:length]
    assert read > 100


def test_a_cut_row_says_where_and_its_gpu_gets_no_verdict() -> None:
    links = read_topology_matrix(BLANKS[: BLANKS.index("GPU1    NV18") + len("GPU1    NV1")])
    assert links.problems == ("row GPU1 is cut after 1 of 4 cells", "rows are missing: NIC0, NIC1")
    assert nearest(links) == {0: "NIC0(PIX)"}
    assert ways(links)["GPU0-GPU1"] == "NV18"


def test_a_full_row_without_its_affinity_may_be_cut_inside_its_last_cell() -> None:
    text = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tPHB\tPHB\t0-3\nGPU1\tPHB\t X \tNV1"
    links = read_topology_matrix(text)
    assert "GPU1-GPU2" not in ways(links)
    assert links.problems[0] == "row GPU1 is cut after 3 of 3 cells"


def edited(old: str, new: str, text: str = BLANKS) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "problem", "lost"),
    [
        # The CPUs that follow have moved below NIC1.
        (edited("SYS     PXB", "SYSPXB "), 'row GPU1 has a cell "SYSPXB", which is no link', set()),
        (edited("NV18     X      SYS", "X       NV18    SYS"),
         "row GPU1 has no X under GPU1: its cells are not in their columns", set()),
        (edited("SYS     PXB     8", "SYS     PIX     8"), "rows contradict each other: GPU1-NIC1", {"GPU1-NIC1"}),
        (edited("NIC0    PIX     SYS      X      SYS\n", ""), "rows are missing: NIC0", set()),
        (edited("NIC0    PIX", "NIC0    P1X"), 'row NIC0 has a cell "P1X", which is no link', set()),
        (edited("NIC0    PIX", "NIC0    OK "), 'row NIC0 has a cell "OK", which is no link', set()),
        (edited("$ nv", "76 NICs found in the topology, only displaying 2 in the matrix.\n$ nv"),
         "the tool shows 2 of 76 NICs, the others are not known", set()),
        (edited("  NIC1: mlx5_10\n", ""), "the NIC legend does not name NIC1", set()),
        (BLANKS + BLANKS, "2 matrices in the text, the first is read", set()),
        (edited("CPU Affinity    NUMA Affinity   GPU NUMA ID", "CPU Affinity  NUMA"),
         'the header ends in "CPU Affinity NUMA", not in "CPU Affinity NUMA Affinity GPU NUMA ID": typed by hand',
         set()),
    ],
)  # fmt: skip
def test_what_is_doubtful_is_said_and_not_read(text: str, problem: str, lost: set[str]) -> None:
    links = read_topology_matrix(text)
    assert links.problems == (problem,)
    assert not links.complete
    whole = ways(read_topology_matrix(BLANKS))
    assert ways(links) == {pair: way for pair, way in whole.items() if pair not in lost}


def test_an_empty_cell_behind_the_devices_keeps_its_column_between_tabs_only() -> None:
    assert [gpu.numa for gpu in read_topology_matrix(edited("0-7,16-23", "", TABS)).gpus or ()] == [0, 1]
    first, second = read_topology_matrix(edited("0-7,16-23", "         ")).gpus or ()
    assert (first.numa, first.cpus, second.numa) == (None, (), 1)


def test_a_row_that_stands_twice_is_no_header() -> None:
    row = BLANKS.split("\n")[2] + "\n"
    assert read_topology_matrix(edited(row, row + row)).problems == ("rows are missing: GPU1, NIC0, NIC1",)


def test_an_invented_device_is_flagged_and_its_column_not_read() -> None:
    links = read_topology_matrix("  GPU0 GPU1 CPU\nGPU0 X NV1 PHB\nGPU1 NV1 X PHB\nCPU PHB PHB X\n")
    assert links.problems == ("the header names what is not one device: CPU; typed or invented by hand",)
    assert ways(links) == {"GPU0-GPU1": "NV1"}
    assert links.nics is None  # not shown by somebody who invents columns: not known, not zero


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'nvidia-smi topo -m: got "", want the matrix of GPUs and NICs'),
        ("\n bash: nvidia-smi: command not found\n", 'got "bash: nvidia-smi: command not found", want'),
        (P2P, "got the P2P status matrix of nvidia-smi topo -p2p, which names no link, want"),
        ("      GPU0-3 GPU4-7\nGPU0-3 X PHB\nGPU4-7 PHB X\n", "no GPU can be read: the header names what is not one "),
        ("  GPU0 GPU0\nGPU0 X PHB\n", "the header names GPU0 twice"),
        ("  GPU0 GPU1\nGPU0 X PHB PIX\n", "rows have more cells than the header has columns"),
        (
            "GPU0 " + " ".join(f"NIC{i}" for i in range(600)) + "\nGPU0 X",
            "a table of 601 devices, at most 512 are read",
        ),
        ("x" * (LIMIT + 1), f"got {LIMIT + 1} characters, at most {LIMIT} are read"),
    ],
)
def test_what_is_no_matrix_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ReadError) as error:
        read_topology_matrix(text)
    assert message in str(error.value)


def test_the_p2p_matrix_is_read_by_its_own_reader() -> None:
    status = read_p2p_matrix(BLANKS + P2P)
    assert status[("GPU0", "GPU1")] == status[("GPU1", "GPU0")] == "OK"
    assert status[("GPU2", "GPU1")] == "GNS"
    assert len(status) == 6
    with pytest.raises(ReadError, match="want the matrix of GPUs"):
        read_p2p_matrix(BLANKS)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,8", (0, 1, 2, 8)), ("5", (5,)), ("N/A", ()), ("", ()), ("5,3-1", ()), ("0-99999", ()), ("0-9999999999", ())],
)
def test_cpu_lists(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_list(text) == cpus


@given(damaged(BLANKS, TABS, OLD, P2P))
@settings(deadline=None)
def test_any_text_gives_links_between_known_devices_or_a_read_error(text: str) -> None:
    try:
        links = read_topology_matrix(text)
    except ReadError:
        return
    names = {gpu.name for gpu in links.gpus or ()} | {nic.label for nic in links.nics or ()}
    pairs = [frozenset((path.one, path.other)) for path in links.paths]
    assert all(len(pair) == 2 and pair <= names for pair in pairs)
    assert len(set(pairs)) == len(pairs)
    if links.complete:
        assert len(pairs) == len(names) * (len(names) - 1) // 2


def sys_of_all(gpus: int, nics: str) -> dict[int, str]:
    return dict.fromkeys(range(gpus), f"{nics}(SYS)")


# file: (GPUs, NICs, GPU0-GPU1, nearest NICs of the GPUs that get a verdict, complete)
GOLDEN: dict[str, tuple[int, int | None, str, dict[int, str], bool]] = {
    "4gpu_nv_mixed_mlx5_sys": (4, 1, "NV1", sys_of_all(4, "mlx5_0"), True),
    "ansi_underline_after_tab_2gpu_nv12": (2, 0, "NV12", {}, True),
    "club3090_1229_2x5090_phb": (2, 0, "PHB", {}, True),
    "deepep145_18nic_shared_pxb_truncated": (8, 18, "NV18", {
        **dict.fromkeys((0, 1), "NIC0/NIC1/NIC2/NIC3(PXB)"),
        **dict.fromkeys((2, 3), "NIC6/NIC7/NIC8/NIC9(PXB)")}, False),
    "dstack_8xh100_nic_sys": (8, 1, "NV18", sys_of_all(8, "NIC0"), True),
    "fleet_6gpu_ansi_underline": (6, 0, "PIX", {}, True),
    "gpuallocator17_8x4090_all_sys": (8, 2, "SYS", {**sys_of_all(8, "NIC0/NIC1"), 6: "NIC0/NIC1(PHB)"}, True),
    "k8s53497_8gpu_mlx4_truncated": (8, 1, "PIX", {
        **dict.fromkeys(range(4), "mlx4_0(PHB)"), 4: "mlx4_0(SYS)"}, False),
    "mle_2gpu_nv2": (2, 0, "NV2", {}, True),
    "nccl1357_h100_every_second_gpu_has_nic_truncated": (8, 6, "NV18", {
        0: "NIC0(PIX)", 2: "NIC1(PIX)", 4: "NIC2(PIX)", 6: "NIC3(PIX)",
        **dict.fromkeys((1, 3, 5), "NIC0/NIC1/NIC2/NIC3/NIC4/NIC5(SYS)")}, False),
    "nccl2157_dgxa100_18nic_no_lead_blank_truncated": (8, 18, "NV12", {
        **dict.fromkeys((0, 1), "NIC5/NIC6/NIC7/NIC8(PXB)"),
        **dict.fromkeys((2, 3), "NIC1/NIC2/NIC3/NIC4(PXB)")}, False),
    "nccl243_6gpu_nic_columns_reversed": (6, 2, "PIX", {
        0: "mlx5_0(NODE)", 1: "mlx5_0(NODE)", 2: "mlx5_0(PIX)",
        3: "mlx5_1(NODE)", 4: "mlx5_1(NODE)", 5: "mlx5_1(PIX)"}, True),
    "nccl595_4xa100_2mlx5_uneven": (4, 2, "NV4", {
        0: "mlx5_0/mlx5_1(SYS)", 1: "mlx5_0(PIX)", 2: "mlx5_1(PIX)", 3: "mlx5_0/mlx5_1(SYS)"}, True),
    "ncclt178_8xa100_nv12_pairs": (8, 0, "NV12", {}, True),
    "ncclt37_v100_hybrid_cube_mesh": (8, 0, "NV1", {}, True),
    "neg_webpage_dgx_h100_retyped": (8, None, "NV18", {}, False),
    "neg_webpage_llm_invented_cpu_column": (2, None, "NV1", {}, False),
    "sglang11208_gb200_numa_ids_truncated": (4, 6, "NV18", sys_of_all(3, "NIC0/NIC1/NIC2/NIC3/NIC4/NIC5"), False),
    "sglang13973_8gpu_9nic_4numa_truncated": (8, 9, "NV18", {
        0: "NIC0(PIX)", 1: "NIC1(PIX)", 2: "NIC2(PIX)", 3: "NIC4(PIX)", 4: "NIC5(PIX)", 5: "NIC6(PIX)"}, False),
    "sglang_8x_nv18_8nic_1to1": (8, 8, "NV18", {gpu: f"NIC{gpu}(PIX)" for gpu in range(8)}, True),
    "sglang_kvm_1gpu_1nic": (1, 1, "", {0: "NIC0(PHB)"}, True),
    "stelline_4x_rtx6000ada_4nic": (4, 4, "NODE", {
        **dict.fromkeys((0, 1), "NIC0/NIC1(NODE)"), **dict.fromkeys((2, 3), "NIC2/NIC3(NODE)")}, True),
    "unsloth3872_b200_4numa_9nic_truncated": (8, 9, "NV18", {gpu: f"NIC{gpu}(PIX)" for gpu in range(5)}, False),
    "vllm14537_76_nics_56_shown_truncated": (8, 56, "NV18", {
        0: "NIC0/NIC11/NIC17/NIC23/NIC29/NIC35/NIC41/NIC46/NIC51(PXB)",
        1: "NIC3/NIC13/NIC19/NIC25/NIC31/NIC37/NIC43/NIC48/NIC53(PXB)"}, False),
    "vllm29944_nic_reversed_10nic_truncated": (8, 10, "NV18", {
        0: "NIC3(PIX)", 1: "NIC2(PIX)", 2: "NIC1(PIX)", 3: "NIC0(PIX)", 4: "NIC5(PIX)", 5: "NIC4(PIX)"}, False),
}  # fmt: skip
# The sets of near CPUs, in order of first appearance.
CPUS = {
    "4gpu_nv_mixed_mlx5_sys": "0-15",
    "ansi_underline_after_tab_2gpu_nv12": "0-31",
    "club3090_1229_2x5090_phb": "0-63",
    "deepep145_18nic_shared_pxb_truncated": "0-55,112-167",
    "dstack_8xh100_nic_sys": "0-103 | 104-207",
    "fleet_6gpu_ansi_underline": "0-23,48-71 | 24-47,72-95",
    "gpuallocator17_8x4090_all_sys": "0-55,112-167 | 56-111,168-223",
    "k8s53497_8gpu_mlx4_truncated": "0-9,20-29 | 10-19,30-39",
    "mle_2gpu_nv2": "0-23",
    "nccl1357_h100_every_second_gpu_has_nic_truncated": "0-47,96-143 | 48-95,144-191",
    "nccl2157_dgxa100_18nic_no_lead_blank_truncated": "48-63,176-191 | 16-31,144-159",
    "nccl243_6gpu_nic_columns_reversed": "0-13,28-41 | 14-27,42-55",
    "nccl595_4xa100_2mlx5_uneven": "16-31,80-95 | 0-15,64-79 | 48-63,112-127 | 32-47,96-111",
    "ncclt178_8xa100_nv12_pairs": "0-31,64-95 | 32-63,96-127",
    "ncclt37_v100_hybrid_cube_mesh": "0-95",
    "sglang11208_gb200_numa_ids_truncated": "0-71 | 72-143",
    "sglang13973_8gpu_9nic_4numa_truncated": "0-23,96-119 | 24-47,120-143 | 48-71,144-167",
    "sglang_8x_nv18_8nic_1to1": "0-47,96-143 | 48-95,144-191",
    "sglang_kvm_1gpu_1nic": "0-251",
    "stelline_4x_rtx6000ada_4nic": "0-31 | 32-63",
    "unsloth3872_b200_4numa_9nic_truncated": "0-27 | 28-55 | 56-83",
    "vllm14537_76_nics_56_shown_truncated": "0-55,112-167",
    "vllm29944_nic_reversed_10nic_truncated": "0-55,112-167 | 56-111,168-223",
}
NUMA = {
    "nccl595_4xa100_2mlx5_uneven": [1, 0, 3, 2],
    "ncclt37_v100_hybrid_cube_mesh": [None] * 8,
    "mle_2gpu_nv2": [None, None],
    "sglang11208_gb200_numa_ids_truncated": [None] * 4,  # lists of nodes
    "sglang13973_8gpu_9nic_4numa_truncated": [0, 0, 0, 1, 2, 2, None, None],
    "gpuallocator17_8x4090_all_sys": [0, 0, 0, 0, 1, 1, 1, 1],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_real_matrices_give_the_answers_of_a_careful_reader(name: str) -> None:
    gpus, nics, first, near, complete = GOLDEN[name]
    links = read_topology_matrix(capture(f"topo_nvidia/{name}.txt"))
    assert links.gpus is not None
    assert [gpu.index for gpu in links.gpus] == list(range(gpus))
    assert (None if links.nics is None else len(links.nics)) == nics
    assert ways(links).get("GPU0-GPU1", "") == first
    assert nearest(links) == near
    assert links.complete == complete
    if name in CPUS:
        assert list(dict.fromkeys(gpu.cpus for gpu in links.gpus if gpu.cpus)) == [
            cpu_list(cpus) for cpus in CPUS[name].split(" | ")
        ]
    if name in NUMA:
        assert [gpu.numa for gpu in links.gpus] == NUMA[name]


def test_the_cube_mesh_is_two_islands_of_four() -> None:
    links = read_topology_matrix(capture("topo_nvidia/ncclt37_v100_hybrid_cube_mesh.txt"))
    assert {pair for pair, way in ways(links).items() if way == "SYS"} == {
        f"GPU{a}-GPU{b}" for a in range(4) for b in range(4, 8) if (a, b) not in {(0, 6), (1, 7), (2, 4), (3, 5)}
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mig_no_p2p_note.md", "want the matrix"),
        ("mle_topo_p2p_r_8gpu_ok.txt", "the P2P status matrix"),
        ("mle_topo_p2p_r_2gpu_cns.txt", "the P2P status matrix"),
        ("nccl371_grouped_by_hand.txt", "what is not one device: GPU0-3, GPU4-7"),
    ],
)
def test_real_texts_that_are_no_matrix_are_refused(name: str, message: str) -> None:
    with pytest.raises(ReadError, match=message):
        read_topology_matrix(capture(f"topo_nvidia/{name}"))


def test_real_p2p_matrices() -> None:
    eight = read_p2p_matrix(capture("topo_nvidia/mle_topo_p2p_r_8gpu_ok.txt"))
    assert (len(eight), set(eight.values())) == (56, {"OK"})
    two = read_p2p_matrix(capture("topo_nvidia/mle_topo_p2p_r_2gpu_cns.txt"))
    assert two == {("GPU0", "GPU1"): "CNS", ("GPU1", "GPU0"): "CNS"}
