"""The section `topology` of the project file: what is promised of every node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BeforeValidator, PlainValidator, ValidationInfo

from pytest_clusterqual import units
from pytest_clusterqual.model.project import TopologyDemand, TopologyPlan
from pytest_clusterqual.model.requirement import Requirement, own_requirement
from pytest_clusterqual.read.fields import Name, Natural, Positive, Section
from pytest_clusterqual.read.messages import shown


def _bound(unit: str) -> Callable[[object, ValidationInfo], Requirement | None]:
    def read(text: object, info: ValidationInfo) -> Requirement | None:
        if text is None:
            return None
        found = own_requirement(str(info.field_name), text, unit, source="")  # type: ignore[arg-type]  # refuses others
        if found.value <= 0:
            raise ValueError(f"got {shown(text)}, want a level above zero")
        return found

    return read


def _tolerance(value: object) -> float:
    share = units.parse(value, units.RATIO)  # type: ignore[arg-type]  # refuses every other type itself
    if not 0 < share < 1:
        raise ValueError(f"got {shown(value)}, want a share above 0 % and below 100 %")
    return share


AmountBound = Annotated[Requirement | None, PlainValidator(_bound(units.BYTES))]
RateBound = Annotated[Requirement | None, PlainValidator(_bound(units.RATE))]
Tolerance = Annotated[float, BeforeValidator(_tolerance)]


class TopologySection(Section):
    """Counts are exact, `gpu` is a part of the model's name. Nodes must be alike in what is left out, too."""

    gpus_per_node: Natural | None = None
    gpu: Name | None = None
    gpu_memory: AmountBound = None
    nics_per_node: Natural | None = None
    nic_rate: RateBound = None
    mtu: Positive | None = None
    cores_per_node: Positive | None = None
    numa_nodes: Positive | None = None
    memory: AmountBound = None
    clock_tolerance: Tolerance | None = None

    def plan(self, place: Callable[[str], str]) -> TopologyPlan:
        """The words of this section. `place` gives ``file:line`` of a key, of the section for an empty one."""
        given = [(key, getattr(self, key)) for key in type(self).model_fields if key != "clock_tolerance"]
        return TopologyPlan(
            source=place(""),
            demands=tuple(_demand(key, value, place(key)) for key, value in given if value is not None),
            clock_tolerance=self.clock_tolerance,
        )


def _demand(key: str, value: Requirement | int | str, source: str) -> TopologyDemand:
    if isinstance(value, Requirement):
        return TopologyDemand(key=key, op=value.op, value=value.value, text=value.text, source=source)
    if isinstance(value, str):
        return TopologyDemand(key=key, op="in", value=value, text=value, source=source)
    return TopologyDemand(key=key, op="==", value=float(value), text=str(value), source=source)
