"""The section `purchase` of the project file: nodes that could be bought, and models to serve on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from pytest_clusterqual import units
from pytest_clusterqual.model.purchase import WEIGHT_BYTES, CacheKind, NodeType, PurchasePlan, ServedModel, Weights
from pytest_clusterqual.model.requirement import Requirement, own_requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.read.fields import Fault, Identifier, Number, Positive, Rate, Section, Size, quantity
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.schema import LinksSection

# Far more than any there is: what is above is a slip of the keyboard, and would be counted through.
MOST_DEVICES, MOST_LAYERS, MOST_PARAMETERS = 1 << 12, 10_000, 1e15
WEIGHTS_SHARE = "<= 65 %"  # leaves a third for cache, activations and buffers; the file's own replaces it


def _at_most(most: float) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value > most:
            raise ValueError(f"got {value:g}, want at most {most:g}")
        return value

    return check


def _share(value: float) -> float:
    if value > 1:
        raise ValueError(f"got {units.show_share(value)}, want at most 100 %")
    return value


def _upper_share(text: object) -> str:
    bound = _weights_share(text, source="")  # type: ignore[arg-type]  # refuses every other type itself
    if not bound.upper_bound or not 0 < bound.value <= 1:
        raise ValueError(f"got {shown(text)}, want the most of a device that weights may take: {shown(WEIGHTS_SHARE)}")
    return bound.text


def _weights_share(text: str, *, source: str) -> Requirement:
    return own_requirement("weights_share", text, units.RATIO, source=source)


Share = Annotated[float, BeforeValidator(quantity(units.RATIO)), AfterValidator(_share)]
FlopRate = Annotated[float, BeforeValidator(quantity(units.FLOP_RATE))]
TokenRate = Annotated[float, BeforeValidator(quantity(units.TOKEN_RATE))]
Parameters = Annotated[Number, AfterValidator(_at_most(MOST_PARAMETERS))]
UpperShare = Annotated[str, PlainValidator(_upper_share)]


class NodeTypeSection(Section):
    name: Identifier
    devices: Annotated[Positive, AfterValidator(_at_most(MOST_DEVICES))]
    device_memory: Size
    links: LinksSection = LinksSection()
    counts: list[Positive] = Field(default_factory=lambda: [1], min_length=1)
    flops: FlopRate | None = None
    compute_share: Share | None = None
    memory_rate: Rate | None = None
    price: Number | None = None

    def faults(self) -> Iterator[Fault]:
        for index, count in enumerate(self.counts):
            if index and count <= self.counts[index - 1]:
                yield ("counts", index), f"got {count} after {self.counts[index - 1]}, want node counts in rising order"
            elif count * self.devices > MOST_DEVICES:
                yield ("counts", index), f"got {count}, want at most {MOST_DEVICES} devices in all"
        if self.compute_share is not None and self.flops is None:
            yield ("compute_share",), "it is a share of flops, which is missing"

    def words(self) -> NodeType:
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in ("links", "counts")}
        return NodeType(links=Links(**self.links.model_dump()), counts=tuple(self.counts), **fields)


class ServedModelSection(Section):
    name: Identifier
    parameters: Parameters
    active: Parameters | None = None
    layers: Annotated[Positive, AfterValidator(_at_most(MOST_LAYERS))]
    hidden: Positive
    heads: Positive
    kv_heads: Positive | None = None
    head_size: Positive | None = None
    latent: Positive | None = None
    context: Positive
    sequences: Positive = 1
    rate: TokenRate | None = None
    kv_cache: CacheKind = "bf16"

    def faults(self) -> Iterator[Fault]:
        if self.active is not None and self.active > self.parameters:
            yield ("active",), f"got {self.active:g}, want at most parameters {self.parameters:g}"
        if self.heads % (self.kv_heads or 1):
            yield ("kv_heads",), f"got {self.kv_heads}, want a divisor of heads {self.heads}"
        if self.head_size is None and self.hidden % self.heads:
            yield ("heads",), f"got {self.heads}, want a divisor of hidden {self.hidden}, or head_size"

    def words(self) -> ServedModel:
        return ServedModel(**{
            **self.model_dump(),
            "active": self.active or self.parameters,
            "kv_heads": self.kv_heads or self.heads,
            "head_size": self.head_size or self.hidden // self.heads,
        })  # fmt: skip


class PurchaseSection(Section):
    """Without `models` nothing is to be served, without `training` the workload of the file is not looked at."""

    nodes: list[NodeTypeSection] = Field(min_length=1)
    models: list[ServedModelSection] = Field(default_factory=list)
    weights: list[Weights] = Field(default_factory=lambda: list(WEIGHT_BYTES), min_length=1)
    weights_share: UpperShare | None = None
    training: bool = True

    def faults(self) -> Iterator[Fault]:
        for key in ("nodes", "models"):
            names = [entry.name for entry in getattr(self, key)]
            yield from (((key, index, "name"), text) for index, text in _repeated(names))
        yield from ((("weights", index), text) for index, text in _repeated(self.weights))
        if not self.models and not self.training:
            yield ("training",), "got false and no models, so there is nothing to look at; want models, or true"

    def plan(self, place: Callable[[str], str]) -> PurchasePlan:
        """The words of this section. `place` gives ``file:line`` of a key."""
        given = self.weights_share
        return PurchasePlan(
            nodes=tuple(node.words() for node in self.nodes),
            models=tuple(model.words() for model in self.models),
            weights=tuple(self.weights),
            weights_share=_weights_share(given or WEIGHTS_SHARE, source=place("weights_share") if given else ""),
            training=self.training,
        )


def _repeated(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield index, f"got {shown(name)} again, want each once"
