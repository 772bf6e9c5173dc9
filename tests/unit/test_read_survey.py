"""A survey as words: what the driver's tools say, what is broken, and what is no survey at all."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.host_check import HostCheck
from pytest_clusterqual.read.survey import read_host_check, read_survey
from pytest_clusterqual.read.survey_form import LARGEST

SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>550.90.07</driver_version><cuda_version>12.4</cuda_version><attached_gpus>2</attached_gpus>
  <gpu id="00000000:1B:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
    <fb_memory_usage><total>81559 MiB</total></fb_memory_usage><processes></processes></gpu>
  <gpu id="00000000:9A:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name>
    <fb_memory_usage><total>N/A</total></fb_memory_usage><processes></processes></gpu>
</nvidia_smi_log>
"""
TOPO = """\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\tSYS\t0-1\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\t2-3\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS
NIC1\tSYS\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
P2P = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"
PCI = {"address": "0000:18:00.0", "numa_node": "0", "current_link_width": "16", "max_link_width": "16",
       "current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}  # fmt: skip
PORT = {"device": "mlx5_0", "port": 1, "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand", "firmware": "28.39.1002", "interface": "ib0", "pci": PCI}  # fmt: skip
INTERFACE = {"name": "ib0", "operstate": "up", "carrier": "1", "speed": "400000", "mtu": "4092", "type": "32",
             "dev_port": "0", "device": True, "bond": False, "pci": PCI}  # fmt: skip
SPACE = {"path": "/tmp", "total": 1000, "free": 400}
GOOD: dict[str, Any] = {
    "survey": 1, "time": 1796003304.5, "unread": [],
    "host": {"name": "gpu01", "user": "ada", "executable": "/usr/bin/python3", "boot": "b-1"},
    "versions": {"python": "3.11.7", "torch": "2.13.0", "pytest_clusterqual": "0.1.0", "nvidia_module": "550.90.07"},
    "cpu": {"model": "Xeon", "packages": 2, "cores": 4, "online": "0-7", "numa": {"0": "0-3", "1": "4-7"},
            "quota": None, "affinity": [0, 1, 2]},
    "memory": {"total": 2**40, "limit": None}, "net": [INTERFACE], "infiniband": [PORT],
    "accelerators": [{"vendor": "0x10de", "pci": PCI, "memory": None}] * 2,
    "limits": {"open_files": 1024, "open_files_hard": 4096, "memlock": -1},
    "shm": SPACE, "temp": SPACE, "cwd": SPACE, "settings": {"NCCL_DEBUG": "WARN"},
    "reverse_dns": {"address": "10.0.0.7", "seconds": 0.004, "answered": True},
    "nvidia_smi": {"stdout": SMI, "code": 0, "error": None}, "nvidia_topo": {"stdout": TOPO, "code": 0, "error": None},
    "nvidia_p2p": {"stdout": P2P, "code": 0, "error": None}, "nccl_topology": None,
    "rocm_topo": None, "rocm_names": None,
}  # fmt: skip


def survey(**changes: Any) -> dict[str, Any]:
    assert set(changes) <= set(GOOD)
    return {**copy.deepcopy(GOOD), **changes}


def said(stdout: str, code: int | None = 0, error: str | None = None) -> dict[str, Any]:
    return {"stdout": stdout, "code": code, "error": error}


def test_a_node_with_gpus_is_put_together_from_all_that_was_captured() -> None:
    node = read_survey(json.dumps(survey()), node="node0")
    assert (node.node, node.host, node.driver, node.memory, node.unread) == (
        "node0", "gpu01", "550.90.07", 2**40, ()
    )  # fmt: skip
    assert [(gpu.name, gpu.model, gpu.memory, gpu.numa, gpu.cpus) for gpu in node.gpus] == [
        ("GPU0", "NVIDIA H100 80GB HBM3", 81559 * 2**20, 0, (0, 1)),
        ("GPU1", "NVIDIA H100 80GB HBM3", None, 1, (2, 3)),
    ]
    assert [(nic.name, nic.label, nic.kind, nic.rate) for nic in node.nics] == [
        ("mlx5_0", "NIC0", "infiniband", 50e9),
        ("mlx5_1", "NIC1", "rdma", None),  # only the matrix tells of it
    ]
    assert node.nearest_nics(1) == (("mlx5_1",), "PIX")
    assert node.peer_access == {"GPU0-GPU1": "OK"}
    assert node.versions == {
        "python": "3.11.7",
        "torch": "2.13.0",
        "pytest_clusterqual": "0.1.0",
        "cuda_driver": "12.4",
    }
    assert (node.cpu.threads, node.cpu.numa, node.settings) == (
        8, {"0": (0, 1, 2, 3), "1": (4, 5, 6, 7)}, {"NCCL_DEBUG": "WARN"},
    )  # fmt: skip
    assert from_json(NodeHardware, json.loads(json.dumps(to_json(node)))) == node


@pytest.mark.parametrize(
    ("answer", "access", "reason"),
    [
        (said(P2P.replace("OK\tX", "CNS\tX")), {"GPU0-GPU1": "CNS/OK"}, None),
        (said("\tGPU2\tGPU10\nGPU2\tX\tNS\nGPU10\tNS\tX\n"), {"GPU2-GPU10": "NS"}, None),
        (said("", 14, "Unknown option"), {}, "nvidia-smi topo -p2p r: exit code 14: Unknown option"),
        (said("no matrix"), {}, 'nvidia-smi topo -p2p: got "no matrix", want the matrix of GPUs'),
        (None, {}, None),
    ],
    ids=["one way", "numbers", "old tool", "other words", "no tool"],
)
def test_access_of_gpus_to_each_other(answer: Any, access: dict[str, str], reason: str | None) -> None:
    node = read_survey(survey(nvidia_p2p=answer), node="n")
    assert (node.peer_access, node.unread) == (access, (reason,) if reason else ())


def test_one_gpu_alone_has_none_to_reach() -> None:
    second = SMI[SMI.index('  <gpu id="00000000:9A') : SMI.index("</nvidia_smi_log>")]
    one = SMI.replace("gpus>2<", "gpus>1<").replace(second, "")
    node = read_survey(
        survey(nvidia_smi=said(one), nvidia_p2p=said(" \tGPU0\n GPU0\tX\n"), accelerators=GOOD["accelerators"][:1]),
        node="n",
    )
    assert (len(node.gpus), node.peer_access, node.unread) == (1, {}, ())


def test_a_user_of_the_node_finds_this() -> None:
    host = read_host_check(survey(unread=["temp: no answer within 10 s"], temp=None), node="node0", clock_offset=-21.5)
    assert (host.host, host.user, host.python, host.torch, host.package) == (
        "gpu01",
        "ada",
        "3.11.7",
        "2.13.0",
        "0.1.0",
    )
    assert (host.cpus, host.open_files, host.open_files_hard, host.memlock) == (3, 1024.0, 4096.0, math.inf)
    assert (host.shm and host.shm.free, host.temp, host.reverse_dns, host.clock_offset) == (400, None, 0.004, -21.5)
    assert host.unread == ("temp: no answer within 10 s",)
    assert from_json(HostCheck, json.loads(json.dumps(to_json(host)))) == host


# A tool's answer, what is not known then, and how many GPUs there are all the same.
BROKEN = [
    (said("", 9, "Failed to initialize NVML: Driver/library version mismatch"),
     "nvidia-smi -q -x: exit code 9: Failed to initialize NVML: Driver/library version mismatch", 2),
    (said("", None, "no answer within 10 s"), "nvidia-smi -q -x: no answer within 10 s", 2),
    (said("NVIDIA-SMI has failed\n", 9),
     'nvidia-smi -q -x: exit code 9: "NVIDIA-SMI has failed"', 2),
    (said(SMI[: len(SMI) // 2]), "nvidia-smi -q -x: want XML", 2),
    (said('<!DOCTYPE x [<!ENTITY a "aa">]><nvidia_smi_log>&a;</nvidia_smi_log>'), "entities are not read here", 2),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "reason", "gpus"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_tool_is_a_reason_and_the_bus_still_tells_the_number(
    answer: dict[str, Any], reason: str, gpus: int
) -> None:
    node = read_survey(survey(nvidia_smi=answer, nvidia_topo=None), node="n")
    assert any(reason in line for line in node.unread), node.unread
    assert [(gpu.model, gpu.memory) for gpu in node.gpus] == [(None, None)] * gpus
    assert node.driver == "550.90.07"  # of the loaded module


def test_a_gpu_that_the_driver_has_lost_is_told() -> None:
    three = [GOOD["accelerators"][0]] * 3
    node = read_survey(survey(accelerators=three), node="n")
    assert len(node.gpus) == 2
    assert node.unread == ("the driver tells of 2 GPUs, 3 are on the PCI bus",)


def test_a_cut_matrix_is_read_as_far_as_it_goes_and_said_to_be_cut() -> None:
    node = read_survey(survey(nvidia_topo=said(TOPO.replace("GPU1\tNV18\t X \tSYS\tPIX", "GPU1\tNV18"))), node="n")
    assert node.paths
    assert any(line.startswith("nvidia-smi topo -m: ") for line in node.unread)


def test_amd_gpus_get_their_names_from_rocm() -> None:
    names = "GPU[0]\t\t: Card series: \t\tAMD Instinct MI300X\nGPU[1]\t\t: Card Series: \t\tAMD Instinct MI300X\n"
    card = {"vendor": "0x1002", "pci": PCI, "memory": str(192 * 2**30)}
    amd = survey(nvidia_smi=None, nvidia_topo=None, accelerators=[card] * 2, rocm_names=said(names),
                 versions={"amdgpu_module": "6.8.5"})  # fmt: skip
    node = read_survey(amd, node="n")
    assert {(gpu.model, gpu.memory) for gpu in node.gpus} == {("AMD Instinct MI300X", 192 * 2**30)}
    assert node.driver == "6.8.5"


def test_what_was_not_answered_is_not_known_and_never_zero() -> None:
    nothing = {key: None for key in GOOD if key not in ("survey", "time", "unread")}
    node = read_survey({**nothing, "survey": 1, "time": 0.0, "unread": ["cpu: no answer within 10 s"]}, node="n")
    assert (node.host, node.memory, node.cpu.cores, node.driver) == ("n", None, None, None)
    assert node.unread == ("cpu: no answer within 10 s",)
    assert read_host_check({**nothing, "survey": 1, "time": 0.0, "unread": []}, node="n").open_files is None


@pytest.mark.parametrize(("text", "message"), [
    ("", "node0: the node's survey: got"),
    ("Welcome to gpu01", "want one line of JSON"),
    ("[" * 100_000, "want one line of JSON"),
    ("7", "got form 'int', want 1"),
    ("{}", "got form None, want 1"),
    ('{"survey": 2}', "got form 2, want 1, the one this version reads"),
    (json.dumps({key: value for key, value in GOOD.items() if key != "net"}), "the field 'net' is missing"),
    (json.dumps(survey() | {"more": 1}), "got unknown field 'more'"),
    (json.dumps(survey(memory={"total": "much", "limit": None})), "memory.total: got 'much', want int"),
    (json.dumps(survey(net=[{"name": "eth0"}])), "net[0]: the field 'operstate' is missing"),
    (" " * (LARGEST + 1), f"at most {LARGEST} are read"),
])  # fmt: skip
def test_what_is_no_survey_of_this_version_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReadError) as caught:
        read_survey(text, node="node0")
    assert message in str(caught.value)
    assert str(caught.value).startswith("node0: the node's survey")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["-1", "0-99999", "1e999 Gb/sec", "4: ACTIVE", "9" * 400, SMI, TOPO, "NaN"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A good survey with one value somewhere inside replaced."""
    found: dict[str, Any] = copy.deepcopy(GOOD)
    holder: Any = found
    key: Any = draw(st.sampled_from(sorted(found)))
    while isinstance(holder[key], (dict, list)) and holder[key] and draw(st.booleans()):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    holder[key] = draw(VALUES)
    return found


@settings(max_examples=300, deadline=None)
@given(spoiled() | VALUES.map(lambda value: {"survey": 1, "x": value}))
def test_no_survey_raises_anything_but_a_read_error(found: dict[str, Any]) -> None:
    for reader in (read_survey, read_host_check):
        try:
            reader(found, node="n")
            reader(json.dumps(found), node="n")
        except ReadError:
            continue
