"""What a test carries through its run: its case, the measurement behind it, and whether it has a record."""

from __future__ import annotations

import pytest

from pytest_clusterqual import plugin
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.measure.cases import Case
from pytest_clusterqual.model.record import Verdict

MEASUREMENT = pytest.StashKey[str]()  # its id in the run folder
RECORDED = pytest.StashKey[Verdict]()  # the worst verdict that it has a record of
GATES_NOT_RUN = pytest.StashKey[tuple[str, ...]]()
ERROR = pytest.StashKey[ClusterQualError]()  # of a fixture, for its record


def name_of_criterion(item: pytest.Item) -> str:
    """The criterion a test declares; a test of the user's own that declares none is of ``own``."""
    declared = plugin.criterion_of(item)
    return declared[0] if declared else "own"


def needs_of(item: pytest.Item) -> tuple[str, ...]:
    """The criteria that are to pass before it."""
    declared = plugin.criterion_of(item)
    return declared[1] if declared else ()


def case_of(item: pytest.Item) -> Case | None:
    """The case of its criterion, if it has one."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    return case if isinstance(case, Case) else None


def without_case(item: pytest.Item) -> bool:
    """True of a test that wants a case of its criterion, where the file has none."""
    return "case" in getattr(item, "fixturenames", ()) and case_of(item) is None
