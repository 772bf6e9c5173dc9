"""What `nvidia-smi -q` tells of every GPU, as XML (``-x``) or as plain text, of drivers since R470.

Both forms become paths such as ``pci/gpu_link_info/pcie_generation/current`` first; one table
then says under which paths, of which form and generation, each field stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import DriverReport, Gpu
from pytest_clusterqual.read.captured import XML_LIMIT, beginning, plain, whole_number, xml_root

_WHAT = "nvidia-smi -q"
_DEPTH = 8
_LONGEST_KEY = 64
_MOST_GPUS = 256
_GPU_LINE = re.compile(r"GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]")
_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)")
_SCALE = {"MiB": 2.0**20, "MHz": 1e6}

_TEXTS = {
    "model": ("product_name",),
    "uuid": ("uuid", "gpu_uuid"),
    "pci": ("pci/pci_bus_id", "pci/bus_id"),
}
_SWITCHES = {
    "mig": ("mig_mode/current_mig", "mig_mode/current"),
    "ecc": ("ecc_mode/current_ecc", "ecc_mode/current"),
}
_XML_LINK, _LINK = "pci/pci_gpu_link_info", "pci/gpu_link_info"
_WHOLE_NUMBERS: dict[str, tuple[str, ...]] = {  # each with its unit: a number without it may be cut off
    "memory": ("MiB", "fb_memory_usage/total"),
    "pcie_generation": ("", f"{_XML_LINK}/pcie_gen/current_link_gen", f"{_LINK}/pcie_generation/current"),
    "pcie_generation_max": ("", f"{_XML_LINK}/pcie_gen/max_link_gen", f"{_LINK}/pcie_generation/max"),
    "pcie_width": ("x", f"{_XML_LINK}/link_widths/current_link_width", f"{_LINK}/link_width/current"),
    "pcie_width_max": ("x", f"{_XML_LINK}/link_widths/max_link_width", f"{_LINK}/link_width/max"),
}
# Renamed with R535, when boards with a CPU got power readings of their own.
_POWER = ("gpu_power_readings/", "power_readings/")
_DRAWS = ("instant_power_draw", "instantaneous_power_draw", "power_draw", "average_power_draw")
_LIMITS = ("enforced_power_limit", "current_power_limit", "power_limit")
_NUMBERS: dict[str, tuple[str, ...]] = {
    "clock": ("MHz", "clocks/sm_clock", "clocks/sm"),
    "clock_max": ("MHz", "max_clocks/sm_clock", "max_clocks/sm"),
    "memory_clock": ("MHz", "clocks/mem_clock", "clocks/memory"),
    "memory_clock_max": ("MHz", "max_clocks/mem_clock", "max_clocks/memory"),
    "power": ("W", *(section + key for section in _POWER for key in _DRAWS)),
    "power_limit": ("W", *(section + key for section in _POWER for key in _LIMITS)),
    "temperature": ("C", "temperature/gpu_temp", "temperature/gpu_current_temp"),
}
# Ampere and newer tell where the error was, Hopper's newer drivers also how it was found; Volta has a total.
_UNCORRECTED = (
    "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "sram_uncorrectable_sec_ded",
    "dram_uncorrectable", "double_bit/total",
)  # fmt: skip
# Not here, because they are no harm: idle, and clocks that someone set.
_REASONS = {
    "SW power cap": ("sw_power_cap",),
    "HW slowdown": ("hw_slowdown",),
    "HW thermal slowdown": ("hw_thermal_slowdown", "hw_slowdown/hw_thermal_slowdown"),
    "HW power brake": ("hw_power_brake_slowdown", "hw_slowdown/hw_power_brake_slowdown"),
    "SW thermal slowdown": ("sw_thermal_slowdown",),
    "sync boost": ("sync_boost",),
}
_REASON_SECTIONS = (
    "clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_",
    "clocks_event_reasons/", "clocks_throttle_reasons/",
)  # fmt: skip


def read_nvidia_smi(text: str) -> DriverReport:
    """The driver's and CUDA's version and all GPUs, numbered as the tool lists them.

    What the tool calls N/A, not supported or an error is None, never zero.

    Raises:
        ReadError: neither form, an XML entity, or more than 256 GPUs.
    """
    general, sections = _of_xml(text) if "<nvidia_smi_log" in text else _of_plain_text(text)
    if len(sections) > _MOST_GPUS:
        raise ReadError(f"{_WHAT}: {len(sections)} GPUs, at most {_MOST_GPUS} are read")
    problems = []
    attached = whole_number(general.get("attached_gpus"))
    if attached is not None and attached != len(sections):
        problems.append(f"{attached} GPUs are attached, {len(sections)} are told of: cut off, or asked with -i")
    if sections and "processes" not in sections[-1]:
        problems.append("the last GPU's text ends before its processes: cut off, or asked with -d")
    return DriverReport(
        driver=general.get("driver_version") or None,
        cuda=general.get("cuda_version") or None,
        gpus=tuple(_gpu(index, values) for index, values in enumerate(sections)),
        problems=tuple(problems),
    )


def _gpu(index: int, values: Mapping[str, str]) -> Gpu:
    fields: dict[str, Any] = {name: _first(values, paths) for name, paths in _TEXTS.items()}
    for name, paths in _SWITCHES.items():
        fields[name] = {"Enabled": True, "Disabled": False}.get(_first(values, paths) or "")
    for name, (unit, *places) in _NUMBERS.items():
        fields[name] = _number(values, unit, places)
    for name, (unit, *places) in _WHOLE_NUMBERS.items():
        number = _number(values, unit, places)
        fields[name] = None if number is None else int(number)
    counts = [whole_number(values.get(f"ecc_errors/volatile/{key}")) for key in _UNCORRECTED]
    known = [count for count in counts if count is not None]
    throttle = tuple(
        reason
        for reason, keys in _REASONS.items()
        if any(values.get(section + key) == "Active" for section in _REASON_SECTIONS for key in keys)
    )
    return Gpu(index=index, uncorrected=sum(known) if known else None, throttle=throttle, **fields)


def _first(values: Mapping[str, str], paths: Sequence[str]) -> str | None:
    return next((values[path] for path in paths if values.get(path)), None)


def _number(values: Mapping[str, str], unit: str, paths: Sequence[str]) -> float | None:
    found = (_NUMBER.fullmatch(values.get(path, "")) for path in paths)
    return next((float(match[1]) * _SCALE.get(unit, 1.0) for match in found if match and match[2] == unit), None)


def _told(value: str) -> str:
    """`value`, or nothing, as for a heading, where the tool says that there is none."""
    return "" if value.strip("[]") in ("N/A", "Not Supported", "Unknown Error") else value


def _of_xml(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    root = xml_root(text, f"{_WHAT} -x", "nvidia_smi_log")
    return dict(_leaves(root)), [dict(_leaves(gpu)) for gpu in root.findall("gpu")]


def _leaves(element: ElementTree.Element, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for child in element:
        if len(child.tag) > _LONGEST_KEY:
            continue
        yield path + child.tag, _told((child.text or "").strip())
        if depth < _DEPTH and not (depth == 0 and child.tag == "gpu"):
            yield from _leaves(child, f"{path}{child.tag}/", depth + 1)


def _of_plain_text(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    general: dict[str, str] = {}
    sections: list[dict[str, str]] = []
    above: list[tuple[int, str]] = []  # the indents and paths of the headings that the line stands below
    for line in plain(text, _WHAT, limit=XML_LIMIT).split("\n"):
        if _GPU_LINE.fullmatch(line.strip()):
            sections.append({})
            above = []
            continue
        key, _colon, value = (part.strip() for part in line.partition(" :"))
        if not 0 < len(key) <= _LONGEST_KEY:
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        path = (above[-1][1] + "/" if above else "") + re.sub(r"[^a-z0-9]+", "_", key.lower())
        (sections[-1] if sections else general).setdefault(path, _told(value))
        if len(above) < _DEPTH:
            above.append((indent, path))
    if "driver_version" not in general and not sections:
        raise ReadError(f"{_WHAT}: got {beginning(text)}, want its text or its XML (-x)")
    return general, sections
