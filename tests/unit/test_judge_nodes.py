"""Nodes against each other and against the file: the odd one is named, and nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest
from judge_made import the
from nodes_made import GIB, MIB, PLAN, cluster, everywhere, gpu, nic, node, plan, with_gpu, with_gpus, with_nic

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.nodes.properties import properties
from pytest_clusterqual.judge.nodes.verdict import judge_nodes
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.hardware import Cpu, Nic, Path
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.report.terminal import failure_message, summary

PAGES = File(__file__).resolve().parents[2] / "docs"
CPU = node("any").cpu
LOST_LINK = (Path(one="GPU0", other="GPU1", kind="NV", lanes=17), *node("any").paths[1:])
MOVED_CARD = tuple(replace(path, kind="SYS") if path.kind == "PIX" else path for path in node("any").paths)

# property, what is changed on one node of eight, and what is said about it
ODD: list[tuple[str, dict[str, Any], str]] = [
    ("gpus per node", {"gpus": node("any").gpus[:7]}, "node3 has 7 GPUs, the 7 others 8"),
    ("gpus per node", {"gpus": ()}, "node3 has 0 GPUs, the 7 others 8"),
    ("gpu model", with_gpus(model="NVIDIA A100-SXM4-80GB"),
     "node3 has NVIDIA A100-SXM4-80GB, the 7 others NVIDIA H100 80GB HBM3"),
    ("gpu model", with_gpu(2, model="NVIDIA H100 NVL"),
     "node3 has 7 x NVIDIA H100 80GB HBM3, 1 x NVIDIA H100 NVL, the 7 others NVIDIA H100 80GB HBM3"),
    ("gpu memory", with_gpu(2, memory=40960 * MIB), "node3 has 40 GiB of GPU memory, the 7 others 79.6 GiB"),
    ("driver", {"driver": "535.54.03"}, "node3 has driver 535.54.03, the 7 others 550.90.07"),
    ("gpu max clock", with_gpus(clock_max=1755e6), "node3 has GPUs of up to 1755 MHz, the 7 others 1980 MHz"),
    ("power limit", with_gpu(7, power_limit=500.0),
     "node3 has a power limit of 7 x 700 W, 1 x 500 W, the 7 others 700 W"),
    ("ecc mode", with_gpus(ecc=False), "node3 has ECC off, the 7 others on"),
    ("mig mode", with_gpus(mig=True), "node3 has MIG on, the 7 others off"),
    ("ecc errors", with_gpu(5, uncorrected=3), "node3: GPU5 has 3 uncorrected ECC errors"),
    ("throttle", with_gpu(2, throttle=("HW thermal slowdown", "HW slowdown")),
     "node3: GPU2 is throttled (HW thermal slowdown, HW slowdown)"),
    ("gpu links", {"paths": LOST_LINK}, "node3 has GPUs joined by 27 x NV18, 1 x NV17, the 7 others NV18"),
    ("gpu peer access", {"peer_access": {**node("any").peer_access, "GPU0-GPU1": "CNS"}},
     "node3 has GPUs whose access to each other is 27 x OK, 1 x CNS, the 7 others OK"),
    ("gpu to nic paths", {"paths": MOVED_CARD}, "node3 has GPUs whose nearest NIC is SYS away, the 7 others PIX"),
    ("cpu", {"cpu": replace(CPU, threads=96)}, "node3 has 2 x Xeon with 96 threads, the 7 others 2 x Xeon with 192 "
     "threads"),
    ("cores per node", {"cpu": replace(CPU, cores=95)}, "node3 has 95 cores, the 7 others 96"),
    ("numa nodes", {"cpu": replace(CPU, numa={"0": (0, 1, 2, 3)})}, "node3 has 1 NUMA nodes, the 7 others 2"),
    ("memory", {"memory": 1984 * GIB}, "node3 has 1.94 TiB of memory, the 7 others 2 TiB"),
    ("nics per node", {"nics": node("any").nics[1:]}, "node3 has 7 NICs, the 7 others 8"),
    ("nic up", with_nic(6, up=False, rate=1.25e9), "node3: mlx5_6 has no link"),
    ("nic rate", with_nic(6, rate=25e9), "node3 has NICs at 7 x 400 Gbit/s, 1 x 200 Gbit/s, the 7 others 400 Gbit/s"),
    ("nic mtu", with_nic(0, mtu=2044), "node3 has MTU 7 x 4092, 1 x 2044, the 7 others 4092"),
    ("nic firmware", with_nic(1, firmware="28.36.1010"),
     "node3 has NIC firmware 7 x 28.39.1002, 1 x 28.36.1010, the 7 others 28.39.1002"),
    ("pcie width", with_gpu(4, pcie_width=8), "node3: GPU4 runs on 8 of 16 PCIe lanes"),
    ("pcie width", with_nic(4, pcie_width=4), "node3: mlx5_4 runs on 4 of 16 PCIe lanes"),
    ("pcie width", with_gpu(4, pcie_width=8, pcie_width_max=8),
     "node3 has PCIe links of 15 x x16, 1 x x8, the 7 others x16"),
    ("nic pcie speed", with_nic(4, pcie_speed=16e9),
     "node3 has NICs on PCIe at 7 x 32 GT/s, 1 x 16 GT/s, the 7 others 32 GT/s"),
    ("version torch", {"versions": {"python": "3.11.7", "torch": "2.12.1"}},
     "node3 has torch 2.12.1, the 7 others 2.13.0"),
    ("version torch", {"versions": {"python": "3.11.7"}}, "node3 has torch none, the 7 others 2.13.0"),
    ("version ofed", {"versions": {"python": "3.11.7", "torch": "2.13.0", "ofed": "5.8"}},
     "node3 has ofed 5.8, the 7 others none"),
    ("setting NCCL_DEBUG", {"settings": {}}, "node3 has NCCL_DEBUG not set, the 7 others WARN"),
    ("setting /etc/nccl.conf", {"settings": {"NCCL_DEBUG": "WARN", "/etc/nccl.conf": "NCCL_P2P_DISABLE=1\n"}},
     "node3 has /etc/nccl.conf NCCL_P2P_DISABLE=1, the 7 others not set"),
]  # fmt: skip


def failed(m: NodesMeasurement, *args: Any) -> set[str]:
    return {j.quantity for j in judge_nodes(m, *args or (PLAN,)) if j.verdict is not Verdict.PASS}


def test_a_healthy_cluster_passes_in_everything() -> None:
    judgements = judge_nodes(cluster(), PLAN)
    assert {j.verdict for j in judgements} == {Verdict.PASS}
    assert {(j.value, j.unit, j.findings) for j in judgements} == {(0.0, units.NODES, ())}
    assert the(judgements, "driver").reason == "all 8 nodes have driver 550.90.07"
    assert the(judgements, "throttle").reason == "no GPU is throttled"
    assert the(judgements, "nics per node").reason == "all 8 nodes have 8 NICs"  # no docker0, no spare eno1
    assert {j.quantity for j in judgements} == {p.quantity for p in properties(cluster().nodes, None)}
    (source,) = {j.requirement.source for j in judgements if j.requirement}
    assert source == "clusterqual.yaml:9"


@pytest.mark.parametrize(("quantity", "changes", "said"), ODD, ids=[f"{q}-{i}" for i, (q, _, _) in enumerate(ODD)])
def test_the_odd_node_of_eight_is_named(quantity: str, changes: dict[str, Any], said: str) -> None:
    m = cluster(node3=changes)
    judgement = the(judge_nodes(m, PLAN), quantity)
    assert (judgement.verdict, judgement.reason) == (Verdict.FAIL, said)
    # GPU0's own NIC is gone, so that its nearest one is another's: that is told, too.
    assert failed(m) - {quantity} == ({"gpu to nic paths"} if quantity == "nics per node" else set())
    assert (judgement.value, judgement.interval and judgement.interval.samples) == (1.0, 8)
    ((suspect, kind, evidence),) = [(f.suspect, f.kind, f.evidence) for f in judgement.findings]
    assert (suspect, kind, evidence) == ("node3", quantity, said)


@pytest.mark.parametrize(("quantity", "changes", "said"), ODD, ids=[f"{q}-{i}" for i, (q, _, _) in enumerate(ODD)])
def test_of_two_nodes_none_is_accused_but_for_a_fault_of_its_own(
    quantity: str, changes: dict[str, Any], said: str
) -> None:
    judgement = the(judge_nodes(cluster(2, node1=changes), PLAN), quantity)
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 1.0)
    if ": " in said:
        assert [f.suspect for f in judgement.findings] == ["node1"]
    else:
        assert [f.suspect for f in judgement.findings] == ["node0 or node1"]
        assert judgement.reason.startswith("no majority: node0 has ")
        assert "; node1 has " in judgement.reason


def test_a_tie_of_many_accuses_no_one_and_counts_those_outside_the_largest_group() -> None:
    old = {"driver": "535.54.03"}
    judgement = the(judge_nodes(cluster(4, node1=old, node2=old), PLAN), "driver")
    assert judgement.reason == (
        "no majority: node0 and node3 have driver 550.90.07; node1 and node2 have driver 535.54.03"
    )
    assert (judgement.value, [f.suspect for f in judgement.findings]) == (2.0, ["node0, node1, node2 or node3"])


def test_several_odd_nodes_are_told_apart_by_what_they_have() -> None:
    odd = {"node1": {"driver": "535.1"}, "node2": {"driver": "560.2"}, "node5": {"driver": "535.1"}}
    judgement = the(judge_nodes(cluster(8, **odd), PLAN), "driver")
    assert judgement.reason == (
        "node1 and node5 have driver 535.1, most (5) 550.90.07; node2 has driver 560.2, most (5) 550.90.07"
    )
    assert (judgement.value, {f.suspect for f in judgement.findings}) == (3.0, {"node1", "node2", "node5"})


def test_a_long_list_of_nodes_is_cut_in_words_but_not_in_number() -> None:
    odd = {f"node{i}": {"driver": "535.1"} for i in range(12)}
    judgement = the(judge_nodes(cluster(40, **odd), PLAN), "driver")
    assert judgement.reason == (
        "node0, node1, node2, node3, node4, node5, node6, node7 and 4 more have driver 535.1, the 28 others 550.90.07"
    )
    assert (judgement.value, len(judgement.findings)) == (12.0, 12)


def test_what_cannot_be_read_on_one_node_makes_it_odd_with_the_reason() -> None:
    blind = {
        "gpus": tuple(replace(gpu(i), model=None, memory=None) for i in range(8)),
        "unread": ("nvidia-smi -q -x: exit code 9: driver/library version mismatch",),
    }
    judgement = the(judge_nodes(cluster(4, node2=blind), PLAN), "gpu model")
    assert judgement.reason == (
        "gpu model is not known of node2 (nvidia-smi -q -x: exit code 9: driver/library version mismatch), "
        "the 3 others NVIDIA H100 80GB HBM3"
    )
    assert (judgement.verdict, [f.suspect for f in judgement.findings]) == (Verdict.FAIL, ["node2"])


def test_one_device_that_does_not_tell_makes_the_node_unknown_not_alike() -> None:
    assert (
        "gpu model is not known of node2"
        in the(judge_nodes(cluster(4, node2=with_gpu(3, model=None)), PLAN), "gpu model").reason
    )


def test_what_no_node_tells_is_not_judged_unless_the_file_promises_it() -> None:
    blind = everywhere(gpus=(replace(gpu(0), memory=None),), unread=("nvidia-smi: no such device",))
    assert "gpu memory" not in {j.quantity for j in judge_nodes(blind, PLAN)}
    judgement = the(judge_nodes(blind, plan(gpu_memory=(">=", 80e9))), "gpu memory")
    assert (judgement.verdict, judgement.value, judgement.interval) == (Verdict.UNDECIDED, None, None)
    assert judgement.reason == (
        "gpu memory >= 8e+10 is promised, but no node tells it: node0: nvidia-smi: no such device"
    )


def test_nodes_of_which_each_tells_only_a_part_are_not_known() -> None:
    partly = everywhere(**with_gpu(5, memory=None))
    assert "gpu memory" not in {j.quantity for j in judge_nodes(partly, PLAN)}
    assert the(judge_nodes(partly, plan(gpu_memory=(">=", 80e9))), "gpu memory").verdict is Verdict.UNDECIDED


def test_a_cluster_without_gpus_says_nothing_of_gpus_but_their_number() -> None:
    judgements = judge_nodes(everywhere(gpus=(), driver=None), PLAN)
    assert {j.quantity for j in judgements if "gpu" in j.quantity or j.quantity in ("driver", "throttle")} == {
        "gpus per node"
    }
    assert {j.verdict for j in judgements} == {Verdict.PASS}


def test_no_gpu_is_not_the_gpu_that_was_promised() -> None:
    judgement = the(judge_nodes(everywhere(gpus=()), plan(gpu="H100")), "gpu model")
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 4.0)
    assert judgement.reason == "node0, node1, node2 and node3 have none, promised: H100"


PROMISES: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    ({"gpus_per_node": 8}, "gpus per node", {"gpus": node("any").gpus[:4]}, "have 4 GPUs, promised: 8"),
    ({"gpu": "h200"}, "gpu model", {}, "have NVIDIA H100 80GB HBM3, promised: h200"),
    ({"gpu_memory": (">=", 96e9)}, "gpu memory", {}, "have 79.6 GiB of GPU memory, promised: >= 9.6e+10"),
    ({"nics_per_node": 10}, "nics per node", {}, "have 8 NICs, promised: 10"),
    ({"nic_rate": (">=", 50e9)}, "nic rate", with_nic(3, rate=25e9),
     "have NICs at 7 x 400 Gbit/s, 1 x 200 Gbit/s, promised: >= 5e+10"),
    ({"mtu": 9000}, "nic mtu", {}, "have MTU 4092, promised: 9000"),
    ({"cores_per_node": 128}, "cores per node", {}, "have 96 cores, promised: 128"),
    ({"numa_nodes": 8}, "numa nodes", {}, "have 2 NUMA nodes, promised: 8"),
    ({"memory": (">", 4e12)}, "memory", {}, "have 2 TiB of memory, promised: > 4e+12"),
]  # fmt: skip


@pytest.mark.parametrize(("demands", "quantity", "changes", "said"), PROMISES, ids=[next(iter(p[0])) for p in PROMISES])
def test_nodes_that_are_all_alike_and_not_as_promised_fail(
    demands: dict[str, Any], quantity: str, changes: dict[str, Any], said: str
) -> None:
    judgement = the(judge_nodes(everywhere(**changes), plan(**demands)), quantity)
    assert judgement.reason == f"node0, node1, node2 and node3 {said}"
    assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 4.0)
    assert [f.suspect for f in judgement.findings] == ["all 4 nodes"]
    assert judgement.requirement is not None
    assert judgement.requirement.source == "clusterqual.yaml:10"
    assert judgement.requirement.text == said.rpartition("promised: ")[2]


def test_promises_that_are_kept_say_so() -> None:
    kept = plan(
        gpus_per_node=8, gpu="h100", gpu_memory=(">=", 80e9), nics_per_node=8, nic_rate=(">=", 50e9), mtu=4092,
        cores_per_node=96, numa_nodes=2, memory=(">=", 2e12),
    )  # fmt: skip
    judgements = judge_nodes(cluster(2), kept)
    assert {j.verdict for j in judgements} == {Verdict.PASS}
    assert the(judgements, "gpus per node").reason == "all 2 nodes have 8 GPUs, as promised"


def test_total_counts_do_not_make_up_for_a_node() -> None:
    """Two nodes with 4 and 12 GPUs have 16 together: not what 8 on each would be."""
    m = cluster(2, node0={"gpus": node("any").gpus[:4]}, node1={"gpus": tuple(gpu(i) for i in range(12))})
    judgement = the(judge_nodes(m, plan(gpus_per_node=8)), "gpus per node")
    assert judgement.reason == "node0 has 4 GPUs, promised: 8; node1 has 12 GPUs, promised: 8"
    assert judgement.value == 2.0


def test_a_node_that_breaks_the_promise_is_not_counted_again_as_a_minority() -> None:
    judgement = the(judge_nodes(cluster(2, node1={"gpus": ()}), plan(gpus_per_node=8)), "gpus per node")
    assert judgement.reason == "node1 has 0 GPUs, promised: 8"
    assert judgement.value == 1.0


@pytest.mark.parametrize(("lowest", "verdict"), [(1900e6, Verdict.PASS), (1850e6, Verdict.FAIL)])
def test_clocks_may_differ_by_the_tolerance_of_the_file(lowest: float, verdict: Verdict) -> None:
    m = cluster(4, node1=with_gpu(6, clock=lowest))
    judgement = the(judge_nodes(m, plan(clock_tolerance=0.05)), "gpu clock")
    assert judgement.verdict is verdict
    if verdict is Verdict.FAIL:
        assert judgement.reason == "node1 has a GPU at 1850 MHz, the 3 others 1980 MHz"
    assert "gpu clock" not in {j.quantity for j in judge_nodes(m, PLAN)}


def test_a_little_less_memory_is_the_kernels_and_a_module_less_is_not() -> None:
    assert failed(cluster(4, node1={"memory": 2047 * GIB})) == set()
    assert failed(cluster(4, node1={"memory": 1984 * GIB})) == {"memory"}  # one of 32 modules of 64 GiB


def test_faults_count_even_where_all_nodes_share_them() -> None:
    for quantity, changes in {
        "throttle": with_gpu(0, throttle=("SW power cap",)),
        "ecc errors": with_gpu(0, uncorrected=1),
        "pcie width": with_gpu(0, pcie_width=8),
        "nic up": with_nic(0, up=False),
    }.items():
        judgement = the(judge_nodes(everywhere(**changes), PLAN), quantity)
        assert (judgement.verdict, judgement.value) == (Verdict.FAIL, 4.0), quantity
        assert [f.suspect for f in judgement.findings] == ["node0", "node1", "node2", "node3"]


def test_ports_without_a_cable_are_spare_where_the_promised_number_has_a_link() -> None:
    spare = {"nics": (*(nic(i) for i in range(8)), *(nic(i, up=False) for i in range(8, 16)))}
    assert failed(everywhere(**spare)) == {"nic up"}
    assert failed(everywhere(**spare), plan(nics_per_node=8)) == set()
    assert failed(everywhere(**spare), plan(nics_per_node=16)) == {"nic up"}


def test_ethernet_without_rdma_is_compared_and_an_unplugged_port_is_no_fault_of_its_own() -> None:
    eth = [Nic(name=f"eth{i}", up=i < 2, rate=1.25e9 if i < 2 else None, mtu=1500) for i in range(4)]
    assert failed(everywhere(nics=tuple(eth))) == set()
    m = cluster(4, **{f"node{i}": {"nics": tuple(eth)} for i in range(3)}, node3={"nics": (*eth[:1], *eth[2:], eth[3])})
    assert the(judge_nodes(m, PLAN), "nic up").reason == "node3 has 3 NICs without a link, the 3 others 2"


def test_virtual_interfaces_count_only_where_there_is_nothing_else() -> None:
    veth = Nic(name="eth0", up=True, rate=1.25e9, mtu=1500, virtual=True)
    slow = replace(veth, mtu=9000)
    paths = {"gpus": (), "paths": ()}
    m = cluster(3, node0={"nics": (veth,), **paths}, node1={"nics": (veth,), **paths}, node2={"nics": (slow,), **paths})
    assert "node2 has MTU 9000, the 2 others 1500" in the(judge_nodes(m, PLAN), "nic mtu").reason


def test_one_node_alone_is_judged_by_its_own_faults_and_the_promises() -> None:
    assert failed(cluster(1)) == set()
    assert failed(cluster(1, node0=with_gpu(0, throttle=("HW power brake",)))) == {"throttle"}
    assert failed(cluster(1), plan(gpus_per_node=4)) == {"gpus per node"}
    assert the(judge_nodes(cluster(1), PLAN), "driver").reason == "node0 has driver 550.90.07"


def test_a_node_of_which_nothing_is_known_is_odd_in_all_that_others_tell() -> None:
    bare = {"cpu": Cpu(), "memory": None, "driver": None, "versions": {}, "paths": (), "unread": ("net: no answer",)}
    odd = failed(cluster(4, node1=bare))
    assert {"cpu", "cores per node", "numa nodes", "memory", "driver", "version torch", "gpu links"} <= odd


@pytest.mark.parametrize("names", [(), ("node0", "node0")])
def test_no_node_or_one_twice_is_no_measurement(names: tuple[str, ...]) -> None:
    m = NodesMeasurement(nodes=tuple(node(name) for name in names), started=0.0, seconds=0.0)
    with pytest.raises(MeasurementError, match="want at least one, and each once"):
        judge_nodes(m, PLAN)


def test_the_page_shows_the_message_as_it_is() -> None:
    message = failure_message(judge_nodes(cluster(node3={"driver": "535.54.03"}), PLAN), None)
    page = (PAGES / "nodes.md").read_text(encoding="utf-8")
    assert " ".join(message.split()) in " ".join(page.split())


def test_what_is_in_order_shares_one_row_and_what_is_odd_has_its_own() -> None:
    records = [
        Record(
            schema=1, run="r", test="test_nodes[8nodes]", criterion="nodes", judgement=judgement, conditions=None,
            measurement="m0001", started=0.0, seconds=0.0,
        )
        for judgement in judge_nodes(cluster(node3={"driver": "535.54.03"}), PLAN)
    ]  # fmt: skip
    text = summary(records, run_folder="runs/1", simulated=False, width=110)
    rows = [line.split() for line in text.splitlines() if " odd of " in line]
    assert [row[-1] for row in rows if "driver" in row] == ["FAIL"]
    assert "1 odd of 8 nodes" in text
    assert len(rows) == 2
    assert f"+{len(records) - 2} more in records.jsonl" in text


def test_judging_again_from_the_record_gives_the_same() -> None:
    m = cluster(3, node1={"driver": "535.1"})
    assert judge_nodes(from_json(NodesMeasurement, to_json(m)), PLAN) == judge_nodes(m, PLAN)
