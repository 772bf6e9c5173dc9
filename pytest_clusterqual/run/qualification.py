"""One qualification run inside pytest, where its tests run: its session, records and gates."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from pytest_clusterqual import plugin
from pytest_clusterqual.errors import ClusterQualError, MeasurementError, RunFolderError
from pytest_clusterqual.folder.leases import Lease, Leases
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.judge.gates import gate, not_run
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.launch.launchers import make_launcher
from pytest_clusterqual.measure import cases, criteria
from pytest_clusterqual.measure.cases import Case
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.measurement import CRITERIA, Measurement
from pytest_clusterqual.model.record import GOOD, Verdict
from pytest_clusterqual.recorded import deciding
from pytest_clusterqual.recorded.outcomes import (
    failed,
    layout_params,
    outcomes,
    usable,
    with_exception,
    without_number,
)
from pytest_clusterqual.report.network_map import network_map
from pytest_clusterqual.run.asked import import_path, open_folder, other_machine, read_asked
from pytest_clusterqual.run.ending import Ending, Sigterm
from pytest_clusterqual.run.items import (
    ERROR,
    GATES_NOT_RUN,
    MEASUREMENT,
    RECORDED,
    case_of,
    name_of_criterion,
    needs_of,
    without_case,
)
from pytest_clusterqual.run.progress import ProgressLine
from pytest_clusterqual.run.recorder import Recorder
from pytest_clusterqual.session.session import Session
from pytest_clusterqual.session.world import Progress

_MAP_WIDTH = 120  # columns of a file that may be read anywhere


class Qualification:
    """Everything between pytest's hooks and the session. Made only when a qualification test is collected.

    With xdist there is one in every worker, and the controller has given it the run folder.
    """

    def __init__(self, config: pytest.Config) -> None:
        """Read the options and the project file; nothing is started."""
        self.config = config
        self._given = plugin.given(config)
        if self._given:
            os.environ.update(self._given["environ"])  # the controller's allocation is this process' as well
        elif hasattr(config, "workerinput"):
            raise ClusterQualError("with -n, say how many nodes to qualify on the command line, e.g. --nodes 2")
        self.asked = read_asked(config)
        self.project = self.asked.project
        self.folder: RunFolder | None = None
        self._tests: dict[str, Selected] = {}
        self._kept: dict[str, str] = {}
        self._replay = self.asked.replay
        self._refused = ""
        self._ending = Ending(self.asked)
        self._recorder: Recorder | None = None
        self._session: Session | None = None
        self._leases: Leases | None = None
        self._lease: Lease | None = None
        self._progress: ProgressLine | None = None
        self._sigterm: Sigterm | None = None

    # -- collection ------------------------------------------------------------------------------

    def parametrize(self, metafunc: pytest.Metafunc, criterion: str) -> None:
        """One test a case of the criterion; a case that cannot be asked on this world is skipped in sight."""
        found = cases.cases(self.project, criterion, nodes=self.asked.nodes, nproc_per_node=self.asked.nproc_per_node)
        metafunc.parametrize(
            "case",
            [
                pytest.param(
                    case, id=str(case),
                    marks=pytest.mark.skip(reason=case.inapplicable) if case.inapplicable else (),
                )
                for case in found
            ],
            indirect=True,
        )  # fmt: skip

    def parametrize_node(self, metafunc: pytest.Metafunc) -> None:
        """One test a node."""
        metafunc.parametrize("node", range(self.asked.nodes), ids=self.asked.node_names, indirect=True)

    def select(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Note which tests this run is asked for, and return all in the order in which they are to run.

        That is the order of their criteria, for gates come before what they guard. Tests without a
        criterion come before Full-Run, which ends the warm ranks that they can use; those of single
        nodes come first of all.
        """
        needed = {name for item in items for name in needs_of(item)}
        # A criterion without a section in the file is not asked.
        self._tests = {item.nodeid: self._selected(item, needed) for item in items if not without_case(item)}

        def place(item: pytest.Item) -> float:
            if item.nodeid in self._tests and self._tests[item.nodeid].node:
                return -1
            declared = plugin.criterion_of(item)
            return CRITERIA.index(declared[0]) if declared else CRITERIA.index("full_run") - 0.5

        return sorted(items, key=place)

    def _selected(self, item: pytest.Item, needed: Collection[str]) -> Selected:
        declared, case, index = plugin.criterion_of(item), case_of(item), plugin.single_node(item)
        # Gates want an order, and there is one only among the tests of all nodes.
        gated = declared is not None and (declared[0] in needed or declared[1])
        return Selected(
            criterion=name_of_criterion(item),
            layout=case.subject if case else "",
            node="" if index is None or gated else self.asked.node_names[index],
            inapplicable=case.inapplicable if case else "",
        )

    # -- before the first test -------------------------------------------------------------------

    def open(self) -> None:
        """Have the nodes and open the run folder; starts no rank."""
        if self._replay is not None:
            self.folder = open_folder(self.config, self.asked, simulated=self._replay.simulated)
            self._recorder = Recorder(self.folder, self.project, self._replay)
            self.folder.select(self._tests)
            self._kept = self._replay.into(self.folder, self._tests)
            return
        if not self._given:
            self._progress = ProgressLine(self.config)
        launcher = make_launcher(self.project.launcher, tell=lambda what: self._tell(Progress(what, 0)))
        nodes = launcher.nodes(self.asked.nodes, self.asked.nproc_per_node)
        try:
            if self._given:
                self.folder = RunFolder.open(self._given["folder"], part=self._given["part"])
                self._leases = Leases(self.folder.path / "leases")
            else:
                self.folder = open_folder(self.config, self.asked, simulated=launcher.simulated)
            self._recorder = Recorder(self.folder, self.project, None)
            self.folder.select(self._tests)
            if any(test.criterion == "fabric" for test in self._tests.values()):
                self.folder.add_text("network-map.txt", network_map(self.asked.network_map, width=_MAP_WIDTH) + "\n")
            self._kept = {} if self.config.getoption("--qual-again") else usable(self.folder)
        except BaseException:
            launcher.close()
            raise
        self._session = Session(
            self.project, launcher, nodes, nproc_per_node=self.asked.nproc_per_node, folder=self.folder.path,
            path=import_path(self.config, self.project), tell=self._tell,
        )  # fmt: skip
        self._sigterm = Sigterm()

    def _tell(self, progress: Progress) -> None:
        if self._progress is not None:
            self._progress(progress)

    # -- while tests run -------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session; only tests that run may ask for it."""
        if self._replay is not None:
            pytest.skip("a replay has no nodes and no ranks: what was recorded of this test stands as it is")
        if self._session is None:
            raise ClusterQualError("no qualification session is open: it exists only while tests run")
        return self._session

    @property
    def recorder(self) -> Recorder:
        """What writes the records; only tests that run may ask for it."""
        assert self._recorder is not None
        return self._recorder

    def nodes_of(self, item: pytest.Item) -> tuple[str, ...]:
        """The names of the nodes that a test has for itself; the decision needs none."""
        if name_of_criterion(item) == "decision":
            return ()
        index = plugin.single_node(item)
        return self.session.all_nodes if index is None else self.session.all_nodes[index : index + 1]

    def take_nodes(self, item: pytest.Item) -> None:
        """Wait until no other xdist worker has any of the test's nodes, and have them."""
        if self._leases is not None and self._lease is None and (nodes := self.nodes_of(item)):
            self._lease = self._leases.acquire(nodes)
            self.session.use(self._lease.nodes)

    def give_nodes(self, nextitem: pytest.Item | None) -> None:
        """Give the nodes back, unless the next test of this worker has the same: then their ranks stay warm."""
        if self._lease is None:
            return
        if nextitem is None or not plugin.qualifies(nextitem) or set(self.nodes_of(nextitem)) != self._lease.nodes:
            lease, self._lease = self._lease, None
            try:
                self.session.release()
            finally:
                lease.release()

    def check_gate(self, item: pytest.Item) -> None:
        """BLOCKED, with the culprit's name, if a criterion this test needs did not pass.

        One that nobody asked for has not failed: the test runs, and its records say which gate was not run.
        """
        needs, case = needs_of(item), case_of(item)
        if not needs:
            return
        if case is not None and case.inapplicable:
            return
        assert self.folder is not None
        self.folder.refresh()
        known, params = outcomes(self.folder), case.params if case else {}
        asked = [(test.criterion, layout_params(test)) for test in self._tests.values()]
        unasked = not_run(needs, [*asked, *((each.criterion, each.params) for each in known)], params)
        item.stash[GATES_NOT_RUN] = unasked
        if self.config.getoption("--qual-keep-going"):
            return
        reason = gate([name for name in needs if name not in unasked], known, params)
        if reason:
            judgement = without_number(name_of_criterion(item), Verdict.BLOCKED, reason)
            self.recorder.add(item, [judgement], started=time.time(), seconds=0.0)
            pytest.skip(f"BLOCKED: {reason}")

    def measure(self, item: pytest.Item, case: Case) -> Measurement:
        """Measure the case and keep the raw measurement before anyone judges it."""
        assert self.folder is not None
        if kept := self._kept.get(item.nodeid):
            item.stash[MEASUREMENT] = kept
            return self.folder.measurements()[kept][2]
        if self._replay is not None:
            raise MeasurementError(self._replay.why_not(item.nodeid))
        project = self.session.project = self.project.of_test(item.nodeid)  # it says when there are samples enough
        if self._refused:  # nothing is measured only to be refused
            raise RunFolderError(self._refused)
        measurement = criteria.measure(self.session, case)
        self._refused = other_machine(self.folder, measurement.conditions)
        if self._refused:
            raise RunFolderError(self._refused)
        item.stash[MEASUREMENT] = self.folder.add_measurement(case.criterion, item.nodeid, measurement)
        self._note_machine(measurement.conditions)
        judge(project, measurement)  # a measurement that cannot be judged is an ERROR of its fixture
        return measurement

    def decision(self) -> Decision:
        """What follows from all that was recorded, by whichever worker."""
        assert self.folder is not None
        if self._leases is not None:
            deciding.wait_for_others(self.folder, self._leases, self.session.all_nodes)
        return decide(self.folder.numbered(), self.project.decision)

    def _note_machine(self, conditions: Conditions | None) -> None:
        """Add to the recorded environment what only the ranks could tell, once."""
        assert self.folder is not None
        if conditions is not None and "hosts" not in self.folder.environment:
            links = self.session.topology.links
            self.folder.update_environment({
                "hosts": list(conditions.hosts), "device": conditions.device, "device_name": conditions.device_name,
                "backend": conditions.backend, "versions": conditions.versions, "links": to_json(links),
            })  # fmt: skip

    def note_report(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """A test that ended without a verdict of its own, or failed after a good one, is an ERROR, with a record."""
        if self._progress is not None:
            self._progress.clear()
        if self.folder is None or self._refused:  # a refusal is no verdict on the machine
            return
        if (told := item.stash.get(RECORDED, None)) is not None:
            if report.failed and told in GOOD:
                self._note_failure(item, report, f"it failed after its verdict {told}: ")
            return
        if report.skipped and self._replay is not None:
            kept = self._replay.kept(item.nodeid)
            mine = [replace(each, run=self.folder.run, test=item.nodeid, attempt=1) for each in kept]
            self.recorder.keep([with_exception(each, self.project) for each in mine])
        if report.failed:
            self._note_failure(item, report)

    def _note_failure(self, item: pytest.Item, report: pytest.TestReport, after: str = "") -> None:
        assert self.folder is not None
        crash = getattr(report.longrepr, "reprcrash", None)
        said = (crash.message if crash else str(report.longrepr or "")).strip().splitlines() or ["no reason given"]
        reason = said[0] if crash else said[-1]
        error = item.stash.get(ERROR, None)
        if error is not None and str(error).splitlines()[0] not in report.longreprtext:
            error = None  # the test has lived with it, and failed for another reason
        judgement = failed(name_of_criterion(item), f"{after}{reason}", error, logs=self.folder.path / "ranks")
        self.recorder.add(item, [judgement], started=time.time() - report.duration, seconds=report.duration)

    # -- the end ---------------------------------------------------------------------------------

    def finish(self, exitstatus: int) -> int:
        """End the ranks and write the reports, which a worker leaves to the controller."""
        self.close()
        problem = self._recorder.problem if self._recorder else ""
        if self._given:
            self.config.workeroutput[plugin.GIVEN] = problem  # type: ignore[attr-defined]  # xdist's
        elif self.folder is not None:
            return self._ending.finish(self.folder, exitstatus, problem)
        return exitstatus

    def print_summary(self, reporter: pytest.TerminalReporter) -> None:
        """The table of verdicts, and what is missing; once."""
        self._ending.print_summary(reporter)

    def remember_blocked(self) -> None:
        """Have `--lf` run again what was BLOCKED."""
        self._ending.remember_blocked(self.config)

    def close(self) -> None:
        """End every process of the run. May be called again."""
        if self._session is not None:
            self._session.close()
        if self._lease is not None:
            self._lease.release()

    def restore(self) -> None:
        """Give SIGTERM back its old meaning; the last thing of a run."""
        if self._sigterm is not None:
            self._sigterm.restore()
