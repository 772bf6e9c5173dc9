"""The project file, from text to words: everything that is wrong with it is said at once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.model.command import CommandJob
from pytest_clusterqual.model.full_run import Checkpoints, Failure
from pytest_clusterqual.model.project import (
    DecisionPlan,
    FabricPlan,
    FullRunPlan,
    KnownException,
    LauncherOptions,
    MemoryPlan,
    Project,
    ScalingPlan,
    Target,
    TopologyPlan,
)
from pytest_clusterqual.model.purchase import PurchasePlan
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout, Workload
from pytest_clusterqual.read.messages import dotted
from pytest_clusterqual.read.reading import Reading
from pytest_clusterqual.read.schema import LauncherSection, TrainingSection
from pytest_clusterqual.read.yaml_lines import Problem, read_document

LARGEST = 256 * 1024
MOST_PROBLEMS = 100
LONGEST_LINE = 600


def load_project(
    path: Path, *, nodes: int | None = None, nproc_per_node: int | None = None, data: bool = True,
    option: str = "--qual-config",
) -> Project:  # fmt: skip
    """Read, validate and convert the project file at `path`.

    `nodes` and `nproc_per_node` are what the options ask for; with them the file is also checked
    against the ranks there will be. `nproc_per_node` replaces the file's own. Without `data` the job's data
    are not looked for. `option` is the one that names the file where this is asked for.

    Raises:
        ProjectFileError: with all problems of the file, one line each.
    """
    name = _shown_path(path)
    text = _text(path, name, f"point to the project file with {option} FILE")
    return _read(text, path, name, nodes, nproc_per_node, data=data)


def recorded_project(text: str, *, name: str, nodes: int, nproc_per_node: int) -> Project:
    """The project file that a run has recorded; its data need not be on this machine.

    Raises:
        ProjectFileError: as `load_project`; `name` stands for the file.
    """
    return _read(text, Path(name), name, nodes, nproc_per_node, data=False)


def _read(text: str, path: Path, name: str, nodes: int | None, nproc_per_node: int | None, *, data: bool) -> Project:
    document = read_document(text)
    reading = Reading(document)
    if document.readable:
        reading.read(path.parent if data else None, nodes, nproc_per_node)
    if reading.problems:
        raise ProjectFileError(_lines(name, reading.problems))
    return _project(reading, path, name, nproc_per_node)


def _shown_path(path: Path) -> str:
    """The path as a person in the current directory would type it."""
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def _text(path: Path, name: str, elsewhere: str) -> str:
    if path.is_dir():
        raise ProjectFileError([f"{name}: this is a folder, not a file; {elsewhere}"])
    if not path.is_file():
        raise ProjectFileError([f"{name}: there is no such file; {elsewhere}"])
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ProjectFileError([f"{name}: cannot be read: {error.strerror}; {elsewhere}"]) from None
    if len(content) > LARGEST:
        raise ProjectFileError([f"{name}: larger than {LARGEST // 1024} KiB, which no project file is; {elsewhere}"])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ProjectFileError([f"{name}:{line}: not UTF-8 text; save it as UTF-8, or {elsewhere}"]) from None
    if not text.strip():
        raise ProjectFileError([f"{name}: the file is empty, want version, project, workload and layouts"])
    return text


def _lines(name: str, problems: Iterable[Problem]) -> list[str]:
    """The lines of the error; cut where a file that is no project file at all would fill the screen for minutes."""
    lines = []
    for problem in sorted(dict.fromkeys(problems), key=lambda problem: problem.line):
        key = f"{dotted(problem.where)}: " if problem.where else ""
        line = f"{name}:{problem.line}: {key}{problem.text}"
        lines.append(line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}...")
    left_out = len(lines) - MOST_PROBLEMS
    return lines if left_out <= 0 else [*lines[:MOST_PROBLEMS], f"{name}: and {left_out} more problems"]


def _project(reading: Reading, path: Path, name: str, nproc_per_node: int | None) -> Project:
    """The words for a document without problems."""
    assert reading.head is not None  # a section that is missing is a problem of the file
    launcher = _launcher(reading.launcher or LauncherSection())
    return Project(
        path=path,
        name=reading.head.project,
        launcher=dataclasses.replace(launcher, nproc_per_node=nproc_per_node or launcher.nproc_per_node),
        job=_job(reading, path.parent),
        layouts=_layouts(reading),
        target=Target(**reading.target.model_dump()) if reading.target else None,
        topology=_topology(reading, name),
        memory=_memory(reading, name),
        fabric=_fabric(reading, name),
        scaling=_scaling(reading, name),
        full_run=_full_run(reading, name, path.parent),
        decision=_decision(reading, name),
        purchase=_purchase(reading, name),
        exceptions=tuple(KnownException(**entry.model_dump()) for _index, entry in reading.exceptions),
    )


def _launcher(section: LauncherSection) -> LauncherOptions:
    fields = section.model_dump(exclude={"slurm"})
    return LauncherOptions(slurm=section.slurm.options(), **fields)


def _job(reading: Reading, folder: Path) -> Workload | CommandJob:
    if reading.command is not None:
        return reading.command.job(folder)
    assert reading.workload is not None  # a section that is missing is a problem of the file
    return reading.workload.job(folder)


def _layouts(reading: Reading) -> tuple[Layout, ...]:
    """Those of the file; a command has one, its own, which bears its name."""
    if reading.command is not None:
        return (Layout(name=reading.command.name),)
    return tuple(Layout(**layout.model_dump()) for _index, layout in reading.layouts)


def _requirements(reading: Reading, criterion: str, name: str) -> tuple[Requirement, ...]:
    return tuple(
        demand.requirement(f"{name}:{reading.document.line((criterion, 'require', index, demand.quantity))}")
        for index, demand in reading.demands.get(criterion, [])
    )


def _chosen(section: TrainingSection) -> tuple[str, ...] | None:
    return None if section.layouts is None else tuple(section.layouts)


def _topology(reading: Reading, name: str) -> TopologyPlan | None:
    def place(key: str) -> str:
        return f"{name}:{reading.document.line(('topology', key) if key else ('topology',))}"

    return reading.topology.plan(place) if reading.topology else None


def _memory(reading: Reading, name: str) -> MemoryPlan | None:
    section = reading.memory
    if section is None:
        return None
    return MemoryPlan(
        layouts=_chosen(section),
        steps=section.steps,
        ladder=section.ladder,
        device_memory=None if section.device_memory is None else int(section.device_memory),
        budget=section.budget,
        require=_requirements(reading, "memory", name),
    )


def _fabric(reading: Reading, name: str) -> FabricPlan | None:
    section = reading.fabric
    if section is None:
        return None
    return FabricPlan(
        collectives=None if section.collectives is None else tuple(section.collectives),
        groups=tuple(section.groups),
        sizes=section.sizes.expand(),
        traffic=section.traffic,
        links=Links(**section.links.model_dump()),
        algorithm=section.algorithm,
        engine=section.engine,
        pairs=section.pairs,
        rank_maps=tuple(section.rank_maps),
        synchronization=tuple(section.synchronization),
        budget=section.budget,
        require=_requirements(reading, "fabric", name),
    )


def _scaling(reading: Reading, name: str) -> ScalingPlan | None:
    section = reading.scaling
    if section is None:
        return None
    return ScalingPlan(
        layouts=_chosen(section),
        points=tuple(section.points),
        repeats=section.repeats,
        launches=section.launches,
        waterfall=section.waterfall,
        warmup_steps=section.warmup_steps,
        rank_maps=tuple(section.rank_maps),
        budget=section.budget,
        require=_requirements(reading, "scaling", name),
    )


def _decision(reading: Reading, name: str) -> DecisionPlan | None:
    section = reading.decision
    if section is None:
        return None
    return DecisionPlan(
        expect=section.expect, goal=section.goal, source=f"{name}:{reading.document.line(('decision', 'expect'))}"
    )


def _purchase(reading: Reading, name: str) -> PurchasePlan | None:
    def place(key: str) -> str:
        return f"{name}:{reading.document.line(('purchase', key))}"

    return reading.purchase.plan(place) if reading.purchase else None


def _full_run(reading: Reading, name: str, beside: Path) -> FullRunPlan | None:
    section = reading.full_run
    if section is None:
        return None
    return FullRunPlan(
        layouts=_chosen(section),
        steps=section.steps,
        minutes=section.minutes * 60 if section.minutes else None,
        checkpoints=tuple(
            Checkpoints(
                every=entry.every,
                mode=entry.mode,
                folder=os.path.abspath(beside / entry.folder) if entry.folder else None,
            )
            for entry in section.checkpoint
        ),
        failures=tuple(
            Failure(kind=entry.kind, step=entry.at_step, target=entry.target, go_on=entry.go_on)
            for entry in section.failure or ()
        ),
        hang_timeout=section.hang_timeout,
        time_between_failures=section.time_between_failures,
        alone=section.alone,
        apart=section.apart,
        require=_requirements(reading, "full_run", name),
    )
