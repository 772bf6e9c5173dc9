"""A made-up host as files below a folder: what the kernel would show of it in /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

PCIE = {"current_link_width": "16", "max_link_width": "16", "current_link_speed": "32.0 GT/s PCIe",
        "max_link_speed": "32.0 GT/s PCIe"}  # fmt: skip


def files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(content + "\n")


def pci(root: Path, address: str, **contents: str) -> Path:
    """A device of the PCI bus, as below its bridge."""
    device = root / "sys/devices/pci0000:00/0000:00:01.0" / address
    files(device, **contents)
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    (bus / address).symlink_to(os.path.relpath(device, bus))
    return device


def interface(root: Path, name: str, device: Path | None = None, **contents: str) -> Path:
    """A network interface; one without a device hangs in the air, as bridges do."""
    folder = (device / "net" if device else root / "sys/devices/virtual/net") / name
    usual = {"operstate": "up", "carrier": "1", "speed": "25000", "mtu": "1500", "type": "1", "dev_port": "0"}
    files(folder, **{**usual, **contents})
    if device:
        (folder / "device").symlink_to(device)
    named = root / "sys/class/net"
    named.mkdir(parents=True, exist_ok=True)
    (named / name).symlink_to(folder)
    return folder


def rdma(root: Path, name: str, device: Path, port: str = "1", **contents: str) -> Path:
    """A port of an RDMA device."""
    top = root / "sys/class/infiniband" / name
    usual = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    files(top / "ports" / port, **{**usual, **contents})
    files(top, fw_ver="28.39.1002")
    if not (top / "device").exists():
        (top / "device").symlink_to(device)
    return top / "ports" / port


def cpus(root: Path, count: int = 8, packages: int = 2, threads: int = 2) -> None:
    """`count` logical CPUs on `packages` sockets, each socket a NUMA node."""
    cores, places = count // threads, root / "sys/devices/system"
    for cpu in range(count):
        core = cpu % cores
        place = {"physical_package_id": str(core * packages // cores), "core_id": str(core % (cores // packages))}
        files(places / f"cpu/cpu{cpu}/topology", **place)
    files(places / "cpu", online=f"0-{count - 1}")
    for package in range(packages):
        share = [str(cpu) for cpu in range(count) if (cpu % cores) * packages // cores == package]
        files(places / f"node/node{package}", cpulist=",".join(share))
    files(root / "proc", cpuinfo="processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) 8480C",
          meminfo="MemTotal:       2113345988 kB\nMemFree: 1 kB\nMemAvailable:   1000000 kB")  # fmt: skip
