"""The form of the line that `launch.survey` prints on a node: captured facts, strict in names and types.

Figures that the kernel writes as text are text here, too; what could not be had is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.host_check import Space
from pytest_clusterqual.read.captured import beginning

FORMAT = 1
LARGEST = 16 * 1024 * 1024  # characters: nvidia-smi alone may write some MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    stdout: str
    code: int | None
    error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    name: str
    user: str
    executable: str | None
    boot: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cpus:
    model: str | None
    packages: int | None
    cores: int | None
    online: str | None
    numa: dict[str, str]
    quota: float | None
    affinity: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    total: int | None
    limit: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pci:
    address: str
    numa_node: str | None
    current_link_width: str | None
    max_link_width: str | None
    current_link_speed: str | None
    max_link_speed: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    name: str
    operstate: str | None
    carrier: str | None
    speed: str | None
    mtu: str | None
    type: str | None
    dev_port: str | None
    device: bool
    bond: bool
    pci: Pci | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    device: str
    port: int
    state: str | None
    phys_state: str | None
    rate: str | None
    link_layer: str | None
    firmware: str | None
    interface: str | None
    pci: Pci | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    vendor: str
    pci: Pci | None
    memory: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    open_files: int
    open_files_hard: int
    memlock: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    address: str
    seconds: float
    answered: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    survey: int
    time: float
    unread: tuple[str, ...]
    host: Host | None
    versions: dict[str, str] | None
    cpu: Cpus | None
    memory: Memory | None
    net: tuple[Interface, ...] | None
    infiniband: tuple[Port, ...] | None
    accelerators: tuple[Accelerator, ...] | None
    limits: Limits | None
    shm: Space | None
    temp: Space | None
    cwd: Space | None
    settings: dict[str, str] | None
    reverse_dns: Lookup | None
    nvidia_smi: Command | None
    nvidia_topo: Command | None
    nvidia_p2p: Command | None
    nccl_topology: Command | None
    rocm_topo: Command | None
    rocm_names: Command | None


def read_form(survey: str | Mapping[str, Any], node: str) -> Survey:
    """The captured facts of `node`, from the line as it came or as JSON values.

    Raises:
        ReadError: this is not the line of a survey, or one of another version.
    """
    what = f"{node}: the node's survey"
    if isinstance(survey, str):
        if len(survey) > LARGEST:
            raise ReadError(f"{what}: got {len(survey)} characters, at most {LARGEST} are read")
        try:
            survey = json.loads(survey)
        except (ValueError, RecursionError) as error:
            raise ReadError(f"{what}: got {beginning(str(survey))}, want one line of JSON ({error})") from None
    if not isinstance(survey, Mapping) or survey.get("survey") != FORMAT:
        got = survey.get("survey") if isinstance(survey, Mapping) else type(survey).__name__
        raise ReadError(f"{what}: got form {got!r}, want {FORMAT}, the one this version reads")
    try:
        return from_json(Survey, survey, where=what)
    except (ValueError, OverflowError) as error:
        raise ReadError(str(error)) from None
