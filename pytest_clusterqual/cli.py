"""The `clusterqual` command: what can be done with a recorded run, without the hardware."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_clusterqual import __version__
from pytest_clusterqual.errors import ClusterQualError

if TYPE_CHECKING:
    from pytest_clusterqual.model.record import Record
    from pytest_clusterqual.runs import RunFolder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 all verdicts PASS, 1 not all, 2 usage, 4 something could not be read."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.function(arguments))
    except ClusterQualError as error:
        print(f"clusterqual: {error}", file=sys.stderr)
        return 4
    except BrokenPipeError:
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="clusterqual", description="Read recorded qualification runs again.")
    parser.add_argument("--version", action="version", version=f"clusterqual {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="print the verdicts of a run and write its junit.xml again")
    report.add_argument("run", type=Path, help="run folder")
    report.set_defaults(function=_report)
    judge = commands.add_parser("judge", help="judge the raw measurements of a run under another project file")
    judge.add_argument("run", type=Path, help="run folder")
    judge.add_argument("--config", type=Path, required=True, help="project file with the requirements to apply")
    judge.set_defaults(function=_judge)
    return parser


def _report(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.report import junit
    from pytest_clusterqual.runs import RunFolder

    folder = RunFolder.open(arguments.run)
    records = folder.records()
    properties = {"clusterqual.run": folder.run, "clusterqual.simulated": str(folder.simulated).lower()}
    junit.write_junit(records, folder.path / "junit.xml", suite="clusterqual", properties=properties)
    return _print(folder, records)


def _judge(arguments: argparse.Namespace) -> int:
    """Judge again; the run folder is only read. A test that failed to measure keeps its ERROR."""
    from pytest_clusterqual import criteria
    from pytest_clusterqual.model.record import SCHEMA, Record
    from pytest_clusterqual.read.project import load_project
    from pytest_clusterqual.runs import RunFolder

    folder = RunFolder.open(arguments.run)
    size = {name: folder.environment.get(name) for name in ("nodes", "nproc_per_node")}
    project = load_project(arguments.config, **size)
    records: list[Record] = []
    for name, (test, criterion, measurement) in folder.measurements().items():
        records += [
            Record(
                schema=SCHEMA,
                run=folder.run,
                test=test,
                criterion=criterion,
                judgement=judgement,
                conditions=measurement.conditions,
                measurement=name,
                started=measurement.started,
                seconds=measurement.seconds,
            )
            for judgement in criteria.judge(project, measurement)
        ]
    records += [replace(record) for record in folder.records() if record.measurement is None]
    return _print(folder, records)


def _print(folder: RunFolder, records: Sequence[Record]) -> int:
    from pytest_clusterqual.model.record import Verdict, worst
    from pytest_clusterqual.report import terminal

    width = shutil.get_terminal_size((100, 24)).columns
    print(terminal.summary(
        records, run_folder=str(folder.path), simulated=folder.simulated, width=width, color=sys.stdout.isatty()
    ))  # fmt: skip
    for torn in folder.torn:
        print(f"{torn}: the last line was cut off by a kill and is left out", file=sys.stderr)
    return 0 if worst([record.judgement.verdict for record in records]) is Verdict.PASS else 1
