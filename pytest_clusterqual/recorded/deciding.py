"""The decision of a run, from its folder: for the test of it, at the end of the run, and for the command line."""

from __future__ import annotations

import time
from collections.abc import Collection

from pytest_clusterqual.folder.leases import Leases
from pytest_clusterqual.folder.lines import strictly
from pytest_clusterqual.folder.places import ENVIRONMENT
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.report import worksheet

PATIENCE = 30.0  # seconds in which nobody measures and no test ends
AT_WORK = 1.0  # seconds of waiting for nodes that say somebody had them, not only a slow file system
DECISION = "decision.json"
_RESTS_ON = ("memory", "scaling")


def plan_of(folder: RunFolder) -> DecisionPlan | None:
    """What the project file of a recorded run says of the decision.

    Raises:
        RunFolderError: ``environment.json`` says something else.
    """
    told = folder.environment.get("decision")
    return None if told is None else strictly(DecisionPlan, told, f"{folder.path / ENVIRONMENT}: decision")


def decision_of(folder: RunFolder, plan: DecisionPlan | None) -> Decision | None:
    """None where there is nothing that a decision could rest on."""
    records = folder.numbered()
    return decide(records, plan) if any(record.criterion in _RESTS_ON for record in records.values()) else None


def pages(decision: Decision | None, *, run: str) -> dict[str, str]:
    """The files that tell the decision of a run, by their names."""
    if decision is None:
        return {}
    return {"decision.md": worksheet.markdown(decision, run=run), DECISION: worksheet.as_json(decision, run=run)}


def conclude(folder: RunFolder, plan: DecisionPlan | None) -> Decision | None:
    """Write ``decision.md`` and ``decision.json``; None where there is nothing that a decision could rest on.

    Raises:
        RunFolderError: one of them could not be written.
    """
    decision = decision_of(folder, plan)
    for name, text in pages(decision, run=folder.run).items():
        folder.add_text(name, text)
    return decision


def wait_for_others(folder: RunFolder, leases: Leases, nodes: Collection[str], *, patience: float = PATIENCE) -> None:
    """Beside other xdist workers: until each selected test has a record, or `patience` seconds bring none.

    Who measures has nodes, and whoever died has none any more; so there is an end.
    """
    missing, idle_since = _without_record(folder), time.monotonic()
    while missing and time.monotonic() - idle_since < patience:
        asked = time.monotonic()
        leases.acquire(nodes).release()
        before, missing = missing, _without_record(folder)
        if missing != before or time.monotonic() - asked > AT_WORK:
            idle_since = time.monotonic()
        time.sleep(0.05)  # whoever waits for nodes as well may have them now


def _without_record(folder: RunFolder) -> set[str]:
    folder.refresh()
    wanted = {
        test
        for test, selected in folder.tests.items()
        if selected.criterion not in ("own", "decision") and not selected.inapplicable
    }
    return wanted - {record.test for record in folder.records()}
