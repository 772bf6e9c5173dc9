"""`clusterqual import nccl-tests`: what it printed becomes a run folder, judged by the same requirements."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from pytest_clusterqual import __version__
from pytest_clusterqual.errors import ClusterQualError, ReadError
from pytest_clusterqual.folder.places import default_path
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.judge.fabric.reported import judge_reported
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.measure.reported_runs import together
from pytest_clusterqual.model.fabric import ReportedMeasurement
from pytest_clusterqual.model.project import FabricPlan, GroupKind, Project
from pytest_clusterqual.model.record import SCHEMA, Record
from pytest_clusterqual.model.variables import given_options
from pytest_clusterqual.read.nccl_tests import read_nccl_tests
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.read.reported import ReportedRun
from pytest_clusterqual.recorded.reporting import write_junit


def import_nccl_tests(
    files: Sequence[Path],
    *,
    group: GroupKind,
    collective: str | None = None,
    nodes: int | None = None,
    nproc_per_node: int | None = None,
    config: Path | None = None,
    run_dir: Path | None = None,
) -> RunFolder:
    """A run folder with a measurement for each collective, and its records and JUnit.

    Without a project file, `config`, all figures are MEASURED, and only wrong data FAILs. `collective` is what
    the files are of where their text does not say, `nodes` and `nproc_per_node` likewise.

    Raises:
        ClusterQualError: names every file and line that is no evidence, what to do about it, and writes nothing.
    """
    runs = _read(files, collective)
    measurements = together(
        runs, group=group, nodes=nodes, nproc_per_node=nproc_per_node,
        started=min(file.stat().st_mtime for file in files), seconds=0.0,
    )  # fmt: skip
    conditions = next(iter(measurements.values())).conditions
    nodes, nproc_per_node = conditions.nodes, conditions.nproc_per_node
    project = load_project(config, nodes=nodes, nproc_per_node=nproc_per_node) if config else None
    if project is not None and project.fabric is None:
        raise ClusterQualError(f"{config}: fabric: the section is missing, so nothing is required of this evidence")
    path = run_dir or default_path("clusterqual-runs", datetime.now(timezone.utc))
    environment = {
        "project": project.name if project else "", "argv": shlex.join(["clusterqual", *sys.argv[1:]]),
        "package": __version__, "python": sys.version.split()[0], "imported": [str(file) for file in files],
        "variables": {**runs[0].variables, **given_options(os.environ)},
        "nodes": nodes, "nproc_per_node": nproc_per_node,
    }  # fmt: skip
    folder = RunFolder.create(path, run=path.name, environment=environment, simulated=False)
    for name, measurement in measurements.items():
        _record(folder, f"import::{name}", measurement, project)
    write_junit(folder)
    return folder


def _read(files: Sequence[Path], collective: str | None) -> list[ReportedRun]:
    runs: list[ReportedRun] = []
    problems: list[str] = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            runs += read_nccl_tests(text, str(file), collective=collective)
        except OSError as error:
            problems.append(f"{file}: cannot be read: {error.strerror}")
        except ReadError as error:
            problems.append(str(error))
    if problems:
        raise ReadError("\n".join([*problems, *(problem for run in runs for problem in run.problems)]))
    return runs


def _record(folder: RunFolder, test: str, measurement: ReportedMeasurement, project: Project | None) -> None:
    kept = folder.add_measurement("fabric", test, measurement)
    judgements = judge(project, measurement) if project else judge_reported(measurement, FabricPlan())
    for judgement in judgements:
        folder.add_record(Record(
            schema=SCHEMA, run=folder.run, test=test, criterion="fabric", judgement=judgement,
            conditions=measurement.conditions, measurement=kept, started=measurement.started,
            seconds=measurement.seconds,
        ))  # fmt: skip
