"""What a buyer reads before there is hardware: model by node, the training job by node, and the arithmetic of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.purchase import Purchase, ServingRow, StepBounds, TrainingRow
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import printed

_TITLE = "what could be bought; estimate: arithmetic from the project file, nothing is measured"
_STYLES = {"fits": "green", "tight": "yellow", "no": "red"}
_Rows = Iterable[tuple[str | Text, ...]]


def purchase_table(found: Purchase, *, width: int, color: bool = False) -> str:
    """Parts for serving, for training, for its steps, and for small nodes against large ones, with the arithmetic.

    Every fits, tight and no is marked as an estimate. `width` is in terminal columns. Plain text unless `color`.
    """
    return printed([Text(_TITLE), *_parts(found)], width, color).rstrip()


def _parts(found: Purchase) -> Iterator[RenderableType]:
    yield from _sentences("held against", found.limits)
    yield from _serving(found.serving)
    yield from _training(found)
    yield from _steps(found.steps)
    for each in found.comparisons:
        differences = each.differences or ("nothing that is looked at here differs",)
        yield from _sentences(f"{each.small} against {each.large}, as many devices (estimate)", differences)
    yield from _sentences("what these estimates do not see", found.unseen)


def _sentences(head: str, sentences: Sequence[str]) -> Iterator[RenderableType]:
    yield Text()
    yield _head(head)
    yield from map(_indented, sentences)


def _head(words: str) -> Text:
    return Text(text.visible(words), style="bold")


def _indented(sentence: str) -> Padding:
    return Padding(Text(text.visible(sentence)), (0, 0, 0, 2))


def _serving(rows: Sequence[ServingRow]) -> Iterator[RenderableType]:
    if not rows:
        return
    cells = {(row.model, row.weights, row.node): row for row in rows}
    models, nodes = dict.fromkeys((row.model, row.weights) for row in rows), dict.fromkeys(row.node for row in rows)
    yield Text()
    yield _head("serving, model x node (estimate)")
    yield _table(
        ("model", "weights", *nodes),
        ((model, weights, *(_cell(cells[model, weights, node]) for node in nodes)) for model, weights in models),
    )
    for row in rows:
        yield Text()
        yield Text(text.visible(f"{row.model} in {row.weights} on {row.node} (estimate)"))
        yield from map(_indented, row.arithmetic)


def _cell(row: ServingRow) -> Text:
    devices = units.show_count(row.tensor, "device")
    how = {
        "one device": devices,
        "one node": f"{devices} of a node",
        "replicas": f"{row.copies} replicas of {devices}, {units.show_count(row.nodes, 'node')}",
        "cluster": f"cluster, {row.stages} nodes a copy",
        "no": "nor on several",
    }[row.means]
    return Text(f"estimate: {row.fit}; {how}", style=_STYLES[row.fit])


def _training(found: Purchase) -> Iterator[RenderableType]:
    for node in dict.fromkeys(row.node for row in found.training):
        yield Text()
        yield _head(f"training the workload of the file on {node}, bytes on the fullest rank (estimate)")
        yield _table(
            ("", "nodes x ranks", "memory", "in all", "states", "activations", "other"),
            (
                (
                    row.name if row.ladder else f"layout {row.name}", f"{row.nodes} x {row.ranks // row.nodes}",
                    Text(f"estimate: {row.fit}", style=_STYLES[row.fit]), *_bytes(row),
                )
                for row in found.training if row.node == node
            ),
        )  # fmt: skip
    if found.training:
        yield from _sentences("its arithmetic", tuple(_ways(found.training)))
        yield Text()
        yield from (Text(text.visible(f"estimate: {walk}")) for walk in found.walks)


def _ways(rows: Sequence[TrainingRow]) -> Iterator[str]:
    """The arithmetic of every part, once for all ways that have it in common, and why a way is impossible."""
    ways: dict[str, dict[str, None]] = {}
    for row in rows:
        words = row.footprint.words if row.footprint else {"impossible": row.impossible}
        for part, said in words.items():
            name = f"{row.name} on {row.ranks}" if part in ("states", "impossible") else row.name
            ways.setdefault(f"{part}: {said}", {})[name] = None
    for said in sorted(filter(lambda said: not said.endswith(": "), ways)):
        yield f"{said} ({'; '.join(ways[said])})"


def _steps(steps: Sequence[StepBounds]) -> Iterator[RenderableType]:
    if not steps:
        return
    yield Text()
    yield _head("a training step, from full overlap of communication to none (estimate)")
    yield _table(
        ("layout", "nodes", "computing", "over NICs", "step", "efficiency", "floor"),
        (
            (
                step.layout, f"{step.nodes} x {step.node}", _seconds(step.compute), _seconds(step.between),
                _range(step.step, _seconds), _range(step.efficiency, units.show_share),
                f"estimate: {step.said}",
            )
            for step in steps
        ),
    )  # fmt: skip
    for step in steps:
        yield Text()
        yield Text(text.visible(f"{step.layout} on {step.nodes} x {step.node} (estimate)"))
        yield from map(_indented, step.arithmetic)


def _table(headings: Sequence[str], rows: _Rows) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold", min_width=max(map(len, heading.split()), default=0))
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(text.visible(cell)) for cell in row))
    return table


def _bytes(row: TrainingRow) -> tuple[str, ...]:
    if row.footprint is None:
        return ("-",) * 4
    parts = row.footprint.parts
    states = parts["parameters"] + parts["gradients"] + parts["optimizer"]
    return tuple(map(units.show_decimal, (row.footprint.total, states, parts["activations"], parts["other"])))


def _seconds(value: float | None) -> str:
    return "-" if value is None else units.show(value, units.SECONDS)


def _range(bounds: tuple[float, float] | None, show: Callable[[float], str]) -> str:
    """From the less to the more."""
    if bounds is None:
        return "-"
    low, high = show(min(bounds)), show(max(bounds))
    return low if low == high else f"{low} to {high}"
