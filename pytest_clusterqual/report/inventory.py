"""What the nodes were found to be made of: a row for all that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.hardware import Cpu, Gpu, Nic, NodeHardware

_NAMED = 4  # nodes of a row
_ROWS = 12
_UNKNOWN = "not known"


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Rows of count and names, GPUs, driver, CPU, RAM, NICs, the largest group first; `rest` counts other rows."""

    rows: Sequence[tuple[str, ...]]
    rest: int


def inventory(nodes: Iterable[NodeHardware]) -> Inventory:
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        alike.setdefault(_parts(node), []).append(node.node)
    groups = sorted(alike.items(), key=lambda each: -len(each[1]))
    rows = [(f"{len(names)}", units.show_some(names, _NAMED), *parts) for parts, names in groups[:_ROWS]]
    return Inventory(rows=rows, rest=max(len(groups) - _ROWS, 0))


def _parts(node: NodeHardware) -> tuple[str, ...]:
    memory = _UNKNOWN if node.memory is None else units.show(node.memory, units.BYTES)
    return (
        _counted(map(_gpu, node.gpus)) or "none",
        (node.driver or _UNKNOWN) if node.gpus else "",
        _cpu(node.cpu),
        memory,
        _counted(_nic(nic) for nic in node.nics if not nic.virtual) or "none",
    )


def _gpu(gpu: Gpu) -> str:
    memory = f" {units.show(gpu.memory, units.BYTES)}" if gpu.memory else ""
    return f"{gpu.model or 'GPU'}{memory}"


def _cpu(cpu: Cpu) -> str:
    cores = units.show_count(cpu.cores, "core") if cpu.cores else ""
    return ", ".join(filter(None, (cpu.model, cores))) or _UNKNOWN


def _nic(nic: Nic) -> str:
    rate = f"{nic.rate * 8 / 1e9:g} Gbit/s " if nic.rate else ""
    return f"{rate}{nic.kind}{' (down)' if nic.up is False else ''}"


def _counted(names: Iterable[str]) -> str:
    """Such as ``8 x NVIDIA H100 80GB HBM3 79.6 GiB``."""
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
