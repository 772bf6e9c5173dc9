"""What the layouts of a project need of the network, and which sweeps of Fabric cover it.

From the project file and the size of the world alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual.model.groups import Groups, groups_of, layout_groups, spread
from pytest_clusterqual.model.project import COLLECTIVES, Collective, FabricPlan, Project
from pytest_clusterqual.model.rank_map import arrange
from pytest_clusterqual.model.traffic import Exchange, Flow, NetworkMap, traffic

MOST_EXTRA = 8  # message sizes of the layouts in one sweep, beside those of the file
_ELEMENT = 4  # bytes; a sweep cuts sizes to whole elements of every rank

# The groups of one name under each rank map, without the order of ranks.
Ranks = tuple[frozenset[frozenset[int]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """Collectives that Fabric measures in one kind of group, each with its message sizes in bytes.

    `inapplicable` says why they cannot be measured on this many ranks, or need not be.
    """

    group: str
    sizes: dict[Collective, tuple[int, ...]]
    inapplicable: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Need:
    """One exchange of a layout, and among which ranks."""

    layout: str
    exchange: Exchange
    groups: Groups

    @property
    def name(self) -> str:
        return f"{self.layout}.{self.exchange.dimension}"


class Needs:
    """The needs of all layouts on one world; `untold` says why a layout's cannot be told.

    Raises:
        LaunchError: the launcher's rank map does not fit these nodes.
    """

    def __init__(self, project: Project, *, nodes: int, nproc_per_node: int) -> None:
        self._project, self._world = project, (nodes, nproc_per_node)
        names = [f"node{index}" for index in range(nodes)]
        maps = (project.fabric.rank_maps if project.fabric else ()) or (project.launcher.rank_map,)
        # nic-near moves ranks inside their node only, which no group notices.
        self._places = [
            [seat.node for seat in arrange("block" if each == "nic-near" else each, names, nproc_per_node, {})]
            for each in maps
        ]
        self._known: dict[str, Ranks] = {}
        self.untold: dict[str, str] = {}
        self._needs: list[_Need] = []
        if project.command is not None:
            self.untold[project.command.name] = "which collectives a command calls, and with what sizes, is not known"
            return
        for layout in project.layouts:
            try:
                groups = layout_groups(layout, nodes * nproc_per_node, nproc_per_node)
                found = traffic(project.workload, layout, world=nodes * nproc_per_node, nproc_per_node=nproc_per_node)
            except ValueError as error:
                self.untold[layout.name] = str(error)
            else:
                self._needs += [
                    _Need(layout=layout.name, exchange=each, groups=groups[each.dimension]) for each in found
                ]

    def sweeps(self) -> tuple[Sweep, ...]:
        """The sweeps of Fabric, group by group; one kind of ranks once, unless a requirement names them otherwise."""
        plan = self._project.fabric
        if plan is None:
            return ()
        named = {requirement.group for requirement in plan.require}
        found: dict[str, Sweep] = {}
        taken: dict[Ranks, str] = {}
        kinds = [kind for kind in plan.groups if kind != "layouts"]
        for kind in sorted(kinds, key=lambda kind: kind != "world"):
            ranks = self._ranks(kind)
            twin = taken.setdefault(ranks, kind)
            again = f"{kind} has the same ranks as {twin}, which is measured" if kind not in {twin, *named} else ""
            found[kind] = Sweep(
                group=kind, sizes=self._sizes(plan, ranks, self._collectives(plan, None)),
                inapplicable=self._alone(kind) or again,
            )  # fmt: skip
        for name in dict.fromkeys(need.name for need in self._needs) if "layouts" in plan.groups else ():
            ranks = self._ranks(name)
            if name in {taken.setdefault(ranks, name), *named}:
                found[name] = Sweep(group=name, sizes=self._sizes(plan, ranks, self._collectives(plan, ranks)))
        return tuple(found[name] for name in dict.fromkeys([*kinds, *found]))

    def network_map(self) -> NetworkMap:
        """Every exchange of every layout, and whether a sweep measures it."""
        nodes, nproc_per_node = self._world
        sweeps = [sweep for sweep in self.sweeps() if not sweep.inapplicable]
        return NetworkMap(
            nodes=nodes, nproc_per_node=nproc_per_node, untold=self.untold,
            flows=tuple(self._flow(need, sweeps) for need in self._needs),
        )  # fmt: skip

    def _flow(self, need: _Need, sweeps: Sequence[Sweep]) -> Flow:
        among = [sweep for sweep in sweeps if self._ranks(sweep.group) == self._ranks(need.name)]
        measured = [sweep for sweep in among if need.exchange.collective in sweep.sizes]
        return Flow(
            layout=need.layout, exchange=need.exchange, shape=spread(need.groups, self._places[0]),
            group=next((sweep.group for sweep in measured or among), need.name), covered=bool(measured),
        )  # fmt: skip

    def _ranks(self, group: str) -> Ranks:
        if group not in self._known:
            layouts, (_, nproc_per_node) = self._project.layouts, self._world
            self._known[group] = tuple(
                frozenset(map(frozenset, groups_of(group, places, layouts=layouts, nproc_per_node=nproc_per_node)))
                for places in self._places
            )
        return self._known[group]

    def _alone(self, kind: str) -> str:
        if all(len(group) > 1 for groups in self._ranks(kind) for group in groups):
            return ""
        nodes, nproc_per_node = self._world
        return f"{kind} is a group of 1 rank with {nodes} x {nproc_per_node} ranks: there is no fabric in it"

    def _collectives(self, plan: FabricPlan, ranks: Ranks | None) -> Sequence[Collective]:
        """What to measure among `ranks`; None: in a group of the topology, where any layout may be put to work."""
        needed = {need.exchange.collective for need in self._among(ranks)}
        if ranks is None:
            wanted = plan.collectives or {*needed, "broadcast"}
        else:
            wanted = needed & set(plan.collectives or COLLECTIVES)
        return [collective for collective in COLLECTIVES if collective in wanted]

    def _sizes(
        self, plan: FabricPlan, ranks: Ranks, collectives: Sequence[Collective]
    ) -> dict[Collective, tuple[int, ...]]:
        needs = list(self._among(ranks)) if plan.traffic else []
        members = max(len(group) for groups in ranks for group in groups)
        return {
            collective: _with(
                plan.sizes, {n.exchange.bytes for n in needs if n.exchange.collective == collective}, members * _ELEMENT
            )
            for collective in collectives
        }

    def _among(self, ranks: Ranks | None) -> Iterator[_Need]:
        for need in self._needs:
            if ranks is None or self._ranks(need.name) == ranks:
                yield need


def _with(sizes: Sequence[int], traffic: set[int], whole: int) -> tuple[int, ...]:
    """The file's sizes and the layouts', without those that a sweep would cut to the same multiple of `whole`."""
    known = {max(size // whole, 1) for size in sizes}
    cut = {max(size // whole, 1): size for size in sorted(traffic)}
    extra = [size for multiple, size in cut.items() if multiple not in known]
    if len(extra) > MOST_EXTRA:
        extra = [extra[index * (len(extra) - 1) // (MOST_EXTRA - 1)] for index in range(MOST_EXTRA)]
    return tuple(sorted({*sizes, *extra}))
