"""The project file that is written for a new site: it loads, promises what was found and demands nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodes_made import nic, node, with_gpus

from pytest_clusterqual.judge.nodes.properties import with_fabric_nics
from pytest_clusterqual.judge.nodes.verdict import judge_nodes
from pytest_clusterqual.model.hardware import Cpu, Nic, NodeHardware
from pytest_clusterqual.model.measurement import CRITERIA, NodesMeasurement
from pytest_clusterqual.model.project import LauncherOptions, Project
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.report.project_file import project_file

SSH = LauncherOptions(kind="ssh", hosts=tuple(f"gpu{i}" for i in range(4)))
LAPTOP = NodeHardware(
    node="laptop", host="laptop", cpu=Cpu(cores=2), nics=(Nic(name="wlan0", up=True), Nic(name="lo0", virtual=True))
)
NOTHING = NodeHardware(node="bare", host="bare")


def servers(count: int = 4, **odd: dict[str, Any]) -> list[NodeHardware]:
    return [node(f"gpu{i}", **odd.get(f"gpu{i}", {})) for i in range(count)]


def written(
    hardware: list[NodeHardware],
    options: LauncherOptions = SSH,
    *,
    nodes: int = 4,
    name: str = "site",
    hosts: str = "gpu[0-3]",
) -> str:
    return project_file(options, with_fabric_nics(hardware, None), name=name, hosts=hosts, nodes=nodes)


def loaded(folder: Path, text: str, nodes: int) -> Project:
    (folder / "clusterqual.yaml").write_text(text, encoding="utf-8")
    return load_project(folder / "clusterqual.yaml", nodes=nodes)


def promises(project: Project) -> dict[str, str]:
    assert project.topology is not None
    return {demand.key: demand.text for demand in project.topology.demands}


def with_demands(text: str) -> str:
    """The file with its examples of demands uncommented."""
    return re.sub(r"^(  )# (require:|  - \{)", r"\1\2", text, flags=re.MULTILINE)


def test_servers_with_gpus(tmp_path: Path) -> None:
    project = loaded(tmp_path, written(servers()), 4)
    assert (project.launcher.kind, project.launcher.hosts) == ("ssh", SSH.hosts)
    assert project.launcher.nproc_per_node == 8
    assert promises(project) == {
        "gpus_per_node": "8", "gpu": "NVIDIA H100 80GB HBM3", "gpu_memory": ">= 79 GiB", "nics_per_node": "8",
        "nic_rate": ">= 400 Gbit/s", "mtu": "4092", "cores_per_node": "96",
    }  # fmt: skip
    assert project.fabric is not None and project.scaling is not None and project.full_run is not None
    assert (project.fabric.links.nic, project.fabric.links.nics_per_node) == (50e9, 8)
    assert project.fabric.groups == ("intra_node", "inter_node", "rails", "world")
    assert project.fabric.collectives is not None and "all_to_all" in project.fabric.collectives
    assert project.fabric.pairs
    assert project.scaling.points == (1, 2, 4)
    assert project.workload.precision == "bf16"


def test_what_was_found_keeps_its_promise(tmp_path: Path) -> None:
    plan = loaded(tmp_path, written(servers()), 4).topology
    assert plan is not None
    judgements = judge_nodes(NodesMeasurement(nodes=tuple(servers()), started=0.0, seconds=1.0), plan)
    assert {judgement.verdict for judgement in judgements} == {Verdict.PASS}


@pytest.mark.parametrize("hardware", [servers(), servers(1), [LAPTOP], [NOTHING]], ids=["4", "1", "laptop", "bare"])
@pytest.mark.parametrize("nodes", [1, 2, 3, 16])
@pytest.mark.parametrize("kind", ["ssh", "local", "slurm", "mpi"])
def test_every_file_loads_and_demands_nothing(tmp_path: Path, hardware: Any, nodes: int, kind: Any) -> None:
    hosts = "gpu[0-15]" if kind in ("ssh", "mpi") else ""
    text = written(hardware, LauncherOptions(kind=kind), nodes=nodes, hosts=hosts)
    project = loaded(tmp_path, text, nodes)
    assert not any(project.requirements(criterion) for criterion in CRITERIA)
    assert project.decision is not None and project.decision.expect is None
    demanding = loaded(tmp_path, with_demands(text), nodes)
    assert all(demanding.requirements(criterion) for criterion in ("memory", "fabric", "scaling", "full_run"))


def test_the_promise_is_what_most_nodes_have(tmp_path: Path) -> None:
    seven = {"gpus": node("any").gpus[:7]}
    text = written(servers(gpu2=seven, gpu3=with_gpus(model="NVIDIA A100")))
    project = loaded(tmp_path, text, 4)
    assert promises(project)["gpus_per_node"] == "8"
    assert re.search(r"^  gpu: \"NVIDIA H100 80GB HBM3\" +# found on 3 of 4$", text, re.MULTILINE)


def test_devices_of_one_node_that_differ_promise_nothing(tmp_path: Path) -> None:
    nics = (*(nic(i) for i in range(7)), nic(7, rate=25e9))
    project = loaded(tmp_path, written([node("gpu0", nics=nics)], nodes=1), 1)
    assert "nic_rate" not in promises(project) and promises(project)["nics_per_node"] == "8"


def test_ports_without_a_cable_are_not_promised(tmp_path: Path) -> None:
    nics = (*(nic(i) for i in range(4)), *(nic(i, up=False) for i in range(4, 8)))
    project = loaded(tmp_path, written([node(f"gpu{i}", nics=nics) for i in range(4)]), 4)
    assert promises(project)["nics_per_node"] == "4"
    assert project.fabric is not None and project.fabric.links.nics_per_node == 4


def test_virtual_nics_promise_nothing(tmp_path: Path) -> None:
    veth = replace(LAPTOP, nics=(Nic(name="eth0", up=True, rate=1.25e9, mtu=1500, virtual=True),))
    project = loaded(tmp_path, written([veth, veth], nodes=2), 2)
    assert promises(project) == {"cores_per_node": "2"}
    assert project.fabric is not None and project.fabric.links.nic is None


def test_a_machine_that_plays_nodes_shares_its_gpus(tmp_path: Path) -> None:
    project = loaded(tmp_path, written(servers(1), LauncherOptions(), nodes=2, hosts=""), 2)
    assert (project.launcher.kind, project.launcher.hosts) == ("local", ())
    assert project.launcher.nproc_per_node == 4
    assert promises(project)["gpus_per_node"] == "4"


def test_a_laptop(tmp_path: Path) -> None:
    project = loaded(tmp_path, written([LAPTOP], LauncherOptions(), nodes=2, hosts=""), 2)
    assert project.launcher.nproc_per_node == 1
    assert promises(project) == {"nics_per_node": "1", "cores_per_node": "2"}
    assert project.fabric is not None and project.fabric.groups == ("world",)


@pytest.mark.parametrize("name", ["a: b # c", 'say "it"', "[x]", "größe", "line\nbreak \x07", "-", "\udcff"])
def test_any_folder_name_can_be_a_projects_name(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, written([LAPTOP], LauncherOptions(), nodes=1, hosts="", name=name), 1).name


def test_a_host_whose_name_is_a_number(tmp_path: Path) -> None:
    text = written(servers(1), replace(SSH, hosts=("012",)), nodes=1, hosts="012")
    assert loaded(tmp_path, text, 1).launcher.hosts == ("012",)


def test_another_python_is_kept(tmp_path: Path) -> None:
    project = loaded(tmp_path, written(servers(), replace(SSH, python="/opt/py 3/bin/python")), 4)
    assert project.launcher.python == "/opt/py 3/bin/python"


def test_the_file_says_what_is_left_to_do() -> None:
    text = written(servers())
    assert "a stand-in" in text and "what was ordered" in text and "MEASURED, never a PASS" in text
    assert "pytest qualification/ --nodes 4 --qual-keep-going" in text
    assert max(map(len, text.splitlines())) <= 110
