"""`clusterqual import points`: scaling that somebody else measured, judged by the rules of Training Scaling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.judge.scaling.points import judge_points
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.points import JudgedPoints
from pytest_clusterqual.read.points import read_points
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.report.points_table import points_report


def import_points(file: Path, *, config: Path | None, same: Sequence[tuple[str, str]]) -> JudgedPoints:
    """All points of a table, and what may be said of each two.

    `same` are columns that the table lacks, with what is in them on every line. Without a project file, `config`,
    nothing is required.

    Raises:
        ClusterQualError: names every line and column that cannot be read, or what the project file lacks.
    """
    points = read_points(file, same)
    if config is None:
        return judge_points(points)
    project = load_project(config)
    if project.scaling is None:
        raise ClusterQualError(f"{config}: scaling: the section is missing, so nothing is required of these points")
    return judge_points(points, project.scaling.require, project.workload)


def as_text(judged: JudgedPoints, *, as_json: bool, width: int, color: bool) -> str:
    """A table, or all figures as JSON."""
    return json.dumps(to_json(judged), indent=2) if as_json else points_report(judged, width=width, color=color)
