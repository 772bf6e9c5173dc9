"""A known good run as what is demanded of a later one, test by test."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_clusterqual import units
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.requirement import Requirement


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineTest:
    """What one test of a good run demands of the same test elsewhere.

    `conditions` are those of the good run, without what it does not take for a number to mean the same: hosts,
    load and telemetry.
    """

    test: str
    conditions: Conditions
    require: tuple[Requirement, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Nothing may be worse than in `run` by more than `tolerance`, a share."""

    run: str
    tolerance: float
    tests: tuple[BaselineTest, ...]

    def only(self, test: str) -> Baseline | None:
        """What it demands of one test, wherever the folder of its file is now; None if it does not have that test."""
        alike = [each for each in self.tests if short_name(each.test) == short_name(test)]
        found = next((each for each in alike if each.test == test), alike[0] if alike else None)
        return replace(self, tests=(found,)) if found else None

    def __str__(self) -> str:
        return f"{self.run} ({units.show_share(self.tolerance)})"


def short_name(test: str) -> str:
    """File and name of a test, without the folder of the file."""
    file, colons, name = test.partition("::")
    return file.rpartition("/")[2] + colons + name
