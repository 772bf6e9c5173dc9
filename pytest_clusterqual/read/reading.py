"""One pass over a project file's document: the sections that are right in themselves, and all problems."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pytest_clusterqual.read import checks, fabric_levels
from pytest_clusterqual.read.command import CommandSection, is_command, not_asked, script_there
from pytest_clusterqual.read.factory import FactorySection, is_factory, not_known
from pytest_clusterqual.read.fields import Fault, Section
from pytest_clusterqual.read.messages import shown, translate, unknown_key
from pytest_clusterqual.read.purchase import PurchaseSection
from pytest_clusterqual.read.schema import (
    CriterionSection,
    DecisionSection,
    ExceptionSection,
    FabricSection,
    FullRunSection,
    Head,
    JobSection,
    LauncherSection,
    LayoutSection,
    MemorySection,
    ScalingSection,
    TargetSection,
    WorkloadSection,
)
from pytest_clusterqual.read.topology import TopologySection
from pytest_clusterqual.read.yaml_lines import Document, Problem, Where

S = TypeVar("S", bound=Section)
C = TypeVar("C", bound=CriterionSection)
VERSION = 1
KEYS = (
    "version", "project", "launcher", "workload", "layouts", "target", "topology",
    "memory", "fabric", "scaling", "full_run", "decision", "purchase", "exceptions",
)  # fmt: skip


class Reading:
    """After `read`: each section, None where it is absent or wrong, and all `problems` of the file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = list(document.problems)
        self.demands: dict[str, list[tuple[int, Any]]] = {}

    def read(self, folder: Path | None, nodes: int | None, nproc_per_node: int | None) -> None:
        """`folder` is where the file's data are looked for; None leaves them alone."""
        data = self.document.value
        if not isinstance(data, dict):
            self.report([((), f"got {shown(data)}, want a mapping with the keys {', '.join(KEYS)}")])
            return
        version = data.get("version")
        if isinstance(version, int) and not isinstance(version, bool) and version != VERSION:
            # Another version has other keys: what else is wrong by this version's rules says nothing.
            self.report([(("version",), f"got {version}, want {VERSION}, the only version this release reads")])
            return
        self.report(((key,), unknown_key(key, KEYS)) for key in data if key not in KEYS)
        self._read_sections(data)
        self._check_together(folder, nodes, nproc_per_node)

    def report(self, faults: Iterable[Fault]) -> None:
        written = ((self._as_written(where), text) for where, text in faults)
        self.problems += [Problem(line=self.document.line(where), where=where, text=text) for where, text in written]

    def _as_written(self, where: Where) -> Where:
        """Without the position 0 of what stands by itself where a list could stand."""
        kept: Where = ()
        value: Any = self.document.value
        for step in where:
            if step == 0 and not isinstance(value, list):
                continue
            kept = (*kept, step)
            inside = isinstance(value, dict) and step in value
            inside = inside or (isinstance(value, list) and isinstance(step, int) and step < len(value))
            value = value[step] if inside else None
        return kept

    def _read_sections(self, data: dict[str, Any]) -> None:
        self.head = self.validate(Head, {key: data[key] for key in ("version", "project") if key in data}, ())
        self.launcher = self.section(data, "launcher", LauncherSection)
        own = is_command(data.get("workload"))
        self.command = self.section(data, "workload", CommandSection) if own else None
        kind = FactorySection if is_factory(data.get("workload")) else WorkloadSection
        self.workload: JobSection | None = None if own else self.section(data, "workload", kind)
        self.target = self.section(data, "target", TargetSection)
        self.topology = self.section(data, "topology", TopologySection)
        self.memory = self.criterion(data, "memory", MemorySection)
        self.fabric = self.criterion(data, "fabric", FabricSection)
        self.scaling = self.criterion(data, "scaling", ScalingSection)
        self.full_run = self.criterion(data, "full_run", FullRunSection)
        self.decision = self.section(data, "decision", DecisionSection)
        self.purchase = self.section(data, "purchase", PurchaseSection)
        self.layouts = self.items(data, ("layouts",), LayoutSection)
        self.exceptions = self.items(data, ("exceptions",), ExceptionSection)
        needed = ("workload",) if own else ("workload", "layouts")
        self.report(((key,), "the key is missing") for key in needed if key not in data)
        if own and "layouts" in data:
            self.report([(("layouts",), "a command spreads its job by itself, want no such key")])
        elif data.get("layouts") == []:
            self.report([(("layouts",), "got an empty list, want at least one layout such as {name: ddp}")])

    def validate(self, kind: type[S], value: Any, where: Where) -> S | None:
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            found = translate(kind, error.errors(include_url=False))
            self.report(((*where, *inner), text) for inner, text in found)
            return None

    def section(self, data: dict[str, Any], key: str, kind: type[S]) -> S | None:
        return self.validate(kind, data[key], (key,)) if key in data else None

    def criterion(self, data: dict[str, Any], key: str, kind: type[C]) -> C | None:
        if key not in data:
            return None
        value = data[key]
        if value is None:
            self.report([((key,), "got null, want a mapping: {} for the defaults, or no such key to leave it out")])
            return None
        if isinstance(value, dict) and isinstance(value.get("require"), list):
            self.demands[key] = self.items(value, (key, "require"), kind.demand)
            value = {**value, "require": []}
        return self.validate(kind, value, (key,))

    def items(self, holder: dict[str, Any], where: Where, kind: type[S]) -> list[tuple[int, S]]:
        """The entries of a list that are right in themselves, each with its position."""
        entries = holder.get(str(where[-1]), [])
        if not isinstance(entries, list):
            self.report([(where, f"got {shown(entries)}, want a list")])
            return []
        read = ((index, self.validate(kind, entry, (*where, index))) for index, entry in enumerate(entries))
        return [(index, section) for index, section in read if section is not None]

    def _check_together(self, folder: Path | None, nodes: int | None, nproc_per_node: int | None) -> None:
        self.report(checks.layout_names(self.layouts))
        raw = self.document.value.get("layouts")
        if self.command:
            self._check_command(self.command, folder)
        elif isinstance(raw, list) and len(raw) == len(self.layouts):  # else one that is meant may be a broken one
            names = [layout.name for _index, layout in self.layouts]
            for key, section in (("memory", self.memory), ("scaling", self.scaling), ("full_run", self.full_run)):
                self.report(checks.layouts_exist(key, section, self.demands.get(key, []), names))
            self.report(checks.fabric_layout_groups(self.demands.get("fabric", []), self.layouts))
            if self.fabric:
                self.report(checks.fabric_synchronization(self.fabric, self.layouts, self.workload))
        if self.fabric:
            self.report(checks.fabric_demands(self.fabric, self.demands.get("fabric", [])))
            self.report(checks.fabric_parts(self.fabric, self.demands.get("fabric", [])))
            self.report(fabric_levels.of_whole_sweep(self.demands.get("fabric", [])))
        if self.scaling:
            required, target = self.demands.get("scaling", []), "target" in self.document.value
            self.report(checks.scaling_demands(self.scaling, required))
            self.report(checks.scaling_parts(self.scaling, required, target=target))
        if self.full_run:
            self.report(checks.full_run_demands(self.full_run, self.demands.get("full_run", [])))
            if not is_command(self.document.value.get("workload")):
                self.report(checks.full_run(self.full_run, self.workload))
        if isinstance(self.workload, WorkloadSection) and folder is not None:
            self.report(checks.data_file(self.workload, folder))
        if isinstance(self.workload, FactorySection):
            self.report(not_known(self.workload, self.demands, fabric=self.fabric, purchase=self.purchase))
        if self.workload:
            self.report(checks.layout_degrees(self.layouts, self.workload))
        self._check_world(nodes, nproc_per_node)

    def _check_command(self, section: CommandSection, folder: Path | None) -> None:
        for key, asked in (("memory", self.memory), ("scaling", self.scaling), ("full_run", self.full_run)):
            self.report(checks.layouts_exist(key, asked, self.demands.get(key, []), [section.name]))
        self.report(checks.fabric_layout_groups(self.demands.get("fabric", []), []))
        self.report(
            not_asked(
                section, launcher=self.launcher, memory=self.memory, fabric=self.fabric, scaling=self.scaling,
                full_run=self.full_run, purchase=self.purchase,
            )
        )  # fmt: skip
        if folder is not None:
            self.report(script_there(section, folder))

    def _check_world(self, nodes: int | None, nproc_per_node: int | None) -> None:
        launcher_is_wrong = self.launcher is None and "launcher" in self.document.value
        if nproc_per_node is None and launcher_is_wrong:
            return
        ranks = nproc_per_node or (self.launcher or LauncherSection()).nproc_per_node
        points = self.scaling.points if self.scaling else []
        counts = {1} | ({nodes, *(point for point in points if point <= nodes)} if nodes else set())
        if self.workload:
            self.report(checks.global_batch(self.workload, self.layouts, sorted(counts), ranks))
        if nodes:
            self.report(checks.layouts_fit(self.layouts, nodes, ranks))
        if self.fabric:
            rates = self.demands.get("fabric", [])
            self.report(fabric_levels.within_reach(self.fabric, rates, self.layouts, nodes=nodes, ranks_per_node=ranks))
        if self.full_run and nodes:
            self.report(checks.failures_hit(self.full_run, nodes, ranks))
