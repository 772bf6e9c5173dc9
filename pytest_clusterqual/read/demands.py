"""The entries of the `require` lists: one quantity with its level, and the cases it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field, PlainValidator, ValidationInfo

from pytest_clusterqual import units
from pytest_clusterqual.model.project import Collective
from pytest_clusterqual.model.requirement import QUANTITIES, Op, Requirement, parse_bound
from pytest_clusterqual.read.fields import Fault, Name, Positive, Section, Size
from pytest_clusterqual.read.messages import shown

_SHARES = {
    "headroom",
    "goodput",
    "ettr",
    "data_stall",
    "wait",
    "placement",
    "exposed_communication",
    "waiting",
}  # parts of a whole; efficiency and speedup may exceed one


class Bound(NamedTuple):
    """A requirement's level: `value` in the quantity's canonical unit, or a share of the expected level."""

    text: str
    op: Op
    value: float
    of_expected: bool


def _bound(criterion: str) -> Callable[[object, ValidationInfo], Bound]:
    def read(text: object, info: ValidationInfo) -> Bound:
        quantity = str(info.field_name)
        op, value, of_expected = parse_bound(text, criterion, quantity)
        if value < 0:
            raise ValueError(f"got {shown(text)}, want a level that is not below zero")
        if quantity in _SHARES and value > 1:
            raise ValueError(f"got {shown(text)}, which is {units.show_share(value)}; want at most 100 %")
        return Bound(" ".join(str(text).split()), op, value, of_expected)

    return read


MemoryBound = Annotated[Bound | None, PlainValidator(_bound("memory"))]
FabricBound = Annotated[Bound | None, PlainValidator(_bound("fabric"))]
ScalingBound = Annotated[Bound | None, PlainValidator(_bound("scaling"))]
FullRunBound = Annotated[Bound | None, PlainValidator(_bound("full_run"))]


class Demand(Section):
    """One entry of a `require` list: exactly one quantity, and selectors of the cases it is about."""

    criterion: ClassVar[str]

    @property
    def quantity(self) -> str:
        return next(name for name in QUANTITIES[self.criterion] if name in self.model_fields_set)

    @property
    def bound(self) -> Bound:
        bound: Bound = getattr(self, self.quantity)
        return bound

    def selectors(self) -> dict[str, Any]:
        """The selectors by the names that `model.requirement.Requirement` gives them."""
        return {}

    def requirement(self, source: str) -> Requirement:
        text, op, value, of_expected = self.bound
        return Requirement(
            criterion=self.criterion,
            quantity=self.quantity,
            op=op,
            value=value,
            unit=QUANTITIES[self.criterion][self.quantity],
            text=text,
            source=source,
            of_expected=of_expected,
            **self.selectors(),
        )

    def faults(self) -> Iterator[Fault]:
        known = list(QUANTITIES[self.criterion])
        given = [name for name in known if name in self.model_fields_set]
        if len(given) != 1:
            yield (), f"got {' and '.join(given) or 'no quantity'}, want exactly one of {', '.join(known)}"


class MemoryDemand(Demand):
    criterion = "memory"
    layout: str | None = None
    peak: MemoryBound = None
    headroom: MemoryBound = None

    def selectors(self) -> dict[str, Any]:
        return {"layout": self.layout}


class FabricDemand(Demand):
    criterion = "fabric"
    collective: Collective | None = None
    group: Name | None = None  # a kind of group, or one of a layout such as tp2.tensor
    from_: Annotated[Size | None, Field(alias="from")] = None
    to: Size | None = None
    busbw: FabricBound = None
    algbw: FabricBound = None
    latency: FabricBound = None
    alpha: FabricBound = None
    plateau: FabricBound = None
    wait: FabricBound = None
    contention: FabricBound = None
    pair_busbw: FabricBound = None
    placement: FabricBound = None
    amplification: FabricBound = None

    def selectors(self) -> dict[str, Any]:
        sizes = {"from_bytes": self.from_, "to_bytes": self.to}
        return {"collective": self.collective, "group": self.group, **sizes}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        for name, unit in QUANTITIES["fabric"].items():
            bound = getattr(self, name)
            if unit != units.RATE and bound is not None and bound.of_expected:
                text = f"got {shown(bound.text)}: fabric.links promises rates only, want {units.example(unit)}"
                yield (name,), text


class ScalingDemand(Demand):
    criterion = "scaling"
    nodes: Positive | None = None
    layout: str | None = None
    speedup: ScalingBound = None
    efficiency: ScalingBound = None
    step_time: ScalingBound = None
    throughput: ScalingBound = None
    time_to_fixed_work: ScalingBound = None
    bubble: ScalingBound = None
    imbalance: ScalingBound = None
    time_to_train: ScalingBound = None
    exposed_communication: ScalingBound = None
    waiting: ScalingBound = None
    data_stall: ScalingBound = None

    def selectors(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "layout": self.layout}


class FullRunDemand(Demand):
    criterion = "full_run"
    layout: str | None = None
    gain: FullRunBound = None
    goodput: FullRunBound = None
    throughput: FullRunBound = None
    ettr: FullRunBound = None
    checkpoint_blocking: FullRunBound = None
    checkpoint_completion: FullRunBound = None
    checkpoint_inflation: FullRunBound = None
    checkpoint_rate: FullRunBound = None
    checkpoint_memory: FullRunBound = None
    checkpoint_load: FullRunBound = None
    detection: FullRunBound = None
    restart: FullRunBound = None
    rendezvous: FullRunBound = None
    recovery: FullRunBound = None
    steps_lost: FullRunBound = None
    data_stall: FullRunBound = None
    drift: FullRunBound = None

    def selectors(self) -> dict[str, Any]:
        return {"layout": self.layout}
