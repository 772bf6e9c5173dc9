"""What a node is made of, as it was found there: GPUs, NICs, CPUs, limits, versions.

Every field that could not be read is None (or empty), and `NodeHardware.unread` says why; unknown
is never zero. Rates are bytes per second, memory is bytes, clocks are Hz, power is watts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# Classes of the path between two devices, nearest first, as `nvidia-smi topo -m` names them: one
# PCIe switch, several switches, the host bridge, across host bridges of one NUMA node, across
# sockets. NVLink (NV#) and XGMI stand before all of them; PCIE is a way over PCIe that is not told closer.
PathClass = Literal["X", "NV", "XGMI", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE"]
PATH_CLASSES: tuple[PathClass, ...] = ("X", "NV", "XGMI", "PIX", "PXB", "PHB", "NODE", "SYS", "PCIE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """The way between two devices of one node, both by name (``GPU0``, ``NIC3``).

    `lanes` is the number of NVLinks bonded, 0 for any other class. `hops` and `weight` are what AMD's
    driver gives a path.
    """

    one: str
    other: str
    kind: PathClass
    lanes: int = 0
    hops: int | None = None
    weight: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One device. `throttle` holds the active reasons that slow it down against its will.

    `pcie_width` and `pcie_generation` are what the link runs at, ``*_max`` what both ends could.
    `uncorrected` counts ECC errors that could not be corrected, since the driver was loaded.
    `cpus` are the logical CPUs the driver calls near.
    """

    index: int
    model: str | None = None
    uuid: str | None = None
    pci: str | None = None
    memory: int | None = None
    numa: int | None = None
    cpus: tuple[int, ...] = ()
    mig: bool | None = None
    ecc: bool | None = None
    uncorrected: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    clock: float | None = None
    clock_max: float | None = None
    memory_clock: float | None = None
    memory_clock_max: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperature: float | None = None
    throttle: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"GPU{self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """One network port. `name` is the RDMA device where there is one (``mlx5_0``), else the interface.

    `kind` is ``rdma`` where the kind of link below the RDMA device is not told.
    `label` is the name a topology matrix gives it (``NIC0``). `up` is None where it is not known.
    `pcie_speed` is in transfers per second and lane. `virtual` is true for bridges, veth pairs,
    tunnels: no hardware behind them.
    """

    name: str
    kind: Literal["infiniband", "roce", "ethernet", "rdma"] = "ethernet"
    label: str | None = None
    interface: str | None = None
    up: bool | None = None
    rate: float | None = None
    mtu: int | None = None
    numa: int | None = None
    pci: str | None = None
    firmware: str | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_speed: float | None = None
    virtual: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpu:
    """`packages` sockets, `cores` physical cores, `threads` logical CPUs; `numa` maps a NUMA node to its CPUs.

    `quota` is the number of CPUs a cgroup allows, None without a limit.
    """

    model: str | None = None
    packages: int | None = None
    cores: int | None = None
    threads: int | None = None
    numa: dict[str, tuple[int, ...]] = field(default_factory=dict)
    quota: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeLinks:
    """What one captured text tells of the devices of a node and the paths between them.

    `gpus` and `nics` are None where the text does not list them: not reported is not none.
    `problems` says what is cut off, left out or doubtful.
    """

    gpus: tuple[Gpu, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    paths: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return not self.problems


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverReport:
    """What the driver's own tool tells of all GPUs of a node; `problems` as in `NodeLinks`."""

    driver: str | None = None
    cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHardware:
    """One node as it was found. `host` is what the machine calls itself, `memory` its RAM in bytes.

    `peer_access` says of each pair of GPUs (``GPU0-GPU1``) whether they read each other's memory: ``OK``, or why not in
    the driver's letters. `memory_limit` is a cgroup's limit. `settings` is what steers NCCL and gloo there: variables
    and the content of the files NCCL reads. `unread` says what could not be read and why.
    """

    node: str
    host: str
    cpu: Cpu = field(default_factory=Cpu)
    memory: int | None = None
    memory_limit: int | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    paths: tuple[Path, ...] = ()
    peer_access: dict[str, str] = field(default_factory=dict)
    driver: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    def nearest_nics(self, gpu: int) -> tuple[tuple[str, ...], PathClass | None]:
        """The NICs nearest to a GPU, all of a tie, and the class of the path; nothing and None if unknown."""
        mine = {f"GPU{gpu}"}
        labels = {nic.label or nic.name: nic.name for nic in self.nics}
        found = [
            (PATH_CLASSES.index(path.kind), labels[other], path.kind)
            for path in self.paths
            for one, other in ((path.one, path.other), (path.other, path.one))
            if one in mine and other in labels
        ]
        if not found:
            return (), None
        best, _name, kind = min(found)
        return tuple(dict.fromkeys(name for rank, name, _kind in found if rank == best)), kind

    def told_nccl(self, variable: str) -> str | None:
        """The value of one of NCCL's variables here, as NCCL finds it; None if nothing sets it."""
        if variable in self.settings:
            return self.settings[variable]
        for file in ("~/.nccl.conf", "/etc/nccl.conf"):
            for line in self.settings.get(file, "").splitlines():
                name, _, value = line.partition("=")
                if name.strip() == variable:
                    return value.strip()
        return None
