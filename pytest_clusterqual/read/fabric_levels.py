"""Requirements on Fabric against what the promised links give at most: nothing above that can ever be met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_clusterqual.model.expected import Expected, as_algbw, expected_busbw
from pytest_clusterqual.model.groups import groups_of
from pytest_clusterqual.model.project import COLLECTIVES
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.read.demands import FabricDemand
from pytest_clusterqual.read.fields import Fault
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.schema import FabricSection, LayoutSection

Numbered = Sequence[tuple[int, FabricDemand]]
_RATES = ("busbw", "algbw", "plateau", "pair_busbw")
_WHOLE_SWEEP = ("alpha", "plateau")
# Where the number of nodes is not known yet: few enough for what shrinks with them, many for what grows.
_ANY_NODES = (1, 2, 3, 4, 128)
_MOST_RANKS = 1 << 16  # of which groups are made here
_ROUNDING = 1 + 1e-9


def of_whole_sweep(demands: Numbered) -> Iterator[Fault]:
    """The ends of the curve belong to no size."""
    for index, demand in demands:
        for key, given in (("from", demand.from_), ("to", demand.to)):
            if given is not None and demand.quantity in _WHOLE_SWEEP:
                text = f"{demand.quantity} is that of the whole sweep, want neither from nor to"
                yield ("fabric", "require", index, key), text


def within_reach(
    fabric: FabricSection,
    demands: Numbered,
    layouts: Sequence[tuple[int, LayoutSection]],
    *,
    nodes: int | None,
    ranks_per_node: int,
) -> Iterator[Fault]:
    """No required rate is above the level that `fabric.links` give, and no share of it above 100 %.

    A requirement on several collectives or groups must be possible in each that the file names.
    """
    known = tuple(Layout(**layout.model_dump()) for _index, layout in layouts)
    for index, demand in demands:
        bound = demand.bound
        if demand.quantity not in _RATES or bound.op not in (">=", ">"):
            continue
        where = ("fabric", "require", index, demand.quantity)
        if bound.of_expected:
            if bound.value > _ROUNDING:
                yield where, f"got {shown(bound.text)}, want at most 100 %: what is expected is all that links give"
            continue
        levels = _Levels(fabric, demand, known, ranks_per_node)
        if (level := levels.least(nodes)) and level.value is not None and bound.value > level.value * _ROUNDING:
            yield where, f"got {shown(bound.text)}, which is above what fabric.links give: {level.why}"


class _Levels:
    """What one demand can be met by at most."""

    def __init__(
        self, fabric: FabricSection, demand: FabricDemand, layouts: Sequence[Layout], ranks_per_node: int
    ) -> None:
        self._fabric, self._demand, self._layouts, self._local = fabric, demand, layouts, ranks_per_node
        self._links = Links(**fabric.links.model_dump())

    def least(self, nodes: int | None) -> Expected | None:
        """The level of the group and collective that give least; where no collective is named, of the one with most."""
        if self._demand.quantity == "pair_busbw":
            return expected_busbw("send_recv", ((0, 1),), ("one", "other"), promised=self._links)
        named = [self._demand.collective] if self._demand.collective else self._fabric.collectives
        over_collectives = min if named else max
        groups = [self._demand.group] if self._demand.group else [g for g in self._fabric.groups if g != "layouts"]
        return _pick(min, (
            _pick(over_collectives, (
                _pick(max, (self._level(collective, group, count) for count in ((nodes,) if nodes else _ANY_NODES)))
                for collective in named or COLLECTIVES
            ))
            for group in groups
        ))  # fmt: skip

    def _level(self, collective: str, group: str, nodes: int) -> Expected | None:
        if nodes * self._local > _MOST_RANKS:
            return None
        places = [f"node{node}" for node in range(nodes) for _ in range(self._local)]
        try:
            groups = groups_of(group, places, layouts=self._layouts, nproc_per_node=self._local)
        except ValueError:
            return None  # told elsewhere, or no such group with these many nodes
        level = expected_busbw(collective, groups, places, promised=self._links, algorithm=self._fabric.algorithm)
        return as_algbw(level, collective, groups) if self._demand.quantity == "algbw" else level


def _pick(which: Callable[..., Expected], levels: Iterator[Expected | None]) -> Expected | None:
    known = [level for level in levels if level is not None and level.value is not None]
    return which(known, key=lambda level: level.value) if known else None
