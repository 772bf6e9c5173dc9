"""A run with xdist: the controller hands tests out, the workers lease nodes and run them. See docs/side-by-side.md.

Imported in a controller only; what a worker does stands in `qualification.py`.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling, Scheduling

from pytest_clusterqual import plugin
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.launch.launchers import make_launcher
from pytest_clusterqual.launch.slurm import SlurmLauncher
from pytest_clusterqual.model.record import SCHEMA, Record, Verdict
from pytest_clusterqual.recorded.outcomes import earlier, without_number
from pytest_clusterqual.run.asked import open_folder, read_asked
from pytest_clusterqual.run.ending import Ending, Sigterm
from pytest_clusterqual.run.progress import ProgressLine
from pytest_clusterqual.session.world import Progress

_ALL_NODES = "all nodes"


class Controller:
    """A pytest plugin: has the nodes and the run folder before the workers start, and reports when they have ended."""

    def __init__(self, config: pytest.Config) -> None:
        """Have the nodes and open the run folder.

        Raises:
            ClusterQualError: the options, the project file or the machine do not allow the run.
        """
        _check(config)
        asked = read_asked(config)
        progress = ProgressLine(config)
        self._launcher = make_launcher(asked.project.launcher, tell=lambda what: progress(Progress(what, 0)))
        try:
            self._launcher.nodes(asked.nodes, asked.nproc_per_node)
            self._folder = open_folder(config, asked, simulated=self._launcher.simulated)
        except BaseException:
            self._launcher.close()
            raise
        progress.clear()
        self._problem = ""
        self._project, self._ending = asked.project, Ending(asked)
        self._sigterm = Sigterm()

    def pytest_report_header(self) -> str:
        """What the tests are judged by; a controller of xdist collects none, below whose count it would stand."""
        return plugin.judged_by(self._project)

    # -- xdist's hooks ---------------------------------------------------------------------------

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Equip one worker."""
        node.workerinput[plugin.GIVEN] = {
            "folder": str(self._folder.path.absolute()), "part": node.workerinput["workerid"],
            "environ": self._launcher.allocation if isinstance(self._launcher, SlurmLauncher) else {},
        }  # fmt: skip

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling:
        """Distribute by nodes."""
        return ByNodes(config, log, self._folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """A test that took its worker along is an ERROR."""
        test = self._folder.tests.get(crashitem)
        if test is None:
            return
        judgement = without_number(test.criterion, Verdict.ERROR, str(report.longrepr))
        record = Record(
            schema=SCHEMA, run=self._folder.run, test=crashitem, criterion=test.criterion, judgement=judgement,
            conditions=None, measurement=None, started=time.time(), seconds=0.0, attempt=self._folder.attempt,
            earlier=earlier(self._folder, crashitem),
        )  # fmt: skip
        try:
            self._folder.add_record(record)
        except RunFolderError as error:
            self._problem = str(error)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a worker could not record is this run's problem."""
        self._problem = self._problem or getattr(node, "workeroutput", {}).get(plugin.GIVEN, "")

    # -- the end ---------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, trylast=True)  # inside all others: nothing is reported before the workers ended
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        done = yield
        try:
            self._folder.merge()
            folder = RunFolder.open(self._folder.path)
        except RunFolderError as error:
            folder, self._problem = self._folder, self._problem or str(error)
        session.exitstatus = self._ending.finish(folder, int(session.exitstatus), self._problem)
        return done

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._ending.print_summary(terminalreporter)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        self._launcher.close()
        self._ending.remember_blocked(config)
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # pytest leaves its summary out after some exits, SIGTERM among them
            self._ending.print_summary(reporter)
        self._sigterm.restore()


def _check(config: pytest.Config) -> None:
    """Only workers on this machine, and only our own way to distribute."""
    if not config.getoption("numprocesses"):
        raise ClusterQualError(
            "qualification tests are handed to workers on this machine only; say -n 4 instead of --tx"
        )
    if (mode := config.getoption("dist")) != "load":
        raise ClusterQualError(f"qualification tests are distributed by the nodes they need; leave out --dist {mode}")


class ByNodes(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Tests on the same nodes stay together in one worker, in their order: ranks stay warm, and gates come first."""

    def __init__(self, config: pytest.Config, log: Any, folder: RunFolder) -> None:
        config.option.loadscopereorder = False  # as ordered: single nodes before all nodes
        super().__init__(config, log)
        self._folder = folder
        self._tests: dict[str, Selected] = {}

    def schedule(self) -> None:
        """All workers have collected, and noted what."""
        self._tests = self._folder.tests
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        test = self._tests.get(nodeid)
        return str(super()._split_scope(nodeid)) if test is None else test.node or _ALL_NODES

    def remove_node(self, node: Any) -> str | None:
        """Of a worker that died, the test it was at is over; what it had not begun goes to another."""
        units = self.assigned_work[node]
        crashed = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        for scope, unit in list(units.items()):
            if crashed in unit:
                unit[crashed] = True
            if all(unit.values()):
                del units[scope]
        super().remove_node(node)
        return crashed
