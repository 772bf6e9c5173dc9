"""NCCL's topology XML: what NCCL dumped (`NCCL_TOPO_DUMP_FILE`), or a file made for `NCCL_TOPO_FILE`.

A file made by hand often declares the PCI tree only, and NCCL adds GPUs, NICs and NVLinks when it
runs. What such a file is silent about is not reported; it is not zero.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Gpu, Nic, NodeLinks, Path, PathClass
from pytest_clusterqual.read.captured import whole_number, xml_root

_WHAT = "NCCL topology"
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASSES = ("0x0200", "0x0207")
_INFINIBAND = "0x0207"
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
_DEPTH = 32
_MOST = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class _Device:
    """An element with its place: which ``<cpu>``, its NUMA node, and the PCI switches from there on down."""

    element: Element
    cpu: int
    numa: int | None
    switches: tuple[Element, ...]


def read_nccl_topology(text: str) -> NodeLinks:
    """GPUs and NICs with PCI address, NUMA node and rate, and the paths that the file tells.

    GPU to NIC follows the tree: PIX below one PCI switch, PXB over several, PHB through the same
    CPU (the file does not tell its host bridges apart), SYS to another. GPU to GPU is only told by
    a dump. GPUs keep NCCL's numbers, else they are numbered by PCI address as the driver does.
    The PCIe link is what both ends could do.

    Raises:
        ReadError: not such XML, an entity, or several nodes in one file.
    """
    root = xml_root(text, _WHAT, "system")
    hosts = {cpu.get("host_hash") for cpu in root.findall("cpu")}
    if len(hosts) > 1:
        raise ReadError(f"{_WHAT}: got {len(hosts)} nodes in one file, want the file of one node")
    devices = list(_devices(root))
    gpus, problems = _numbered([device for device in devices if _is_gpu(device.element)])
    ports = list(_ports([device for device in devices if _is_nic(device.element)]))
    if max(len(gpus), len(ports)) > _MOST:
        raise ReadError(f"{_WHAT}: {len(gpus)} GPUs and {len(ports)} NICs, at most {_MOST} of each are read")
    if unclassed := sum(_is_unclassed(device.element) for device in devices):
        problems.append(f"{unclassed} PCI devices have no class: which of them are GPUs or NICs is not reported")
    problems += [f"no {kind} is reported" for kind, some in (("GPU", gpus), ("NIC", ports)) if not some]
    paths = [
        Path(one=gpu.name, other=nic.name, kind=_over_pci(here, there)) for gpu, here in gpus for nic, there in ports
    ]
    return NodeLinks(
        gpus=tuple(gpu for gpu, _device in gpus) or None,
        nics=tuple(nic for nic, _place in ports) or None,
        paths=(*_between_gpus(gpus), *paths),
        problems=tuple(problems),
    )


def _devices(root: Element) -> Iterator[_Device]:
    """What ends the PCI trees, and NICs that hang on a CPU without PCI."""
    for number, cpu in enumerate(root.findall("cpu")):
        waiting = [_Device(element=cpu, cpu=number, numa=whole_number(cpu.get("numaid")), switches=())]
        while waiting:
            at = waiting.pop()
            below = () if at.element is cpu else (*at.switches, at.element)
            if len(below) > _DEPTH:
                raise ReadError(f"{_WHAT}: PCI switches nested deeper than {_DEPTH} levels")
            inner = [child for child in at.element if child.tag == "pci" or (at.element is cpu and child.tag == "nic")]
            waiting += [_Device(element=child, cpu=number, numa=at.numa, switches=below) for child in reversed(inner)]
            if at.element is not cpu and (not inner or _is_gpu(at.element) or _is_nic(at.element)):
                yield at


def _is_gpu(element: Element) -> bool:
    return element.get("class", "").startswith(_GPU_CLASSES) or element.find("gpu") is not None


def _is_nic(element: Element) -> bool:
    return element.tag == "nic" or element.get("class", "").startswith(_NIC_CLASSES) or element.find("nic") is not None


def _is_unclassed(element: Element) -> bool:
    return not (element.get("class") or _is_gpu(element) or _is_nic(element))


def _numbered(devices: list[_Device]) -> tuple[list[tuple[Gpu, _Device]], list[str]]:
    by_address = sorted(devices, key=lambda device: device.element.get("busid", "").lower())
    told = [whole_number(gpu.get("dev")) for device in by_address for gpu in device.element.findall("gpu")]
    numbers = [number for number in told if number is not None]
    problems = []
    if len(set(numbers)) < len(devices) or len(told) > len(devices):
        if told:
            problems.append("GPUs are not numbered once each: numbered by PCI address here")
        numbers = list(range(len(devices)))
    made = [(_gpu(number, at.element, at.numa), at) for number, at in zip(numbers, by_address, strict=True)]
    return sorted(made, key=lambda pair: pair[0].index), problems


def _gpu(index: int, element: Element, numa: int | None) -> Gpu:
    speed = re.match(r"[0-9]{1,3}(?:\.[0-9])?", element.get("link_speed", ""))
    return Gpu(
        index=index,
        pci=element.get("busid"),
        numa=numa,
        pcie_generation_max=_GENERATIONS.get(float(speed[0])) if speed else None,
        pcie_width_max=whole_number(element.get("link_width")),
    )


def _ports(devices: list[_Device]) -> Iterator[tuple[Nic, _Device]]:
    """The network ports; those of one card may have one name and are then told apart by number."""
    counts: Counter[str] = Counter()
    for device in devices:
        element = device.element
        nets = element.findall("net" if element.tag == "nic" else "nic/net")
        for net in nets or [Element("net", name=element.get("busid", "NIC"))]:
            name = net.get("name", "NIC")
            counts[name] += 1
            yield _nic(name if counts[name] == 1 else f"{name}:{counts[name]}", element, net, device.numa), device


def _nic(name: str, element: Element, net: Element, numa: int | None) -> Nic:
    megabits = whole_number(net.get("speed"))
    return Nic(
        name=name,
        kind="infiniband" if element.get("class", "").startswith(_INFINIBAND) else "ethernet",
        rate=megabits * 1e6 / 8 if megabits else None,
        numa=numa,
        pci=element.get("busid"),
    )


def _over_pci(one: _Device, other: _Device) -> PathClass:
    if one.cpu != other.cpu:
        return "SYS"
    shared = sum(mine is its for mine, its in zip(one.switches, other.switches, strict=False))
    if not shared:
        return "PHB"
    return "PIX" if len(one.switches) == len(other.switches) == shared else "PXB"


def _between_gpus(gpus: list[tuple[Gpu, _Device]]) -> Iterator[Path]:
    if any(device.element.find("gpu") is None for _gpu, device in gpus):
        return  # made by hand: without NVLinks, because NCCL finds them itself
    nvlinks, xgmi = ([_targets(device.element, tag) for _gpu, device in gpus] for tag in ("nvlink", "xgmi"))
    addresses = [(gpu.pci or "").lower() for gpu, _device in gpus]
    switches = [links.keys() - set(addresses) for links in nvlinks]
    for (i, (one, here)), (j, (other, there)) in itertools.combinations(enumerate(gpus), 2):
        # Directly, or through the NVSwitches that both are linked to.
        shared = switches[i] & switches[j]
        lanes = nvlinks[i].get(addresses[j], 0) + sum(min(nvlinks[i][switch], nvlinks[j][switch]) for switch in shared)
        kind: PathClass = "NV" if lanes else "XGMI" if addresses[j] in xgmi[i] else _over_pci(here, there)
        yield Path(one=one.name, other=other.name, kind=kind, lanes=lanes)


def _targets(element: Element, tag: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for link in element.iterfind(f"gpu/{tag}[@target]"):
        counts[link.get("target", "").lower()] += whole_number(link.get("count")) or 0
    return counts
