"""Scaling points of a table as a person reads them: a row a comparison, then why, and what lies beyond."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from pytest_clusterqual import units
from pytest_clusterqual.model.points import Comparison, Curve, JudgedPoints
from pytest_clusterqual.model.record import Judgement, Verdict, worst
from pytest_clusterqual.report import text
from pytest_clusterqual.report.table import STYLES
from pytest_clusterqual.report.terminal import printed

_POINT = ("nodes", "batch", "runs", "throughput", "a device")
# Heading -> the quantity of a comparison.
_COMPARED = {
    "speedup": "speedup", "efficiency": "efficiency", "by time": "speedup_by_time_to_train",
    "normalized": "normalized_throughput",
}  # fmt: skip
_MAY_BREAK = ("", "throughput", "is", *_COMPARED)
_NONE = "-"
# Terminal columns: from here on there is room between the columns, from there on for every heading.
_ROOMY, _NARROW = 100, 90


def points_report(judged: JudgedPoints, *, width: int, color: bool = False) -> str:
    """The table of all points, what each comparison is and why, verdicts, notes and envelopes.

    `width` is in terminal columns. Plain text unless `color`.
    """
    told = {judgement.quantity for each in judged.comparisons for judgement in each.judgements}
    ratios = [heading for heading, quantity in _COMPARED.items() if quantity in told]
    table = Table(box=None, pad_edge=False, padding=(0, 2 if width >= _ROOMY else 1, 0, 0), header_style="dim")
    whose = [""] if any(_whose(judged, place) for place in judged.order) else []
    for heading in (*whose, *_POINT, "against", "is", *ratios, "verdict"):
        least = len(Verdict.UNDECIDED) if heading == "verdict" else len(heading) if width >= _NARROW else 0
        table.add_column(heading, overflow="fold", no_wrap=heading not in _MAY_BREAK, min_width=least)
    for cells, judgements in _rows(judged, ratios, named=bool(whose)):
        verdict = worst([judgement.verdict for judgement in judgements])
        table.add_row(*(Text(text.visible(cell)) for cell in cells), Text(f"{verdict}", style=STYLES[verdict]))
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    for label, sentence in _lines(judged):
        lines.add_row(Text(label), Text(text.visible(sentence)))
    return printed([table, "", lines], width, color)


def _rows(
    judged: JudgedPoints, ratios: Sequence[str], *, named: bool
) -> Iterator[tuple[tuple[str, ...], Sequence[Judgement]]]:
    """Cells without the verdict, and the judgements it is the worst of; a row a comparison, or a point without one."""
    for place in judged.order:
        point, figures = judged.points[place], judged.figures[place]
        batch = _NONE if point.global_batch is None else f"{point.global_batch}"
        own = [point.label, batch, f"{len(point.sources)}", *_throughput(judged, place)]
        own[:0] = [_whose(judged, place) or _NONE] if named else []
        compared = [each for each in judged.comparisons if each.point == place]
        if not compared:
            yield (*own, _NONE, _NONE, *(_NONE for _ in ratios)), figures
        for number, each in enumerate(compared):
            values = {judgement.quantity: _value(judgement) for judgement in each.judgements}
            yield (
                *(("",) * len(own) if number else own), _base(judged, each),
                f"{each.would_be}?" if each.would_be else each.kind,
                *(values.get(_COMPARED[heading], _NONE) for heading in ratios),
            ), (*figures, *each.judgements)  # fmt: skip


def _throughput(judged: JudgedPoints, place: int) -> tuple[str, str]:
    """Of all devices, and of each."""
    found = next((each for each in judged.figures[place] if each.quantity == "throughput"), None)
    devices = judged.points[place].devices
    if found is None or found.value is None:
        return _NONE, _NONE
    return _value(found), units.show(found.value / devices, units.RATIO) if devices else _NONE


def _value(judgement: Judgement) -> str:
    return " ".join(filter(None, (text.value_of(judgement), text.interval_of(judgement)))) or _NONE


def _whose(judged: JudgedPoints, place: int) -> str:
    """What the table tells of a point beside its size, where it does not tell the same of all."""
    names = dict.fromkeys(name for point in judged.points for name in point.identity)
    varying = [name for name in names if len({point.identity.get(name) for point in judged.points}) > 1]
    identity = judged.points[place].identity
    return " ".join(identity[name] for name in varying if name in identity)


def _named(judged: JudgedPoints, place: int) -> str:
    return " ".join(filter(None, (_whose(judged, place), judged.points[place].label)))


def _base(judged: JudgedPoints, each: Comparison) -> str:
    base, point = judged.points[each.baseline], judged.points[each.point]
    return base.label if base.identity == point.identity else _named(judged, each.baseline)


def _lines(judged: JudgedPoints) -> Iterator[tuple[str, str]]:
    """Label and sentence of each line below the table; what is said of several points is said once."""
    whys: dict[tuple[str, str], list[str]] = {}
    for each in judged.comparisons:
        if each.kind != "strong scaling":
            names = f"{_named(judged, each.point)} against {_base(judged, each)}"
            whys.setdefault((each.kind, each.why), []).append(names)
    for (kind, why), pairs in whys.items():
        yield kind, f"{', '.join(pairs)}: {why}"
    for judgement in judged.judgements:
        if judgement.requirement is not None:
            yield f"{judgement.verdict}", f"{judgement.label or 'no point'}: {judgement.reason}"
    notes: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    for each in judged.comparisons:
        for note in each.notes:
            seen = notes.setdefault((f"{note.suspect} ({note.kind})", note.check_next), {})
            seen.setdefault(note.evidence, {})[_named(judged, each.point)] = None
    for (suspect, check_next), seen in notes.items():
        evidence = "; ".join(f"{', '.join(names)}: {what}" for what, names in seen.items())
        yield "note", f"{suspect}: {evidence}; check next: {check_next}"
    for curve in judged.curves:
        whose = _whose(judged, curve.points[0])
        yield "beyond", f"{whose}: {_beyond(judged, curve)}" if whose else _beyond(judged, curve)


def _beyond(judged: JudgedPoints, curve: Curve) -> str:
    if curve.envelope is None:
        return curve.why_not
    least, most = (units.show(1 / seconds, units.RATIO) for seconds in (curve.envelope.high, curve.envelope.low))
    base = judged.points[curve.points[0]].label
    return (
        f"on {curve.envelope.nodes} nodes a speedup of {least} to {most} against {base}: "
        f"model-dependent ({', '.join(curve.envelope.models)}; fitted to {', '.join(map(str, curve.envelope.sizes))} "
        "nodes), an estimate and never a verdict"
    )
