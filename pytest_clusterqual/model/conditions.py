"""Under which circumstances something was measured."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_clusterqual.model.telemetry import NodeTelemetry


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What else the measuring machines did meanwhile.

    `other_cpu` is the share of the measured cores' time (0 to 1) that went to processes outside
    the measurement or was stolen by the hypervisor; the worst node counts.
    """

    other_cpu: float
    node: str

    @property
    def heavy(self) -> bool:
        """True where timing on CPU says as much about the neighbours as about the machine."""
        return self.other_cpu > 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """Under which circumstances a measurement was taken. None where a field has no meaning.

    `rank_nodes[r]` is the name of the node that rank r is on. `telemetry` is what each node said
    about itself meanwhile, `rank_map` how the ranks were placed where that was asked for by name.
    """

    nodes: int
    nproc_per_node: int
    ranks: int
    hosts: tuple[str, ...]
    rank_nodes: tuple[str, ...] = ()
    simulated: bool
    oversubscribed: bool
    device: str
    device_name: str
    backend: str
    versions: dict[str, str]
    layout: str | None = None
    workload: str | None = None
    collective: str | None = None
    bytes: int | None = None
    group: str | None = None
    algorithm: str | None = None
    rank_map: str | None = None
    load: Load | None = None
    telemetry: tuple[NodeTelemetry, ...] = ()
