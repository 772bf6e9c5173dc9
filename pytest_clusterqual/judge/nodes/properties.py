"""What nodes are compared by, and how each of these things is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_clusterqual import units
from pytest_clusterqual.model.hardware import Gpu, Nic, NodeHardware

Value = float | str
Values = Sequence[Value | None]


def _nothing(_node: NodeHardware) -> list[str]:
    return []


@dataclass(frozen=True, kw_only=True, slots=True)
class Property:
    """One thing that should be alike on all nodes.

    `of` gives its value on each device of a node (one value if it is about the node itself): None
    is not known, nothing at all means there is no such device. Numbers within `tolerance`, a share,
    are alike. `wrong` says what is a fault even where all nodes agree. `key` is what the project
    file calls it. `said` makes a phrase of what `show` shows: ``driver {}``.
    """

    quantity: str
    of: Callable[[NodeHardware], Values]
    check_next: str
    key: str = ""
    said: str = "{}"
    show: Callable[[Value], str] = str
    tolerance: float = 0.0
    wrong: Callable[[NodeHardware], list[str]] = field(default=_nothing)
    wanted: str = "alike"
    fine: str = ""


def properties(nodes: Iterable[NodeHardware], clock_tolerance: float | None) -> Iterator[Property]:
    """All that these nodes can be compared by."""
    nodes = tuple(nodes)
    yield from _GPU_PROPERTIES
    if clock_tolerance is not None:
        yield Property(
            quantity="gpu clock", of=_each_gpu(lambda gpu: gpu.clock), show=_megahertz, said="a GPU at {}",
            tolerance=clock_tolerance, wanted=f"within {units.show_share(clock_tolerance)}",
            check_next="nvidia-smi -q -d CLOCK,PERFORMANCE there: clocks set by hand, heat, power",
        )  # fmt: skip
    yield from _NODE_PROPERTIES
    yield from _NIC_PROPERTIES
    for name in sorted({name for node in nodes for name in node.versions}):
        yield _version(name)
    for name in sorted({name for node in nodes for name in node.settings}):
        yield _setting(name)


def with_fabric_nics(nodes: Iterable[NodeHardware], promised: int | None) -> tuple[NodeHardware, ...]:
    """The nodes with only those NICs that training may use.

    RDMA ports if any node has one, else interfaces with hardware behind them, else the virtual
    ones. Where as many as `promised` have a link, the rest are spare ports and left out.
    """
    nodes = tuple(nodes)
    kinds: tuple[Callable[[Nic], bool], ...] = (is_rdma, lambda nic: not nic.virtual, lambda nic: True)
    chosen = next((kind for kind in kinds if any(kind(nic) for node in nodes for nic in node.nics)), is_rdma)
    made = []
    for node in nodes:
        nics = tuple(nic for nic in node.nics if chosen(nic))
        linked = tuple(nic for nic in nics if nic.up is not False)
        made.append(replace(node, nics=linked if promised is not None and len(linked) >= promised else nics))
    return tuple(made)


def is_rdma(nic: Nic) -> bool:
    return nic.kind != "ethernet" and not nic.virtual


def _each_gpu(value: Callable[[Gpu], Value | None]) -> Callable[[NodeHardware], Values]:
    return lambda node: [value(gpu) for gpu in node.gpus]


def _each_nic(value: Callable[[Nic], Value | None]) -> Callable[[NodeHardware], Values]:
    """Of those with a link: without one a NIC tells a rate that nobody gets."""
    return lambda node: [value(nic) for nic in node.nics if nic.up is not False]


def _switch(state: bool | None) -> str | None:
    return None if state is None else "on" if state else "off"


def _megahertz(value: Value) -> str:
    return f"{float(value) / 1e6:.4g} MHz"


def _watts(value: Value) -> str:
    return f"{float(value):g} W"


def _bytes(value: Value) -> str:
    return units.show(float(value), units.BYTES)


def _bits(value: Value) -> str:
    return f"{float(value) * 8 / 1e9:g} Gbit/s"


def _count(value: Value) -> str:
    return f"{float(value):g}"


def _lanes(value: Value) -> str:
    return f"x{float(value):g}"


def _transfers(value: Value) -> str:
    return f"{float(value) / 1e9:g} GT/s"


def _widths(node: NodeHardware) -> Values:
    """Of the devices that tell it: not every NIC hangs on PCI Express."""
    devices: tuple[Gpu | Nic, ...] = (*node.gpus, *node.nics)
    return [device.pcie_width for device in devices if device.pcie_width] or ([None] if devices else [])


def _narrow(node: NodeHardware) -> list[str]:
    devices: tuple[Gpu | Nic, ...] = (*node.gpus, *node.nics)
    return [
        f"{device.name} runs on {device.pcie_width} of {device.pcie_width_max} PCIe lanes"
        for device in devices
        if device.pcie_width and device.pcie_width_max and device.pcie_width < device.pcie_width_max
    ]


def _throttled(node: NodeHardware) -> list[str]:
    return [f"{gpu.name} is throttled ({', '.join(gpu.throttle)})" for gpu in node.gpus if gpu.throttle]


def _broken(node: NodeHardware) -> list[str]:
    return [f"{gpu.name} has {gpu.uncorrected} uncorrected ECC errors" for gpu in node.gpus if gpu.uncorrected]


def _without_link(node: NodeHardware) -> list[str]:
    return [f"{nic.name} has no link" for nic in node.nics if nic.up is False and is_rdma(nic)]


def _links_between_gpus(node: NodeHardware) -> Values:
    """The class of each path, with its number of NVLinks; not known where several GPUs have no path."""
    names = {gpu.name for gpu in node.gpus}
    found = [f"{path.kind}{path.lanes or ''}" for path in node.paths if {path.one, path.other} <= names]
    return found or ([None] if len(names) > 1 else [])


def _peer_access(node: NodeHardware) -> Values:
    """Of each pair of GPUs, in the driver's letters."""
    return (list(node.peer_access.values()) or [None]) if len(node.gpus) > 1 else []


def _nearest_nics(node: NodeHardware) -> Values:
    """The class of the path from each GPU to the NIC nearest to it."""
    return [node.nearest_nics(gpu.index)[1] for gpu in node.gpus] if node.nics else []


def _cpu(node: NodeHardware) -> Values:
    cpu = node.cpu
    if cpu.model is None or cpu.threads is None:
        return [None]
    return [f"{cpu.packages or '?'} x {cpu.model} with {cpu.threads} threads"]


def _version(name: str) -> Property:
    def of(node: NodeHardware) -> Values:
        return [node.versions.get(name, "none") if node.versions else None]

    return Property(
        quantity=f"version {name}", of=of, said=f"{name} {{}}",
        check_next=f"which {name} is installed there, and from where",
    )  # fmt: skip


def _setting(name: str) -> Property:
    def of(node: NodeHardware) -> Values:
        return [" ".join(node.settings[name].split())[:200] if name in node.settings else "not set"]

    return Property(
        quantity=f"setting {name}", of=of, said=f"{name} {{}}",
        check_next="who sets it there: the shell's start files, /etc/environment, a module, an image",
    )  # fmt: skip


_GPU_PROPERTIES = (
    Property(
        quantity="gpus per node", key="gpus_per_node", of=lambda node: [len(node.gpus)], show=_count, said="{} GPUs",
        check_next="nvidia-smi -L and the kernel's log there (Xid 79: a GPU has fallen off the bus)",
    ),
    Property(
        quantity="gpu model", key="gpu", of=_each_gpu(lambda gpu: gpu.model), said="{}",
        check_next="nvidia-smi -L there, and what was ordered",
    ),
    Property(
        quantity="gpu memory", key="gpu_memory", of=_each_gpu(lambda gpu: gpu.memory), show=_bytes,
        said="{} of GPU memory", tolerance=0.01, check_next="nvidia-smi -q -d MEMORY,ECC there: the model, ECC, MIG",
    ),
    Property(
        quantity="driver", of=lambda node: [node.driver] if node.gpus else [], said="driver {}",
        check_next="install one driver on all nodes, and restart what still has the old one loaded",
    ),
    Property(
        quantity="gpu max clock", of=_each_gpu(lambda gpu: gpu.clock_max), show=_megahertz, said="GPUs of up to {}",
        check_next="nvidia-smi -q -d CLOCK there: another model, or another VBIOS",
    ),
    Property(
        quantity="power limit", of=_each_gpu(lambda gpu: gpu.power_limit), show=_watts, said="a power limit of {}",
        check_next="nvidia-smi -q -d POWER there: who has set another limit",
    ),
    Property(
        quantity="ecc mode", of=_each_gpu(lambda gpu: _switch(gpu.ecc)), said="ECC {}",
        check_next="nvidia-smi -e 1 there, then a reset of the GPU",
    ),
    Property(
        quantity="mig mode", of=_each_gpu(lambda gpu: _switch(gpu.mig)), said="MIG {}",
        check_next="nvidia-smi -mig 0 there, unless the job is meant for slices",
    ),
    Property(
        quantity="ecc errors", of=_each_gpu(lambda gpu: None if gpu.uncorrected is None else "known"), wrong=_broken,
        wanted="none", fine="no GPU has uncorrected ECC errors",
        check_next="nvidia-smi -q -d ECC,ROW_REMAPPER there; reset the GPU, and replace it if they come back",
    ),
    Property(
        quantity="throttle", of=_each_gpu(lambda gpu: None if gpu.clock is None else "known"), wrong=_throttled,
        wanted="none", fine="no GPU is throttled",
        check_next="nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE there: air, dust, power supplies, a power limit",
    ),
    Property(
        quantity="gpu links", of=_links_between_gpus, said="GPUs joined by {}",
        check_next="nvidia-smi nvlink -s there: links that are down",
    ),
    Property(
        quantity="gpu peer access", of=_peer_access, said="GPUs whose access to each other is {}",
        check_next="nvidia-smi topo -p2p r there; CNS: ACS and the IOMMU in the BIOS; NVLinks that are down, MIG",
    ),
    Property(
        quantity="gpu to nic paths", of=_nearest_nics, said="GPUs whose nearest NIC is {} away",
        check_next="nvidia-smi topo -m there: a card in another slot, PCIe switches, ACS",
    ),
)  # fmt: skip
_NODE_PROPERTIES = (
    Property(quantity="cpu", of=_cpu, said="{}", check_next="lscpu there: the model, SMT in the BIOS"),
    Property(
        quantity="cores per node", key="cores_per_node", of=lambda node: [node.cpu.cores], show=_count, said="{} cores",
        check_next="lscpu there: cores switched off in the BIOS, offline CPUs",
    ),
    Property(
        quantity="numa nodes", key="numa_nodes", of=lambda node: [len(node.cpu.numa) or None], show=_count,
        said="{} NUMA nodes", check_next="numactl -H there, and NPS or SNC in the BIOS",
    ),
    Property(
        quantity="memory", key="memory", of=lambda node: [node.memory], show=_bytes, said="{} of memory",
        tolerance=0.01, check_next="dmidecode -t memory there: a module that is missing or was disabled",
    ),
)  # fmt: skip
_NIC_PROPERTIES = (
    Property(
        quantity="nics per node", key="nics_per_node", of=lambda node: [len(node.nics)], show=_count, said="{} NICs",
        check_next="lspci and the kernel's log there: a card that is missing, or without its driver",
    ),
    Property(
        quantity="nic up", of=lambda node: [sum(nic.up is False for nic in node.nics)] if node.nics else [],
        show=_count, said="{} NICs without a link", wrong=_without_link,
        check_next="cable, transceiver and switch port; ibstat or ethtool there",
    ),
    Property(
        quantity="nic rate", key="nic_rate", of=_each_nic(lambda nic: nic.rate), show=_bits, said="NICs at {}",
        check_next="cable, transceiver and switch port: the link was trained at another rate",
    ),
    Property(
        quantity="nic mtu", key="mtu", of=_each_nic(lambda nic: nic.mtu), show=_count, said="MTU {}",
        check_next="ip link there, and the switch: packets above the smallest MTU of a path are lost",
    ),
    Property(
        quantity="nic firmware", of=_each_nic(lambda nic: nic.firmware), said="NIC firmware {}",
        check_next="update the firmware where it is old",
    ),
    Property(
        quantity="pcie width", wrong=_narrow, show=_lanes, said="PCIe links of {}",
        of=_widths,
        check_next="lspci -vv there (LnkSta): reseat the card or its riser, look for corrected errors",
    ),
    Property(
        quantity="nic pcie speed", of=_each_nic(lambda nic: nic.pcie_speed), show=_transfers, said="NICs on PCIe at {}",
        check_next="lspci -vv there (LnkSta): reseat the card, look at the slot's setting in the BIOS",
    ),
)  # fmt: skip
