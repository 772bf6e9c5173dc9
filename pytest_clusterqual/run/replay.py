"""A run judged once more by its tests, from what another one has recorded: no node is asked, no rank is started."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_clusterqual import plugin
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.baseline import Baseline
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.recorded.baseline import recorded_baseline

# What the machine told of itself then is true of its measurements, whenever they are judged.
_OF_THE_MACHINE = ("hosts", "device", "device_name", "backend", "versions", "links", "launcher", "named_hosts")


class Replay:
    """The recorded run behind `--qual-replay`."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @classmethod
    def of(cls, config: pytest.Config) -> Replay | None:
        """None unless the options ask for one.

        Raises:
            ClusterQualError: with another option that says something else.
            RunFolderError: there is no such run.
        """
        named = plugin.option(config, "--qual-replay")
        if not named:
            return None
        for other in ("--qual-resume", "--qual-again", "--qual-hosts", "--qual-launcher"):
            if config.getoption(other):
                raise ClusterQualError(f"--qual-replay measures nothing: leave out {other}")
        if plugin.given(config) or plugin.distributes(config):
            raise ClusterQualError("a replay takes seconds: leave out -n")
        return cls(RunFolder.open(Path(config.invocation_params.dir) / named))

    @property
    def simulated(self) -> bool:
        return self._folder.simulated

    @property
    def baseline(self) -> Baseline | None:
        """What the run was held against beside its project file."""
        return recorded_baseline(self._folder)

    def size(self) -> tuple[int, int]:
        """Nodes, and ranks on each.

        Raises:
            RunFolderError: the run did not record them.
        """
        nodes, ranks = (self._folder.environment.get(key) for key in ("nodes", "nproc_per_node"))
        if not isinstance(nodes, int) or not isinstance(ranks, int):
            raise RunFolderError(f"{self._folder.path}: does not say on how many nodes it ran; it cannot be replayed")
        return nodes, ranks

    def into(self, folder: RunFolder, tests: Iterable[str]) -> dict[str, str]:
        """Put what was measured for these tests into the new run; test -> its measurement there."""
        told = {key: value for key, value in self._folder.environment.items() if key in _OF_THE_MACHINE}
        folder.update_environment({**told, "replay_of": self._folder.run})
        measured = self._folder.measurements()
        found = {_name(test): name for name, test in measured.tests().items()}
        kept = {}
        for test in tests:
            if name := found.get(_name(test)):
                _, criterion, made = measured[name]
                kept[test] = folder.add_measurement(criterion, test, made)
        return kept

    def kept(self, test: str) -> list[Record]:
        """What was recorded of a test that measured nothing that could be judged again."""
        return [each for each in self._folder.records() if _name(each.test) == _name(test) and not each.measurement]

    def earlier(self, test: str) -> tuple[Verdict, ...]:
        """The verdicts that the test had in attempts before the one that counts."""
        return next((each.earlier for each in self._folder.records() if _name(each.test) == _name(test)), ())

    def why_not(self, test: str) -> str:
        """Why there is no measurement of a test."""
        for record in self._folder.records():
            if _name(record.test) == _name(test) and record.judgement.verdict in (Verdict.ERROR, Verdict.BLOCKED):
                return f"not measured in {self._folder.run}: {record.judgement.reason}"
        return f"{self._folder.run} has no measurement of this test"


def _name(test: str) -> str:
    """File and name of a test, wherever its folder is now."""
    return test.rpartition("/")[2]
