"""What a qualification run is asked for: command line, then environment, then project file; and where it writes."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_clusterqual import __version__, plugin
from pytest_clusterqual.errors import ClusterQualError, ProjectFileError, RunFolderError
from pytest_clusterqual.folder.leases import write_alone
from pytest_clusterqual.folder.places import ENVIRONMENT, default_path
from pytest_clusterqual.folder.runs import RunFolder, read_environment
from pytest_clusterqual.measure.needs import Needs
from pytest_clusterqual.model.baseline import Baseline
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.project import LauncherOptions, Project
from pytest_clusterqual.model.traffic import NetworkMap
from pytest_clusterqual.model.variables import environment_variables
from pytest_clusterqual.options import PROJECT_FILE, tolerance
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.recorded.baseline import recorded_baseline, with_baseline
from pytest_clusterqual.recorded.reporting import check_place
from pytest_clusterqual.run.replay import Replay
from pytest_clusterqual.session.hosts import launcher_options

# What must be the same if a run is to go on, beside its baseline.
_SAME = ("project_file", "package", "nodes", "nproc_per_node", "launcher", "named_hosts", "simulated")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A project on `nodes` nodes with `nproc_per_node` ranks each; its launcher is the one that is really wanted.

    `report` is where the page goes; None: into the run folder. With `replay` a recorded run stands for the nodes;
    `resumed` is the one that goes on.
    """

    project: Project
    nodes: int
    nproc_per_node: int
    report: Path | None = None
    replay: Replay | None = None
    resumed: RunFolder | None = None

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names for tests of single nodes: the hosts' where they are known without asking anybody."""
        options = self.project.launcher
        if options.kind in ("ssh", "mpi") and len(options.hosts) >= self.nodes:
            return options.hosts[: self.nodes]
        return tuple(f"node{index}" for index in range(self.nodes))

    @cached_property
    def network_map(self) -> NetworkMap:
        """What the layouts exchange on this many ranks; of thousands it takes seconds."""
        return Needs(self.project, nodes=self.nodes, nproc_per_node=self.nproc_per_node).network_map()


def read_asked(config: pytest.Config) -> Asked:
    """Read the options and the project file; nothing is started.

    Raises:
        ClusterQualError: they do not allow a run.
    """
    nproc_per_node = _whole(plugin.option(config, "--nproc-per-node"), "--nproc-per-node")
    nodes = _whole(plugin.option(config, "--nodes"), "--nodes")
    file = _find_file(config)
    if replay := Replay.of(config):
        return _replayed(config, file, replay, nodes, nproc_per_node)
    if config.getoption("--qual-again") and not plugin.option(config, "--qual-resume"):
        raise ClusterQualError("--qual-again measures tests of a recorded run anew; name its folder with --qual-resume")
    named = plugin.option(config, "--qual-resume")
    if named and plugin.option(config, "--qual-run-dir"):
        raise RunFolderError("--qual-resume goes on in its own folder; leave out --qual-run-dir")
    resumed = _resumed(Path(config.invocation_params.dir) / named) if named else None
    if resumed is not None:  # it says itself how large it is
        nodes = nodes or resumed.environment.get("nodes")
        nproc_per_node = nproc_per_node or resumed.environment.get("nproc_per_node")
    nodes = nodes or _nodes_there(config, load_project(file))
    project = load_project(file, nodes=nodes, nproc_per_node=nproc_per_node)
    project = replace(project, launcher=_launcher(config, project))
    return Asked(
        project=_with_baseline(config, project, recorded_baseline(resumed) if resumed else None),
        nodes=nodes, nproc_per_node=nproc_per_node or project.launcher.nproc_per_node, report=_report(config),
        resumed=resumed,
    )  # fmt: skip


def _replayed(
    config: pytest.Config, file: Path, replay: Replay, nodes: int | None, nproc_per_node: int | None
) -> Asked:
    """The project file of today on the nodes of then; the job's data need not be here any more."""
    size = replay.size()
    for name, asked, was in zip(("--nodes", "--nproc-per-node"), (nodes, nproc_per_node), size, strict=True):
        if asked not in (None, was):
            raise ClusterQualError(f"{name}: got {asked}, the run that is replayed had {was}; leave it out")
    project = load_project(file, nodes=size[0], nproc_per_node=size[1], data=False)
    return Asked(
        project=_with_baseline(config, project, replay.baseline), nodes=size[0], nproc_per_node=size[1],
        report=_report(config), replay=replay,
    )  # fmt: skip


def _report(config: pytest.Config) -> Path | None:
    """Where the page is to go; told before anything runs if it cannot."""
    if not (named := plugin.option(config, "--qual-report")):
        return None
    base = Path(config.invocation_params.dir)
    page: Path = base / named
    run = plugin.option(config, "--qual-run-dir") or plugin.option(config, "--qual-resume")
    check_place(page, run=base / run if run else None)
    return page


def _with_baseline(config: pytest.Config, project: Project, own: Baseline | None) -> Project:
    """With the baseline that the options name; else with the `own` one of the run that goes on or is replayed."""
    if not (named := plugin.option(config, "--qual-baseline")):
        if config.getoption("--qual-tolerance"):
            raise ClusterQualError(
                "--qual-tolerance: says how much worse than a baseline a run may be; name that run with --qual-baseline"
            )
        return replace(project, baseline=own)
    try:
        share = tolerance(plugin.option(config, "--qual-tolerance") or "5 %")
    except argparse.ArgumentTypeError as error:
        raise ClusterQualError(f"--qual-tolerance: {error}") from None
    return with_baseline(project, Path(config.invocation_params.dir) / named, tolerance=share)


def _launcher(config: pytest.Config, project: Project) -> LauncherOptions:
    kind, hosts = (plugin.option(config, name) for name in ("--qual-launcher", "--qual-hosts"))
    return launcher_options(project.launcher, kind=kind, hosts=hosts)


def _nodes_there(config: pytest.Config, project: Project) -> int:
    """How many nodes there are, where nobody said how many to take."""
    options = _launcher(config, project)
    allocated = os.environ.get("SLURM_JOB_NUM_NODES", "") if options.kind == "slurm" else ""
    if options.hosts or allocated.isdecimal():
        return len(options.hosts) or int(allocated)
    raise ClusterQualError("say how many nodes to qualify, e.g. --nodes 2")


def _find_file(config: pytest.Config) -> Path:
    if named := plugin.option(config, "--qual-config"):
        return Path(named)
    places = _beside_tests(config)
    places += [Path(config.invocation_params.dir), Path(config.invocation_params.dir) / "qualification"]
    found = next((place / PROJECT_FILE for place in places if (place / PROJECT_FILE).is_file()), None)
    if found is None:
        raise ProjectFileError([
            f"no {PROJECT_FILE} in {', '.join(dict.fromkeys(str(place) for place in places))}; "
            "put one beside the tests, or name one with --qual-config FILE"
        ])  # fmt: skip
    return found


def _beside_tests(config: pytest.Config) -> list[Path]:
    """The folders of the tests that were named on the command line."""
    named = [Path(argument.partition("::")[0]) for argument in config.args]
    return [place if place.is_dir() else place.parent for place in named]


def _whole(value: object, name: str) -> int | None:
    if value is None or isinstance(value, int):
        return value
    if str(value).isdecimal() and int(str(value)) > 0:
        return int(str(value))
    raise ClusterQualError(f"{name}: got {value!r} from the environment, want a positive whole number")


def import_path(config: pytest.Config, project: Project) -> list[str]:
    """Where users' own job functions are found on the ranks: beside the tests and where pytest runs."""
    here = Path(config.invocation_params.dir)
    tests = [here / place for place in _beside_tests(config)]
    return list(dict.fromkeys(map(str, (project.path.resolve().parent, *tests, config.rootpath, here))))


def open_folder(config: pytest.Config, asked: Asked, *, simulated: bool) -> RunFolder:
    """Make the run folder that the options name, or open the one of the run that is to go on.

    Raises:
        RunFolderError: it cannot be written, holds another run, or one that was asked for something else.
    """
    base = Path(config.invocation_params.dir)
    named = plugin.option(config, "--qual-run-dir")
    if asked.resumed:
        now = {**_environment(config, asked), "simulated": simulated}
        _check_same(asked.resumed, now, asked.project.baseline)
        config.add_cleanup(write_alone(asked.resumed.path))
        asked.resumed.merge()  # a killed controller leaves the parts of its workers
        folder = RunFolder.open(asked.resumed.path)
        folder.begin_attempt()
    else:
        path = base / named if named else default_path(base / "clusterqual-runs", datetime.now(timezone.utc))
        folder = RunFolder.create(path, run=path.name, environment=_environment(config, asked), simulated=simulated)
        config.add_cleanup(write_alone(path))
    (folder.path / "ranks").mkdir(exist_ok=True)
    return folder


def _check_same(folder: RunFolder, now: dict[str, Any], baseline: Baseline | None) -> None:
    """That the run may go on as what it `now` would be."""
    if first := folder.environment.get("replay_of"):
        raise RunFolderError(
            f"{folder.path}: cannot go on: it is a replay of {first}, in which nothing was measured; "
            f"name {first} with --qual-resume, or start a new run"
        )
    for key in _SAME:
        before = folder.environment.get(key)
        if before != now[key]:
            what = "another text" if key == "project_file" else f"{before}, now {now[key]}"
            raise RunFolderError(_cannot_go_on(folder, f"{key} was {what}"))
    if (own := recorded_baseline(folder)) != baseline:
        was, is_now = (str(each or "none") for each in (own, baseline))
        raise RunFolderError(
            f"{folder.path}: cannot go on: the baseline was {was}, "
            f"now {is_now if is_now != was else 'a run of that name with other figures'}; leave out --qual-baseline to "
            "keep what it was, or start a new run without --qual-resume"
        )


def other_machine(folder: RunFolder, conditions: Conditions | None) -> str:
    """Why what was measured under these conditions has no place in a run that went on: the device or torch is not what
    the run began with. Empty if it has one.
    """
    before, versions = folder.environment, folder.environment.get("versions")
    if conditions is None or folder.attempt == 1 or not isinstance(versions, dict):
        return ""
    was = {"device": before.get("device"), "torch": versions.get("torch")}
    now = {"device": conditions.device, "torch": conditions.versions.get("torch")}
    others = [f"{key} was {was[key]}, now {now[key]}" for key in was if was[key] and was[key] != now[key]]
    return _cannot_go_on(folder, " and ".join(others)) if others else ""


def _resumed(path: Path) -> RunFolder:
    """What the run that goes on was asked: its lines are read once the folder is this session's, and by no worker."""
    return RunFolder(path, read_environment(path / ENVIRONMENT))


def _cannot_go_on(folder: RunFolder, why: str) -> str:
    return f"{folder.path}: cannot go on: {why}; start a new run without --qual-resume"


def _environment(config: pytest.Config, asked: Asked) -> dict[str, Any]:
    return {
        "project": asked.project.name,
        "project_file": asked.project.path.read_text(encoding="utf-8"),
        "argv": shlex.join(["pytest", *config.invocation_params.args]),
        "package": __version__,
        "python": sys.version.split()[0],
        "variables": environment_variables(os.environ),
        "nodes": asked.nodes,
        "nproc_per_node": asked.nproc_per_node,
        "launcher": asked.project.launcher.kind,
        "named_hosts": list(asked.project.launcher.hosts),
        "decision": to_json(asked.project.decision),
        "baseline": to_json(asked.project.baseline),
    }
