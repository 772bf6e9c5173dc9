"""The survey: run for real on this machine, and on made-up hosts; it is sent to hosts that may have any Python."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from host_tree import PCIE, cpus, files, interface, pci, rdma

from pytest_clusterqual import __version__
from pytest_clusterqual.launch import survey
from pytest_clusterqual.read.survey import read_host_check, read_survey

PROGRAM = Path(survey.__file__)
OTHER_PYTHONS = [f"python3.{minor}" for minor in range(6, 15)]


def ask(*argv: str, python: str = sys.executable, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, str(PROGRAM), *argv], capture_output=True, text=True, timeout=60, check=True, **options
    )


# -- what it may be --------------------------------------------------------------------------------


def test_it_is_one_file_for_the_oldest_python_and_needs_nothing_installed() -> None:
    source = PROGRAM.read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 6))
    imported = {
        name.partition(".")[0]
        for item in ast.walk(tree)
        for name in (
            [alias.name for alias in item.names] if isinstance(item, ast.Import)
            else [item.module or "."] if isinstance(item, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert imported <= set(sys.stdlib_module_names) - {"__future__"}, imported
    annotations = [a for item in ast.walk(tree) if isinstance(item, ast.FunctionDef)
                   for a in (item.returns, *(argument.annotation for argument in item.args.args))]  # fmt: skip
    evaluated = {ast.unparse(a) for a in annotations if a is not None and not isinstance(a, ast.Constant)}
    assert evaluated <= {"str", "float", "None"}, "an annotation that an old Python evaluates must exist there"


@pytest.mark.parametrize("name", OTHER_PYTHONS)
def test_it_runs_on_the_pythons_that_are_here(name: str) -> None:
    python = shutil.which(name)
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no {name} here")
    node = read_survey(ask(python=python).stdout, node="n")
    assert (node.host, node.unread) == (socket.gethostname(), ())
    assert node.versions["python"].startswith(name.removeprefix("python"))


# -- this machine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here() -> str:
    return ask().stdout


def test_this_machine_is_told_as_it_is(here: str) -> None:
    assert here.count("\n") == 1
    node = read_survey(here, node="node0")
    assert (node.node, node.host) == ("node0", socket.gethostname())
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert node.memory == total
    assert node.cpu.threads == os.sysconf("SC_NPROCESSORS_ONLN")
    assert node.cpu.cores is not None
    assert node.cpu.cores <= node.cpu.threads
    names = {nic.interface for nic in node.nics}
    assert names == {name for name in os.listdir("/sys/class/net") if name != "lo" and
                     Path("/sys/class/net", name).is_dir()}  # fmt: skip
    assert node.versions["pytest_clusterqual"] == __version__
    assert node.versions["kernel"] == os.uname().release


def test_versions_are_those_that_an_import_would_give_and_nothing_is_imported(here: str) -> None:
    import torch

    assert read_survey(here, node="n").versions["torch"] == torch.__version__
    code = "import sys; from pytest_clusterqual.launch import survey; survey.versions('/'); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "'torch'" not in done.stdout
    assert "pytest_clusterqual.launch.survey" in done.stdout


def test_a_user_finds_their_limits(here: str) -> None:
    import resource

    host = read_host_check(here, node="node0", clock_offset=0.25, clock_error=0.01)
    assert host.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert host.cpus == len(os.sched_getaffinity(0))
    assert host.executable == sys.executable
    assert host.shm is not None
    assert host.shm.total == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    assert host.cwd is not None
    assert host.cwd.path == os.getcwd()
    assert 0 < host.cwd.free <= host.cwd.total
    assert host.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (host.package, host.clock_offset, host.clock_error) == (__version__, 0.25, 0.01)


def test_settings_are_told_and_secrets_are_not(tmp_path: Path) -> None:
    home = tmp_path / "home"
    files(home, **{".nccl.conf": "NCCL_P2P_DISABLE=1"})
    told = {"NCCL_IB_HCA": "mlx5", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_IB_PKEY": "1"}
    hidden = {"NCCL_NET_TOKEN": "s3", "NCCL_AUTH_KEY": "s3", "TORCH_HOME": "/x"}
    env = {**os.environ, **told, **hidden, "HOME": str(home)}
    node = read_survey(ask(env=env).stdout, node="n")
    assert node.settings.items() >= {**told, "~/.nccl.conf": "NCCL_P2P_DISABLE=1"}.items()
    assert not hidden.keys() & node.settings.keys()


def test_the_file_that_nccl_takes_the_topology_from_is_told(tmp_path: Path) -> None:
    files(tmp_path, **{"topo.xml": "<system/>"})
    env = {**os.environ, "NCCL_TOPO_FILE": str(tmp_path / "topo.xml")}
    assert json.loads(ask(env=env).stdout)["nccl_topology"] == {"stdout": "<system/>", "code": 0, "error": None}
    env["NCCL_TOPO_FILE"] = str(tmp_path / "none.xml")
    assert json.loads(ask(env=env).stdout)["nccl_topology"] is None


def test_it_tells_the_time_as_often_as_it_is_asked() -> None:
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), "clock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["survey"] == survey.FORMAT
        for _ in range(3):
            before = time.time()
            process.stdin.write("?\n")
            process.stdin.flush()
            assert before <= json.loads(process.stdout.readline())["time"] <= time.time()
        process.stdin.close()
        assert process.wait(30) == 0


# -- programs that answer, complain or hang ----------------------------------------------------------


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_program_that_is_not_there_is_nothing_to_complain_of() -> None:
    assert survey.command("no-such-program-anywhere") is None


def test_what_a_program_says_is_kept_with_its_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "bin", "toolx", "echo \"$@\"; printf 'no devices\\377' >&2; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert survey.command("toolx", "-q") == {"stdout": "-q\n", "code": 9, "error": "no devices\ufffd"}


def test_a_program_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path / "bin", "toolx", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr(survey, "LIMIT", 0.2)
    assert survey.command("toolx") == {"stdout": "", "code": None, "error": "no answer within 0.2 s"}


def test_a_group_of_facts_that_hangs_or_fails_keeps_back_its_own_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus(tmp_path)
    monkeypatch.setattr(survey, "LIMIT", 0.2)
    monkeypatch.setattr(survey, "memory", lambda root: time.sleep(4))
    monkeypatch.setattr(survey, "accelerators", lambda root: 1 / 0)
    found = survey.survey(str(tmp_path))
    assert found["unread"] == ["memory: no answer within 0.2 s", "accelerators: ZeroDivisionError: division by zero"]
    assert (found["memory"], found["accelerators"], found["cpu"]["cores"]) == (None, None, 4)
    node = read_survey(found, node="n")
    assert (node.memory, node.cpu.cores, node.unread) == (None, 4, tuple(found["unread"]))


# -- made-up hosts ---------------------------------------------------------------------------------


def test_cpus_are_counted_by_socket_core_and_thread(tmp_path: Path) -> None:
    cpus(tmp_path, count=8, packages=2, threads=2)
    cpu = read_survey(survey.survey(str(tmp_path)), node="n").cpu
    assert (cpu.model, cpu.packages, cpu.cores, cpu.threads) == ("Intel(R) Xeon(R) 8480C", 2, 4, 8)
    assert cpu.numa == {"0": (0, 1, 4, 5), "1": (2, 3, 6, 7)}


def test_nics_are_rdma_ports_with_their_interfaces_and_the_interfaces_that_are_none_of_theirs(tmp_path: Path) -> None:
    card = pci(tmp_path, "0000:18:00.0", numa_node="0", **PCIE)
    narrow = {**PCIE, "current_link_width": "8", "current_link_speed": "16.0 GT/s PCIe"}
    roce = pci(tmp_path, "0000:29:00.0", numa_node="1", **narrow)
    onboard = pci(tmp_path, "0000:61:00.0", numa_node="-1", current_link_width="63", max_link_width="255")
    interface(tmp_path, "ib0", card, type="32", mtu="4092", speed="400000")
    interface(tmp_path, "eth0", roce, mtu="9000")
    interface(tmp_path, "eno1", onboard, operstate="down", speed="-1")
    rdma(tmp_path, "mlx5_0", card)
    rdma(tmp_path, "mlx5_1", roce, link_layer="Ethernet", rate="200 Gb/sec (4X HDR)", state="1: DOWN")
    bridge = interface(tmp_path, "docker0", operstate="down", speed="4294967295")
    interface(tmp_path, "veth1", operstate="up", speed="10000")
    interface(tmp_path, "lo", operstate="unknown")
    (bridge.parent / "ifb0").mkdir()
    (tmp_path / "sys/class/net/bonding_masters").write_text("bond0\n")
    nics = {nic.name: nic for nic in read_survey(survey.survey(str(tmp_path)), node="n").nics}
    assert list(nics) == ["mlx5_0", "mlx5_1", "docker0", "eno1", "veth1"]
    first, second, onboard_nic = nics["mlx5_0"], nics["mlx5_1"], nics["eno1"]
    assert (first.kind, first.interface, first.up, first.rate, first.mtu) == ("infiniband", "ib0", True, 50e9, 4092)
    assert (first.numa, first.pci, first.firmware) == (0, "0000:18:00.0", "28.39.1002")
    assert (first.pcie_width, first.pcie_width_max, first.pcie_speed, first.virtual) == (16, 16, 32e9, False)
    assert (second.kind, second.interface, second.up, second.rate, second.mtu) == ("roce", "eth0", False, 25e9, 9000)
    assert (second.numa, second.pcie_width, second.pcie_speed) == (1, 8, 16e9)
    assert (onboard_nic.kind, onboard_nic.up, onboard_nic.rate) == ("ethernet", False, None)
    assert (onboard_nic.numa, onboard_nic.pcie_width, onboard_nic.pcie_width_max) == (None, None, None)
    assert {name: nic.virtual for name, nic in nics.items() if nic.virtual} == {"docker0": True, "veth1": True}
    assert (nics["docker0"].rate, nics["veth1"].rate) == (None, 1.25e9)


def test_a_device_with_two_ports_gives_two_nics_each_with_its_own_interface(tmp_path: Path) -> None:
    card = pci(tmp_path, "0000:18:00.0", **PCIE)
    interface(tmp_path, "eth8", card, dev_port="0")
    interface(tmp_path, "eth9", card, dev_port="1", mtu="9000")
    for port in ("1", "2"):
        rdma(tmp_path, "mlx4_0", card, port, link_layer="Ethernet")
    nics = read_survey(survey.survey(str(tmp_path)), node="n").nics
    assert [(nic.name, nic.interface, nic.mtu) for nic in nics] == [
        ("mlx4_0:1", "eth8", 1500),
        ("mlx4_0:2", "eth9", 9000),
    ]


def test_the_interface_that_the_port_itself_names_wins(tmp_path: Path) -> None:
    card = pci(tmp_path, "0000:18:00.0", **PCIE)
    interface(tmp_path, "eth8", card)
    interface(tmp_path, "bond0", mtu="9000")
    port = rdma(tmp_path, "mlx5_bond_0", card, link_layer="Ethernet")
    files(port / "gid_attrs/ndevs", **{"0": "bond0"})
    (nic,) = read_survey(survey.survey(str(tmp_path)), node="n").nics
    assert (nic.name, nic.interface, nic.mtu) == ("mlx5_bond_0", "bond0", 9000)


def test_a_virtio_nic_has_the_address_of_the_device_it_hangs_below(tmp_path: Path) -> None:
    card = pci(tmp_path, "0000:00:03.0", numa_node="-1")
    interface(tmp_path, "eth0", card / "virtio2", operstate="unknown", carrier="1")
    (nic,) = read_survey(survey.survey(str(tmp_path)), node="n").nics
    assert (nic.pci, nic.virtual, nic.up) == ("0000:00:03.0", False, True)


@pytest.mark.parametrize(("operstate", "carrier", "up"), [
    ("up", "1", True), ("down", "0", False), ("lowerlayerdown", "0", False), ("dormant", "1", False),
    ("unknown", "1", True), ("unknown", "0", False), ("unknown", "", None),
])  # fmt: skip
def test_a_link_is_up_down_or_not_known(tmp_path: Path, operstate: str, carrier: str, up: bool | None) -> None:
    interface(tmp_path, "eth0", operstate=operstate, carrier=carrier)
    (nic,) = read_survey(survey.survey(str(tmp_path)), node="n").nics
    assert nic.up is up


def test_gpus_are_found_on_the_bus_where_no_driver_tells_of_them(tmp_path: Path) -> None:
    pci(tmp_path, "0000:9a:00.0", vendor="0x10de", **{"class": "0x030200"}, numa_node="1", **PCIE)
    pci(tmp_path, "0000:1b:00.0", vendor="0x10de", **{"class": "0x030200"}, numa_node="0", **PCIE)
    pci(tmp_path, "0000:1c:00.0", vendor="0x10de", **{"class": "0x068000"})  # an NVSwitch
    pci(tmp_path, "0000:03:00.0", vendor="0x1002", **{"class": "0x030000"})  # graphics inside a CPU
    gpus = read_survey(survey.survey(str(tmp_path)), node="n").gpus
    assert [(gpu.index, gpu.pci, gpu.numa, gpu.pcie_width, gpu.model, gpu.memory) for gpu in gpus] == [
        (0, "0000:1b:00.0", 0, 16, None, None),
        (1, "0000:9a:00.0", 1, 16, None, None),
    ]


def test_amd_gpus_tell_their_memory_by_themselves(tmp_path: Path) -> None:
    pci(tmp_path, "0000:05:00.0", vendor="0x1002", **{"class": "0x120000"}, mem_info_vram_total=str(192 * 2**30))
    (gpu,) = read_survey(survey.survey(str(tmp_path)), node="n").gpus
    assert gpu.memory == 192 * 2**30


def test_the_distribution_and_loaded_drivers_are_told(tmp_path: Path) -> None:
    files(tmp_path / "etc", **{"os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.4 LTS"'})
    files(tmp_path / "sys/module/mlx5_core", version="23.10-2.1.3")
    files(tmp_path / "sys/module/nvidia", version="550.90.07")
    node = read_survey(survey.survey(str(tmp_path)), node="n")
    assert (node.versions["distribution"], node.versions["mlx5_core"]) == ("Ubuntu 22.04.4 LTS", "23.10-2.1.3")
    assert (node.driver, "nvidia_module" in node.versions) == ("550.90.07", False)


# -- control groups ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("membership", "limits", "memory", "quota"), [
    ("0::/user/job", {"user/job/memory.max": "1024", "user/job/cpu.max": "150000 100000"}, 1024, 1.5),
    ("0::/user/job", {"user/memory.max": "2048", "user/job/memory.max": "max", "user/cpu.max": "max 100"}, 2048, None),
    ("0::/user/job", {"memory.max": "512", "user/job/memory.max": "4096"}, 512, None),
    ("0::/../../job", {"job/memory.max": "77"}, 77, None),
    ("4:memory:/slurm/7\n3:cpu,cpuacct:/slurm/7",
     {"memory/slurm/7/memory.limit_in_bytes": "4096", "memory/memory.limit_in_bytes": "9223372036854771712",
      "cpu/slurm/7/cpu.cfs_quota_us": "400000", "cpu/slurm/7/cpu.cfs_period_us": "100000",
      "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 4096, 4.0),
    ("4:memory:/\n3:cpu:/", {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/cpu.cfs_quota_us": "-1"},
     None, None),
    ("", {}, None, None),
])  # fmt: skip
def test_the_tightest_control_group_binds(
    tmp_path: Path, membership: str, limits: dict[str, str], memory: int | None, quota: float | None
) -> None:
    files(tmp_path / "proc/self", cgroup=membership)
    for path, content in limits.items():
        files((tmp_path / "sys/fs/cgroup" / path).parent, **{Path(path).name: content})
    node = read_survey(survey.survey(str(tmp_path)), node="n")
    assert (node.memory_limit, node.cpu.quota, node.unread) == (memory, quota, ())
