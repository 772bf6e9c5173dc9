"""Tables of scaling points for tests: written, read and judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pytest_clusterqual.judge.scaling.points import judge_points
from pytest_clusterqual.model.points import Comparison, JudgedPoints, Point
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.workload import Workload
from pytest_clusterqual.read.points import read_points

# What must be told of every point so that two of them can be called the same job.
TOLD = (("hardware", "H100"), ("model", "8B"), ("software", "torch 2.8"))


def table(folder: Path, *lines: str) -> Path:
    path = folder / "points.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def points(folder: Path, *lines: str, same: Sequence[tuple[str, str]] = TOLD) -> tuple[Point, ...]:
    return read_points(table(folder, *lines), same)


def judged(
    folder: Path,
    *lines: str,
    same: Sequence[tuple[str, str]] = TOLD,
    require: Sequence[Requirement] = (),
    workload: Workload | None = None,
) -> JudgedPoints:
    return judge_points(points(folder, *lines, same=same), require, workload)


def between(judged: JudgedPoints, base: str, point: str, **identity: str) -> Comparison:
    """The comparison of two points by their labels, such as ``2 x 8``; `identity` is what the larger one says."""
    (found,) = [
        each for each in judged.comparisons
        if (judged.points[each.baseline].label, judged.points[each.point].label) == (base, point)
        and identity.items() <= judged.points[each.point].identity.items()
    ]  # fmt: skip
    return found


def values(comparison: Comparison) -> dict[str, float | None]:
    return {judgement.quantity: judgement.value for judgement in comparison.judgements}


def lines_of(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """The lines of a table that has a column for each key."""
    found = list(rows)
    columns = list(dict.fromkeys(name for row in found for name in row))
    return [",".join(columns), *(",".join(f"{row.get(name, '')}" for name in columns) for row in found)]
