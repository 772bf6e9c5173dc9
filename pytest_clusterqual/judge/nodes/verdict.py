"""Nodes: each held against the others and against what the file promises; an odd one is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.nodes.properties import Property, Value, Values, properties, with_fabric_nics
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.project import TopologyDemand, TopologyPlan
from pytest_clusterqual.model.record import Demand, Finding, Interval, Judgement, Verdict

_MOST_NAMED = 8  # nodes in one sentence
_MOST_FAULTS = 6  # sentences in one reason


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fault:
    """Nodes that are odd for one reason; `odd` of them where it may be any."""

    nodes: Sequence[str]
    text: str
    odd: int | None = None


def judge_nodes(m: NodesMeasurement, plan: TopologyPlan) -> tuple[Judgement, ...]:
    """One judgement for each property that is known of some node, or promised: the number of odd nodes.

    Odd is a node that is at fault in itself, that has not what the file promises, that does not
    tell what others tell, or that differs from the majority. Without a majority all are named.

    Raises:
        MeasurementError: there is no node, or one twice.
    """
    names = [node.node for node in m.nodes]
    if not names or len(set(names)) < len(names):
        raise MeasurementError(f"nodes: got {', '.join(names) or 'none'}, want at least one, and each once")
    promised = plan.demand("nics_per_node")
    nodes = with_fabric_nics(m.nodes, int(promised.value) if promised else None)
    judged = (_judge(each, nodes, plan) for each in properties(nodes, plan.clock_tolerance))
    return tuple(judgement for judgement in judged if judgement is not None)


def _judge(what: Property, nodes: Sequence[NodeHardware], plan: TopologyPlan) -> Judgement | None:
    values = {node.node: what.of(node) for node in nodes}
    demand = plan.demand(what.key) if what.key else None
    faults = [
        _Fault(nodes=[node.node], text=f"{node.node}: {_listed(wrong)}")
        for node in nodes
        if (wrong := what.wrong(node))
    ]
    nowhere_known = not any(_told(of_node) for of_node in values.values())
    if nowhere_known and not faults:
        if demand is None:
            return None
        if any(None in of_node for of_node in values.values()):
            return _undecided(what, nodes, demand)
    faults += _broken_promises(what, _without(values, faults), demand)
    faults += _untold(what, _without(values, faults), nodes, nowhere_known)
    faults += _minorities(what, _without(values, faults))
    odd = sum(len(fault.nodes) if fault.odd is None else fault.odd for fault in faults)
    return Judgement(
        quantity=what.quantity,
        label="",
        value=float(odd),
        unit=units.NODES,
        interval=Interval(low=odd, high=odd, kind="count", samples=len(nodes)),
        verdict=Verdict.FAIL if faults else Verdict.PASS,
        reason=_listed([fault.text for fault in faults]) if faults else _in_order(what, values, demand),
        requirement=_required(what, plan, demand),
        findings=tuple(finding for fault in faults for finding in _findings(what, fault, len(nodes))),
    )


# -- who is odd --------------------------------------------------------------------------------------


def _broken_promises(what: Property, values: Mapping[str, Values], demand: TopologyDemand | None) -> list[_Fault]:
    if demand is None:
        return []
    found: dict[str, list[str]] = {}
    for node, of_node in values.items():
        if not of_node:
            found.setdefault("none", []).append(node)
        elif (told := _told(of_node)) and not all(demand.met_by(value) for value in told):
            found.setdefault(_said(what, told), []).append(node)
    return [
        _Fault(nodes=nodes, text=f"{_have(nodes)} {said}, promised: {demand.text}") for said, nodes in found.items()
    ]


def _untold(
    what: Property, values: Mapping[str, Values], nodes: Sequence[NodeHardware], nowhere_known: bool
) -> list[_Fault]:
    """Nodes where something cannot be read that others tell."""
    silent = [node for node in nodes if None in values.get(node.node, ())]
    if nowhere_known or not silent:
        return []
    reason = next((f" ({node.unread[0]})" for node in silent if node.unread), "")
    names = [node.node for node in silent]
    groups = _groups(what, values)
    others = f", {_others(groups[0], len(values) - len(names))} {_shown(what, values, groups[0])}" if groups else ""
    return [_Fault(nodes=names, text=f"{what.quantity} is not known of {_names(names)}{reason}{others}")]


def _minorities(what: Property, values: Mapping[str, Values]) -> list[_Fault]:
    groups = _groups(what, values)
    if len(groups) < 2:
        return []
    total, majority = sum(map(len, groups)), groups[0]
    if 2 * len(majority) <= total:
        each = _listed([f"{_have(group)} {_said(what, _told(values[group[0]]))}" for group in groups])
        everyone = [node for node in values if any(node in group for group in groups)]
        return [_Fault(nodes=everyone, text=f"no majority: {each}", odd=total - len(majority))]
    return [
        _Fault(
            nodes=group,
            text=f"{_have(group)} {_said(what, _told(values[group[0]]))}, "
            f"{_others(majority, total - len(group))} {_shown(what, values, majority)}",
        )
        for group in groups[1:]
    ]


def _groups(what: Property, values: Mapping[str, Values]) -> list[list[str]]:
    """Nodes that are alike, the largest group first; only those that tell all."""
    stand_ins = {node: _stand_in(what, told) for node, of_node in values.items() if (told := _told(of_node))}
    # Numbers that may differ a little are taken in their order: each joins the group that it is near to.
    order = sorted(stand_ins, key=lambda node: float(stand_ins[node][0])) if what.tolerance else list(stand_ins)
    groups: list[tuple[tuple[Value, ...], list[str]]] = []
    for node in order:
        near = (group for first, group in groups if _alike(first, stand_ins[node], what.tolerance))
        if (group := next(near, None)) is None:
            groups.append((stand_ins[node], [node]))
        else:
            group.append(node)
    place = list(values).index
    return sorted((sorted(group, key=place) for _, group in groups), key=lambda group: (-len(group), place(group[0])))


def _stand_in(what: Property, told: Sequence[Value]) -> tuple[Value, ...]:
    """What a node is compared by: the value of its devices, the lowest within a tolerance, all if they differ."""
    if what.tolerance:
        return (min(float(value) for value in told),)
    return tuple(told[:1]) if len(set(told)) == 1 else tuple(sorted(told, key=str))


def _alike(one: tuple[Value, ...], other: tuple[Value, ...], tolerance: float) -> bool:
    return one == other or (tolerance > 0 and float(other[0]) <= float(one[0]) * (1 + tolerance))


def _told(values: Values) -> list[Value]:
    """The values of all devices, nothing if one of them is not known."""
    told = [value for value in values if value is not None]
    return told if len(told) == len(values) else []


def _without(values: Mapping[str, Values], faults: Sequence[_Fault]) -> dict[str, Values]:
    odd = {node for fault in faults for node in fault.nodes}
    return {node: of_node for node, of_node in values.items() if node not in odd}


# -- how it is said ----------------------------------------------------------------------------------


def _undecided(what: Property, nodes: Sequence[NodeHardware], demand: TopologyDemand) -> Judgement:
    reason = next((f": {node.node}: {node.unread[0]}" for node in nodes if node.unread), "")
    return Judgement(
        quantity=what.quantity,
        label="",
        value=None,
        unit=units.NODES,
        interval=None,
        verdict=Verdict.UNDECIDED,
        reason=f"{what.quantity} {demand.text} is promised, but no node tells it{reason}",
        requirement=_bound(demand.text, demand.source),
    )


def _required(what: Property, plan: TopologyPlan, demand: TopologyDemand | None) -> Demand:
    return _bound(demand.text, demand.source) if demand else _bound(what.wanted, plan.source)


def _bound(text: str, source: str) -> Demand:
    return Demand(op="<=", value=0.0, unit=units.NODES, text=text, source=source)


def _in_order(what: Property, values: Mapping[str, Values], demand: TopologyDemand | None) -> str:
    if what.fine:
        return what.fine
    (alike,) = _groups(what, values)
    have = f"all {len(alike)} nodes have" if len(alike) > 1 else f"{alike[0]} has"
    return f"{have} {_said(what, _told(values[alike[0]]))}" + (", as promised" if demand else "")


def _findings(what: Property, fault: _Fault, total: int) -> list[Finding]:
    if fault.odd is not None:
        suspects = [_names(fault.nodes, " or ")]
    elif len(fault.nodes) == total > 1:
        suspects = [f"all {total} nodes"]
    else:
        suspects = list(fault.nodes)
    return [
        Finding(suspect=suspect, kind=what.quantity, evidence=fault.text, check_next=what.check_next)
        for suspect in suspects
    ]


def _said(what: Property, told: Sequence[Value]) -> str:
    """Such as ``driver 550.90.07`` or ``NICs at 7 x 400 Gbit/s, 1 x 200 Gbit/s``."""
    counts = Counter(what.show(value) for value in _stand_in(what, told))
    shown = ", ".join(f"{count} x {text}" for text, count in counts.most_common())
    return what.said.format(next(iter(counts)) if len(counts) == 1 else shown)


def _shown(what: Property, values: Mapping[str, Values], group: Sequence[str]) -> str:
    """The value alone, where the sentence has said before what it is of."""
    return ", ".join(dict.fromkeys(what.show(value) for value in _stand_in(what, _told(values[group[0]]))))


def _have(nodes: Sequence[str]) -> str:
    return f"{_names(nodes)} {'has' if len(nodes) == 1 else 'have'}"


def _others(majority: Sequence[str], rest: int) -> str:
    count = len(majority)
    return ("the other" if count == 1 else f"the {count} others") if count == rest else f"most ({count})"


def _names(nodes: Sequence[str], last: str = " and ") -> str:
    if len(nodes) > _MOST_NAMED:
        return f"{', '.join(nodes[:_MOST_NAMED])}{last}{len(nodes) - _MOST_NAMED} more"
    return last.join(filter(None, (", ".join(nodes[:-1]), nodes[-1])))


def _listed(sentences: Sequence[str]) -> str:
    more = len(sentences) - _MOST_FAULTS
    return "; ".join(sentences[:_MOST_FAULTS]) + (f"; and {more} more" if more > 0 else "")
