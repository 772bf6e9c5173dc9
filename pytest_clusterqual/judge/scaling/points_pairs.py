"""Two scaling points of a table: are they the same job on more devices, and if not, in what do they differ?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.points import EVIDENCE, Kind, Point, Work
from pytest_clusterqual.model.record import Finding

WORKS: tuple[Work, ...] = ("tokens", "samples", "epochs", "FLOP", "peaks")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """`missing` is what the table does not tell of one or of both, in the words of its columns."""

    base: Point
    point: Point
    kind: Kind
    would_be: Kind | None
    differences: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def scaling(self) -> Kind:
        """What it is if all that is not told is the same."""
        return self.would_be or self.kind

    @property
    def multiple(self) -> float:
        """How many times the devices."""
        return size(self.point) / size(self.base)


def size(point: Point) -> int:
    return point.devices or point.nodes or 0


def pairs(points: Sequence[Point]) -> Iterator[tuple[tuple[int, int], Pair]]:
    """(Places of baseline and point, the two): every point beside the smaller ones that it can be compared with.

    These are the smallest of its strong and of its weak curve, or else the one it differs least from; and to say
    why it is on no curve with it, the smallest point of the same identity. That one is beside none itself, unless
    it is alone in its identity.
    """
    order = sorted(range(len(points)), key=lambda place: (size(points[place]), place))
    for family in families(points):
        for place in family:
            smaller = family[: family.index(place)]
            if not smaller and len(family) > 1:
                continue
            found = _on_curves(points, smaller, place) or _nearest(points, order[: order.index(place)], place)
            for base in dict.fromkeys([*found, *smaller[:1]]):
                yield (base, place), pair_of(points[base], points[place])


def families(points: Sequence[Point]) -> list[list[int]]:
    """Places of the points of one identity, smallest first; families in the order of the table."""
    found: dict[object, list[int]] = {}
    for place, point in enumerate(points):
        found.setdefault(tuple(sorted(point.identity.items())), []).append(place)
    return [sorted(family, key=lambda place: (size(points[place]), place)) for family in found.values()]


def _on_curves(points: Sequence[Point], smaller: Sequence[int], place: int) -> list[int]:
    found: dict[Kind, int] = {}
    for base in smaller:
        found.setdefault(pair_of(points[base], points[place]).scaling, base)
    return [found[kind] for kind in ("strong scaling", "weak scaling") if kind in found]


def _nearest(points: Sequence[Point], smaller: Sequence[int], place: int) -> list[int]:
    def distance(base: int) -> tuple[int, int, int]:
        pair = pair_of(points[base], points[place])
        return len(pair.differences) + len(pair.missing), size(points[place]) - size(points[base]), -base

    return sorted(smaller, key=distance)[:1]


def pair_of(base: Point, point: Point) -> Pair:
    job, missing = list(_job_differences(base, point)), tuple(_missing(base, point))
    shape, batch = _shape_difference(base, point), _batch_difference(base, point)
    how = not any(_differs(base, point, columns) for columns in EVIDENCE.values()) and not _sequence(base, point)
    kind = _kind(base, point, job=bool(job), how=how, shape=bool(shape), batch=bool(batch))
    would_be: Kind | None = None
    if kind in ("strong scaling", "weak scaling") and missing:
        kind, would_be = "undecided", kind
    if kind in ("another regime", "same devices", "other topology"):
        job += filter(None, (shape, batch or _accumulation_difference(base, point)))
    return Pair(base=base, point=point, kind=kind, would_be=would_be, differences=tuple(job), missing=missing)


def _kind(base: Point, point: Point, *, job: bool, how: bool, shape: bool, batch: bool) -> Kind:
    """`how` says that no difference is one of job, hardware or versions."""
    if job:
        alike = how and not batch and (base.nodes, base.devices) == (point.nodes, point.devices)
        return "same devices" if alike else "another regime"
    if shape:
        return "another regime" if batch else "other topology"
    if not base.global_batch or not point.global_batch:
        return "undecided"
    if not batch:
        return "strong scaling" if size(base) < size(point) else "same devices"
    alike = base.global_batch * size(point) == point.global_batch * size(base) and size(base) < size(point)
    return "weak scaling" if alike and base.microbatches == point.microbatches else "another regime"


def _job_differences(base: Point, point: Point) -> Iterator[str]:
    """In what is told of both and must be the same; columns in the order of the table."""
    for name, told in base.identity.items():
        if (other := point.identity.get(name)) not in (None, told):
            yield _differ(name, told, other)
    if sequence := _sequence(base, point):
        yield sequence


def _sequence(base: Point, point: Point) -> str:
    if not base.sequence_length or not point.sequence_length or base.sequence_length == point.sequence_length:
        return ""
    return _differ("sequence length", base.sequence_length, point.sequence_length)


def _differs(base: Point, point: Point, columns: re.Pattern[str]) -> bool:
    told = base.identity.keys() & point.identity.keys()
    return any(columns.fullmatch(name) and base.identity[name] != point.identity[name] for name in told)


def _shape_difference(base: Point, point: Point) -> str:
    """Other nodes; empty for more of the same, and for more devices of one node."""
    each = base.devices_per_node, point.devices_per_node
    if base.nodes == point.nodes == 1 or None in each or each[0] == each[1]:
        return ""
    return _differ("devices per node", *each)


def _batch_difference(base: Point, point: Point) -> str:
    if not base.global_batch or not point.global_batch or base.global_batch == point.global_batch:
        return ""
    each = "" if size(base) == size(point) else (
        f" ({units.show(base.global_batch / size(base), units.RATIO)} against "
        f"{units.show(point.global_batch / size(point), units.RATIO)} a device)"
    )  # fmt: skip
    accumulated = _accumulation_difference(base, point)
    return _differ("global batch", base.global_batch, point.global_batch) + each + (accumulated and f"; {accumulated}")


def _accumulation_difference(base: Point, point: Point) -> str:
    """No difference between jobs of the same global batch on other devices: there it follows from the number."""
    if base.microbatches == point.microbatches:
        return ""
    return _differ(
        "microbatches one after the other", base.microbatches or "not told", point.microbatches or "not told"
    )


def _differ(what: str, one: object, other: object) -> str:
    return f"{what.replace('_', ' ')}: {one} against {other}"


def _missing(base: Point, point: Point) -> Iterator[str]:
    for what, columns in EVIDENCE.items():
        if not any(columns.fullmatch(name) for name in base.identity.keys() & point.identity.keys()):
            yield what
    for what in ("nodes", "devices", "global_batch"):
        if getattr(base, what) is None or getattr(point, what) is None:
            yield {"devices": "ranks"}.get(what, what.replace("_", " "))
    for name in [
        name for name in {**base.identity, **point.identity} if (name in base.identity) ^ (name in point.identity)
    ]:
        yield f"{name.replace('_', ' ')} (told of one of them)"
    if (base.sequence_length is None) != (point.sequence_length is None):
        yield "sequence length (told of one of them)"


def common_rates(pair: Pair) -> tuple[list[float], list[float]] | None:
    """What both did a second, in the same count of work; None where they did not count the same.

    Steps are no work where batches may differ, and a share of the peak is none where devices or models do.
    """
    for work in WORKS:
        one, other = pair.base.scale(work), pair.point.scale(work)
        if one and other and not (work == "peaks" and pair.differences):
            return [rate * one for rate in pair.base.rates], [rate * other for rate in pair.point.rates]
    return None


def bubble_note(pair: Pair) -> Finding | None:
    """What the shape of two pipelines explains by itself: stages that wait to be filled and emptied."""
    shares = [_bubble(pair.base), _bubble(pair.point)]
    if None in shares or shares[0] == shares[1]:
        return None
    told = [
        f"{units.show_share(share or 0)} of {point.pipeline()} stages with {point.microbatches} microbatches"
        for share, point in zip(shares, (pair.base, pair.point), strict=True)
    ]
    return Finding(
        suspect="pipeline", kind="bubble", level="note",
        evidence=f"by its shape alone a pipeline idles, {' and '.join(told)}",
        check_next="more microbatches for each replica, fewer stages, or an interleaved schedule",
    )  # fmt: skip


def _bubble(point: Point) -> float | None:
    stages, microbatches = point.pipeline(), point.microbatches
    return (stages - 1) / (microbatches + stages - 1) if stages and microbatches else None


def convergence_note(pair: Pair) -> Finding | None:
    """Why a time to train is not a matter of the machine alone."""
    told = [sorted(set(point.samples_to_converge)) for point in (pair.base, pair.point)]
    if told[0] and told[0] == told[1] and len(told[0]) == 1:
        return None
    samples = [
        " to ".join(f"{number:g}" for number in dict.fromkeys((each[0], each[-1]))) if each else "an unknown number of"
        for each in told
    ]
    return Finding(
        suspect="convergence", kind="time to train", level="note",
        evidence=f"{samples[0]} samples to converge on fewer devices, {samples[1]} on more",
        check_next="the throughput: a time to train also holds how soon a run happened to converge",
    )  # fmt: skip


def slower_note(pair: Pair, ratio: float) -> Finding | None:
    """More devices that do less in all. A table cannot tell why, so nobody is accused."""
    if ratio >= 1 or pair.multiple <= 1:
        return None
    return Finding(
        suspect="all of it", kind="slower on more devices", level="note",
        evidence=f"{units.show(ratio, units.RATIO)} times the work a second on "
        f"{units.show(pair.multiple, units.RATIO)} times the devices",
        check_next="how much each device computes in a step, data loading, and the state of every device; then the "
        "links, measured by themselves",
    )  # fmt: skip
