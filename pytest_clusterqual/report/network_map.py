"""What a person reads of the network map: what each layout exchanges in a step, among whom, and what measures it."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.traffic import Exchange, Flow, NetworkMap
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import console

_NO_TEST = "no test"
_UNCOVERED = (
    f"{_NO_TEST}: Fabric does not measure that collective among these ranks; see fabric.collectives and fabric.groups"
)


def network_map(found: NetworkMap, *, width: int, color: bool = False) -> str:
    """A part for each group of ranks, a row an exchange; sizes are those of nccl-tests.

    `a step` is what one rank exchanges in an optimizer step, `measured in` the group of the Fabric
    test. `width` is in terminal columns. Plain text unless `color`.
    """
    places = dict.fromkeys((flow.layout, flow.exchange.dimension, flow.shape) for flow in found.flows)
    printer = console(width, color)
    with printer.capture() as capture:
        printer.print(Text(_title(found)))
        for place in places:
            layout, dimension, shape = place
            flows = [flow for flow in found.flows if (flow.layout, flow.exchange.dimension, flow.shape) == place]
            printer.print()
            printer.print(Text(text.visible(f"{layout}.{dimension}: {shape}"), style="bold"))
            printer.print(_table(flows, len(max((flow.group for flow in found.flows), key=len))))
        printer.print()
        if not found.flows and not found.untold:
            printer.print(Text("one rank exchanges nothing"))
        for layout, why in found.untold.items():
            printer.print(Text(text.visible(f"{layout}: nothing can be derived: {why}")))
        if not all(flow.covered for flow in found.flows):
            printer.print(Text(_UNCOVERED))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))


def traffic_lines(found: NetworkMap) -> list[str]:
    """One line a layout, such as ``ddp: all_reduce in world, 1.4 MiB in 2 calls a step``."""
    return [
        text.visible(f"{layout}: {'; '.join(_sums([flow for flow in found.flows if flow.layout == layout]))}")
        for layout in dict.fromkeys(flow.layout for flow in found.flows)
    ]


def _title(found: NetworkMap) -> str:
    world = f"{units.show_count(found.nodes, 'node')} x {units.show_count(found.nproc_per_node, 'rank')}"
    return f"traffic of one optimizer step on {world}; estimate: derived from the project file, nothing is measured"


def _table(flows: list[Flow], longest_group: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2), header_style="dim")
    table.add_column("collective", min_width=14, no_wrap=True)
    for heading in ("size", "calls", "a step"):
        table.add_column(heading, min_width=8, no_wrap=True, justify="right")
    table.add_column("measured in", min_width=max(longest_group, len("measured in")), no_wrap=True)
    table.add_column("what", overflow="fold")
    for flow in flows:
        exchange = flow.exchange
        cells = (
            exchange.collective, units.show(exchange.bytes, units.BYTES), str(exchange.calls),
            units.show(exchange.per_step, units.BYTES), flow.group if flow.covered else _NO_TEST, exchange.why,
        )  # fmt: skip
        table.add_row(*(Text(text.visible(cell)) for cell in cells))
    return table


def _sums(flows: list[Flow]) -> list[str]:
    """What is exchanged by one collective in one group, all message sizes together."""
    sums: dict[str, list[Exchange]] = {}
    for flow in flows:
        uncovered = "" if flow.covered else " (not covered)"
        sums.setdefault(f"{flow.exchange.collective} in {flow.group}{uncovered}", []).append(flow.exchange)
    return [
        f"{what}, {units.show(sum(each.per_step for each in exchanges), units.BYTES)} in "
        f"{units.show_count(sum(each.calls for each in exchanges), 'call')} a step"
        for what, exchanges in sums.items()
    ]
