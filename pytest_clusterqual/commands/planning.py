"""What `clusterqual plan` derives from the project file, part by part; nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_clusterqual.commands.estimating import estimated_ladder
from pytest_clusterqual.judge.purchase.verdict import judge_purchase
from pytest_clusterqual.measure.needs import Needs
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.report.network_map import network_map
from pytest_clusterqual.report.purchase_table import purchase_table
from pytest_clusterqual.report.rungs_table import rungs_table


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of a plan: its key in JSON, what was found, and what makes text of it for a terminal."""

    key: str
    found: Any
    show: Callable[..., str]


def parts(project: Project, *, nodes: int | None) -> Iterator[Part]:
    """The traffic of the layouts on `nodes`, and the ladder where the file has a section on memory and the job a shape.

    Then what could be bought, where the file has a section on that; it names nodes of its own.
    """
    if nodes is not None:
        needs = Needs(project, nodes=nodes, nproc_per_node=project.launcher.nproc_per_node)
        yield Part(key="network_map", found=needs.network_map(), show=network_map)
        if project.memory is not None and project.command is None and project.workload.factory is None:
            yield Part(key="memory_ladder", found=estimated_ladder(project, nodes=nodes), show=rungs_table)
    if project.purchase is not None:
        yield Part(key="purchase", found=judge_purchase(project, project.purchase), show=purchase_table)
