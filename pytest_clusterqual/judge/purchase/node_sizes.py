"""Several small nodes against fewer large ones with as many devices: what differs, in words. Estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_clusterqual import units
from pytest_clusterqual.model.purchase import Comparison, NodeType, ServingRow, StepBounds, TrainingRow


def comparisons(
    nodes: Sequence[NodeType],
    serving: Sequence[ServingRow],
    training: Sequence[TrainingRow],
    steps: Sequence[StepBounds],
) -> Iterator[Comparison]:
    for small in nodes:
        for large in nodes:
            for few in large.counts:
                many = few * large.devices // small.devices
                if (
                    small.devices < large.devices
                    and many in small.counts
                    and many * small.devices == few * large.devices
                ):
                    yield Comparison(
                        small=f"{many} x {small.name}", large=f"{few} x {large.name}",
                        differences=(
                            *_price(small, many, large, few),
                            *_served(serving, small, large),
                            *_trained(training, steps, (small.name, many), (large.name, few)),
                        ),
                    )  # fmt: skip


def _price(small: NodeType, many: int, large: NodeType, few: int) -> Iterator[str]:
    if small.price is not None and large.price is not None:
        sums = [
            f"{count} x {units.show_number(price)} = {units.show_number(count * price)}"
            for count, price in ((many, small.price), (few, large.price))
        ]
        yield f"price: {' against '.join(sums)}"


def _served(rows: Sequence[ServingRow], small: NodeType, large: NodeType) -> Iterator[str]:
    """Copies that need several small nodes, and one large node at most."""
    at = {(row.model, row.weights, row.node): row for row in rows}
    for (model, weights, name), row in at.items():
        if name != small.name or row.means != "cluster":
            continue
        other = at[model, weights, large.name]
        if other.means in ("cluster", "no"):
            continue
        yield (
            f"{model} in {weights}: a copy stays inside one {large.name} (tensor parallel {other.tensor}); of "
            f"{small.name} it takes {row.stages}, and crosses NICs with every token"
        )


def _trained(
    rows: Sequence[TrainingRow], steps: Sequence[StepBounds], small: tuple[str, int], large: tuple[str, int]
) -> Iterator[str]:
    found = {(each.layout, each.node, each.nodes): each for each in steps}
    fits = {(row.name, row.node, row.nodes): row.fit for row in rows if not row.ladder}
    for name in dict.fromkeys(row.name for row in rows if not row.ladder):
        one, other = found.get((name, *small)), found.get((name, *large))
        if one is None or other is None:
            either = (fits.get((name, *small)), fits.get((name, *large)))
            if either != ("no", "no"):
                yield f"{name}: {either[0]} on {small[1]} x {small[0]}, {either[1]} on {large[1]} x {large[0]}"
            continue
        cross = [units.show_decimal(each.crossing) for each in (one, other)]
        text = f"{name}: a rank exchanges {cross[0]} a step in groups that cross NICs, against {cross[1]}"
        if one.step and other.step:
            text += f"; a step takes {_between(one.step)} against {_between(other.step)}"
        yield text


def _between(step: tuple[float, float]) -> str:
    """From full overlap to none."""
    return f"{units.show(step[1], units.SECONDS)} to {units.show(step[0], units.SECONDS)}"
