"""The line that `launch.survey` prints on a node, as words: its hardware, and what a user finds there.

The form is this package's own and is read strictly. What another program printed inside it is
not: a broken nvidia-smi is a reason in `unread`, never an end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Cpu, DriverReport, Gpu, Nic, NodeHardware, NodeLinks
from pytest_clusterqual.model.host_check import HostCheck
from pytest_clusterqual.read.captured import beginning, cpu_list, whole_number
from pytest_clusterqual.read.nccl_paths import with_paths_of
from pytest_clusterqual.read.nccl_topology import read_nccl_topology
from pytest_clusterqual.read.nvidia_smi import read_nvidia_smi
from pytest_clusterqual.read.nvidia_topo import read_p2p_matrix, read_topology_matrix
from pytest_clusterqual.read.rocm_topology import read_rocm_topology
from pytest_clusterqual.read.survey_form import Command, Cpus, Interface, Pci, Port, Survey, read_form

_WIDEST = 32  # PCI Express lanes; sysfs writes 0, 63 or 255 where there is no such link
_ROCM_NAME = re.compile(r"^GPU\[(\d{1,3})\]\s*:\s*Card series:\s*(\S.*?)\s*$", re.IGNORECASE | re.MULTILINE)
T = TypeVar("T", DriverReport, NodeLinks)


def read_survey(survey: str | Mapping[str, Any], *, node: str) -> NodeHardware:
    """What `node` is made of.

    Raises:
        ReadError: this is not the line of a survey, or one of another version.
    """
    form = read_form(survey, node)
    unread = list(form.unread)
    driver = _read(form.nvidia_smi, "nvidia-smi -q -x", read_nvidia_smi, unread)
    links = _read(form.nvidia_topo, "nvidia-smi topo -m", read_topology_matrix, unread)
    links = links or _read(form.rocm_topo, "rocm-smi --showtopo", read_rocm_topology, unread)
    for_nccl = _read(form.nccl_topology, "NCCL's topology file", read_nccl_topology, unread)
    gpus = _gpus(form, driver, links, unread)
    versions = dict(form.versions or {})
    modules = [versions.pop(name, None) for name in ("nvidia_module", "amdgpu_module")]
    if driver and driver.cuda:
        versions["cuda_driver"] = driver.cuda
    found = NodeHardware(
        node=node,
        host=form.host.name if form.host else node,
        cpu=_cpu(form.cpu),
        memory=form.memory.total if form.memory else None,
        memory_limit=form.memory.limit if form.memory else None,
        gpus=gpus,
        nics=_nics(form, links),
        paths=links.paths if links else (),
        peer_access=_peers(form.nvidia_p2p, unread) if len(gpus) > 1 else {},
        driver=(driver and driver.driver) or next(filter(None, modules), None),
        versions=versions,
        settings=form.settings or {},
        unread=tuple(unread),
    )
    return with_paths_of(found, for_nccl) if for_nccl else found


def read_host_check(
    survey: str | Mapping[str, Any], *, node: str, clock_offset: float | None = None, clock_error: float = 0.0
) -> HostCheck:
    """What a user finds on `node`, with the clock as its asker saw it (seconds ahead, known to +- the error).

    Raises:
        ReadError: this is not the line of a survey, or one of another version.
    """
    form = read_form(survey, node)
    versions, limits, host = form.versions or {}, form.limits, form.host
    return HostCheck(
        node=node,
        host=host.name if host else node,
        user=host.user if host else None,
        executable=host.executable if host else None,
        boot=host.boot if host else None,
        python=versions.get("python"),
        torch=versions.get("torch"),
        package=versions.get("pytest_clusterqual"),
        distribution=versions.get("distribution"),
        kernel=versions.get("kernel"),
        cpus=len(form.cpu.affinity) if form.cpu else None,
        open_files=_limit(limits.open_files) if limits else None,
        open_files_hard=_limit(limits.open_files_hard) if limits else None,
        memlock=_limit(limits.memlock) if limits else None,
        shm=form.shm,
        temp=form.temp,
        cwd=form.cwd,
        reverse_dns=form.reverse_dns.seconds if form.reverse_dns else None,
        clock_offset=clock_offset,
        clock_error=clock_error,
        settings=form.settings or {},
        unread=form.unread,
    )


def _read(said: Command | None, what: str, reader: Callable[[str], T], unread: list[str]) -> T | None:
    """What a reader makes of a program's output; why it could not goes to `unread`."""
    try:
        found = reader(text) if (text := _text(said, what, unread)) else None
    except ReadError as error:
        unread.append(str(error))
        return None
    unread += [f"{what}: {problem}" for problem in found.problems] if found else []
    return found


def _text(said: Command | None, what: str, unread: list[str]) -> str:
    """What a program said, if there is one; that it failed goes to `unread`."""
    if said is None:
        return ""
    if said.code != 0:
        reason = said.error or beginning(said.stdout)
        unread.append(f"{what}: {reason}" if said.code is None else f"{what}: exit code {said.code}: {reason}")
    return said.stdout if said.stdout.strip() else ""


def _peers(said: Command | None, unread: list[str]) -> dict[str, str]:
    """Pair of GPUs -> whether both read each other's memory."""
    try:
        text = _text(said, "nvidia-smi topo -p2p r", unread)
        found = read_p2p_matrix(text) if text else {}
    except ReadError as error:
        unread.append(str(error))
        return {}
    pairs = [pair for pair in found if (len(pair[0]), pair[0]) < (len(pair[1]), pair[1])]  # GPU10 comes after GPU9
    both = {pair: {found[pair], found.get(pair[::-1], found[pair])} for pair in pairs}
    return {"-".join(pair): "/".join(sorted(told)) for pair, told in both.items()}


def _limit(number: int) -> float:
    return math.inf if number < 0 else float(number)


def _cpu(found: Cpus | None) -> Cpu:
    if found is None:
        return Cpu()
    return Cpu(
        model=found.model,
        packages=found.packages,
        cores=found.cores,
        threads=len(cpu_list(found.online or "")) or None,
        numa={number: cpu_list(cpus) for number, cpus in sorted(found.numa.items())},
        quota=found.quota,
    )


def _gpus(form: Survey, driver: DriverReport | None, links: NodeLinks | None, unread: list[str]) -> tuple[Gpu, ...]:
    """The GPUs the driver tells of; without it those on the PCI bus, of which little but their number is known."""
    on_bus = tuple(_accelerators(form))
    gpus = driver.gpus if driver and driver.gpus else on_bus
    if len(gpus) < len(on_bus):
        unread.append(f"the driver tells of {len(gpus)} GPUs, {len(on_bus)} are on the PCI bus")
    places = {gpu.index: gpu for gpu in (links.gpus if links and links.gpus else ())}
    return tuple(_placed(gpu, places.get(gpu.index)) for gpu in gpus)


def _placed(gpu: Gpu, place: Gpu | None) -> Gpu:
    if place is None:
        return gpu
    return replace(gpu, numa=place.numa if gpu.numa is None else gpu.numa, cpus=gpu.cpus or place.cpus)


def _accelerators(form: Survey) -> Iterator[Gpu]:
    names = {int(index): name for index, name in _ROCM_NAME.findall(form.rocm_names.stdout if form.rocm_names else "")}
    for index, found in enumerate(form.accelerators or ()):
        pci = found.pci
        yield Gpu(
            index=index,
            model=names.get(index),
            pci=pci.address if pci else None,
            numa=whole_number(pci.numa_node) if pci else None,
            memory=whole_number(found.memory),
            pcie_width=_width(pci.current_link_width) if pci else None,
            pcie_width_max=_width(pci.max_link_width) if pci else None,
        )


def _nics(form: Survey, links: NodeLinks | None) -> tuple[Nic, ...]:
    """RDMA ports first, then the interfaces that are none of theirs, with the labels of a topology matrix."""
    ports = form.infiniband or ()
    interfaces = {interface.name: interface for interface in form.net or ()}
    nics = [_of_port(port, ports, interfaces.get(port.interface or "")) for port in ports]
    taken = {port.interface for port in ports} | {port.pci.address for port in ports if port.pci}
    nics += [
        _of_interface(interface)
        for interface in interfaces.values()
        if interface.name not in taken and (interface.pci is None or interface.pci.address not in taken)
    ]
    labelled = {nic.name: nic for nic in (links.nics if links and links.nics else ())}
    found = [replace(nic, label=labelled[nic.name].label) if nic.name in labelled else nic for nic in nics]
    known = {nic.name for nic in nics}
    return (*found, *(nic for nic in labelled.values() if nic.name not in known))


def _of_port(port: Port, ports: Sequence[Port], interface: Interface | None) -> Nic:
    several = sum(other.device == port.device for other in ports) > 1
    rate = re.match(r"([0-9.]{1,8}) Gb/sec", port.rate or "")
    layer = port.link_layer or ""
    return Nic(
        name=f"{port.device}:{port.port}" if several else port.device,
        kind="infiniband" if layer == "InfiniBand" else "roce" if layer == "Ethernet" else "rdma",
        interface=port.interface,
        up=None if port.state is None else "ACTIVE" in port.state,
        rate=_float(rate[1] if rate else None, 1e9 / 8),
        mtu=whole_number(interface.mtu) if interface else None,
        firmware=port.firmware,
        virtual=port.pci is None,
        **_bus(port.pci),
    )


def _of_interface(interface: Interface) -> Nic:
    up = {"up": True, "unknown": {"1": True, "0": False}.get(interface.carrier or "")}
    speed = whole_number(interface.speed)
    return Nic(
        name=interface.name,
        kind="infiniband" if interface.type == "32" else "ethernet",  # ARPHRD_INFINIBAND: IP over InfiniBand
        interface=interface.name,
        up=None if interface.operstate is None else up.get(interface.operstate, False),
        rate=speed * 1e6 / 8 if speed and speed < 2**31 else None,  # -1 in an unsigned number: not known
        mtu=whole_number(interface.mtu),
        virtual=not interface.device,
        **_bus(interface.pci),
    )


def _bus(pci: Pci | None) -> dict[str, Any]:
    if pci is None:
        return {}
    speed = re.match(r"([0-9.]{1,6}) GT/s", pci.current_link_speed or "")
    return {
        "pci": pci.address,
        "numa": whole_number(pci.numa_node),
        "pcie_width": _width(pci.current_link_width),
        "pcie_width_max": _width(pci.max_link_width),
        "pcie_speed": _float(speed[1] if speed else None, 1e9),
    }


def _width(text: str | None) -> int | None:
    lanes = whole_number(text)
    return lanes if lanes and lanes <= _WIDEST else None


def _float(text: str | None, factor: float) -> float | None:
    try:
        return float(text or "") * factor or None
    except ValueError:
        return None
