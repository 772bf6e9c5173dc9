"""One run of a program of nccl-tests: on every node by itself, or on all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_clusterqual.errors import JobError, LaunchError
from pytest_clusterqual.launch.perf import PROGRAMS, commands, run
from pytest_clusterqual.launch.plan import Launcher, NodePlan
from pytest_clusterqual.launch.process import Output, how_it_ended
from pytest_clusterqual.model.project import FabricPlan, LauncherOptions

_LEAVE_SECONDS = 10.0
_NOT_FOUND = 127  # what shells, `env` and the tether say of a program that is not there


def perf_run(
    launcher: Launcher,
    nodes: Sequence[NodePlan],
    nproc_per_node: int,
    plan: FabricPlan,
    *,
    collective: str,
    group: str,
    number: int,
    limits: LauncherOptions,
    logs: Path,
) -> list[Path]:
    """The `number`-th run over the sizes of the plan; what was printed in each group, as a file in `logs`.

    Raises:
        LaunchError: the program cannot be run so, or is not there.
        JobError: it failed, or did not end in time.
    """
    argvs = commands(
        launcher, nodes, nproc_per_node, collective=collective, group=group, sizes=plan.sizes,
        limit=limits.job_timeout + _LEAVE_SECONDS,
    )  # fmt: skip
    alone = len(argvs) == len(nodes)
    logs.mkdir(exist_ok=True)
    written = []
    for index, output in enumerate(run(argvs, timeout=limits.job_timeout)):
        name = nodes[index].name if alone else "all nodes"
        path = logs / f"{collective}-{group}-run{number}-{name.replace(' ', '-')}.log"
        path.write_text(output.out + output.err, encoding="utf-8")
        culprits = [nodes[index].name] if alone else []
        _check(launcher, output, f"{PROGRAMS[collective]} on {name}", path, limits.job_timeout, culprits)
        written.append(path)
    return written


def _check(launcher: Launcher, output: Output, what: str, log: Path, timeout: float, culprits: Sequence[str]) -> None:
    if output.code == 0:
        return
    if output.code is None:
        raise JobError(
            f"{what} did not end within {timeout:g} s (launcher.job_timeout); what it printed is in {log}",
            culprits=culprits,
        )
    said = [line for line in (output.err or output.out).strip().splitlines() if line.strip()][-1:] or ["nothing"]
    if output.code == _NOT_FOUND:
        raise LaunchError(
            f"{what} was not found: {said[0]}; put the programs of nccl-tests on the PATH of every node, or leave out "
            "fabric.engine",
            culprits=culprits,
        )
    why = launcher.explain(output.err) or f"it {how_it_ended(output.code)} and said {said[0]}"
    raise JobError(f"{what} failed: {why}; what it printed is in {log}", culprits=culprits)
