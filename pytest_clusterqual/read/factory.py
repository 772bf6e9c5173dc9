"""The section `workload` of a project file whose model, optimizer, loss and data a function of the user's own gives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from pytest_clusterqual.model.workload import Factory, Loader, Workload
from pytest_clusterqual.read.demands import Demand
from pytest_clusterqual.read.fields import Fault, Name, Positive
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.purchase import PurchaseSection
from pytest_clusterqual.read.schema import FabricSection, JobSection, LoaderSection

_IN_TOKENS = ("throughput", "time_to_train")


def _function(value: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", value):
        raise ValueError(f"got {shown(value)}, want a module and a function in it such as job:make")
    return value


class FactorySection(JobSection):
    factory: Annotated[str, AfterValidator(_function)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    blocks: list[Name] = Field(default_factory=list)
    sequence_length: Positive | None = None
    data: LoaderSection = LoaderSection()

    def job(self, folder: Path) -> Workload:
        fields = self.model_dump(exclude={"factory", "arguments", "blocks", "sequence_length", "data"})
        return Workload(
            factory=Factory(name=self.factory, arguments=self.arguments, blocks=tuple(self.blocks)),
            sequence_length=self.sequence_length or 0, loader=Loader(**self.data.model_dump()), **fields,
        )  # fmt: skip


def not_known(
    section: FactorySection,
    demands: Mapping[str, list[tuple[int, Demand]]],
    *,
    fabric: FabricSection | None,
    purchase: PurchaseSection | None,
) -> Iterator[Fault]:
    """What the file asks that only a model of known shape, or samples of known length, can answer."""
    if fabric and fabric.collectives is None:
        text = (
            "which messages the model of a factory exchanges is not known, want a list such as [all_reduce, broadcast]"
        )
        yield ("fabric", "collectives"), text
    if purchase and purchase.training:
        yield ("purchase", "training"), "the shape of a factory's model is not known, want false"
    if section.sequence_length is None:
        yield from _tokens(demands)


def _tokens(demands: Mapping[str, list[tuple[int, Demand]]]) -> Iterator[Fault]:
    for criterion in ("scaling", "full_run"):
        for index, demand in demands.get(criterion, []):
            if demand.quantity in _IN_TOKENS:
                text = "how many tokens a sample has is not known, want workload.sequence_length"
                yield (criterion, "require", index, demand.quantity), text


def is_factory(workload: Any) -> bool:
    """Whether the section `workload` is one of a factory."""
    return isinstance(workload, dict) and "factory" in workload
