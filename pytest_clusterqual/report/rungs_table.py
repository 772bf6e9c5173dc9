"""What a person reads of the memory ladder before there is hardware: each rung, its parts, and what fits."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.estimate import EstimatedLadder, EstimatedRung
from pytest_clusterqual.report import text
from pytest_clusterqual.report.terminal import printed

_PARTS = {
    "parameters": "params", "gradients": "grads", "optimizer": "optim.", "activations": "activ.", "other": "other",
}  # fmt: skip
_ROOMY = 90  # terminal columns
_STYLES = {"fits": "green", "tight": "yellow", "no": "red", None: ""}


def rungs_table(ladder: EstimatedLadder, *, width: int, color: bool = False) -> str:
    """A row a rung: the peak of the fullest rank, what it is made of, and whether it fits; all of it estimate.

    `width` is in terminal columns. Plain text unless `color`.
    """
    notes = [Text(text.visible(line)) for line in _notes(ladder)]
    unseen = [Text(f"  - {each}") for each in ladder.unseen]
    parts: list[Text | Table] = [Text(f"{_title(ladder)}\n"), _table(ladder, width), Text(), *notes]
    parts += [Text("the estimate cannot see, and a device holds besides:"), *unseen]
    return printed(parts, width, color).rstrip()


def _title(ladder: EstimatedLadder) -> str:
    kind = {"cpu": "CPU", "cuda": "CUDA"}[ladder.device]
    world = f"{ladder.nodes} x {ladder.nproc_per_node}"
    return f"estimate of a rank's tensors as {kind} would hold them, from one device up to {world}; nothing is measured"


def _table(ladder: EstimatedLadder, width: int) -> Table:
    roomy = width >= _ROOMY
    table = Table(box=None, pad_edge=False, padding=(0, 0, 0, 2 if roomy else 1), header_style="dim")
    table.add_column("rung", overflow="fold", min_width=10)
    if roomy:
        table.add_column("ranks", no_wrap=True, justify="right")
    for heading in ("peak", *_PARTS.values()):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("estimate", overflow="fold", min_width=10)
    for row in ladder.rungs:
        name, ranks = text.visible(row.rung.name), f"{row.rung.nodes} x {row.rung.per_node}"
        first = (name, ranks) if roomy else (f"{name}\n{ranks}",)
        word = Text(text.visible(_word(row)), style=_STYLES[row.fits])
        table.add_row(*map(Text, (*first, *_sizes(row))), word)
    return table


def _sizes(row: EstimatedRung) -> list[str]:
    if row.estimate is None:
        return ["-"] * (1 + len(_PARTS))
    sizes = (row.estimate.peak, *(row.estimate.parts[name] for name in _PARTS))
    return [units.show(size, units.BYTES) for size in sizes]


def _word(row: EstimatedRung) -> str:
    if row.estimate is None:
        return "impossible"
    method = "estimate" if row.estimate.method == "fake tensors" else "estimate by arithmetic"
    return f"{row.fits} ({method})" if row.fits else method


def _notes(ladder: EstimatedLadder) -> list[str]:
    lines = [f"{row.rung.name}: impossible: {row.rung.impossible}" for row in ladder.rungs if row.estimate is None]
    reasons: dict[str, list[str]] = {}
    for row in ladder.rungs:
        if row.estimate is not None and row.estimate.reason:
            reasons.setdefault(row.estimate.reason, []).append(row.rung.name)
    lines += [f"{', '.join(names)}: estimate by arithmetic: {reason}" for reason, names in reasons.items()]
    return [*lines, _held_against(ladder)]


def _held_against(ladder: EstimatedLadder) -> str:
    if ladder.device_memory is None:
        return "no memory of a device is known: give memory.device_memory or topology.gpu_memory to see what fits"
    memory = f"{units.show(ladder.device_memory, units.BYTES)} ({ladder.memory_from})"
    first = next((row.rung.name for row in ladder.rungs if row.fits == "fits"), None)
    found = f"first estimate that fits: {first}" if first else "no estimate fits"
    if not ladder.headroom:
        return f"{found}; held against {memory}, of which memory.require wants no headroom"
    share = units.show_share(ladder.headroom)
    return f"{found}; held against {memory}, of which {share} must stay free; tight: there is room, but less is left"
