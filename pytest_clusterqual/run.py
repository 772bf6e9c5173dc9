"""One qualification run inside pytest: its session, run folder, records, gates and reports."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_clusterqual import criteria, plugin
from pytest_clusterqual.criteria import Case
from pytest_clusterqual.errors import ClusterQualError, ProjectFileError, RunFolderError
from pytest_clusterqual.judge.gates import Outcome, gate
from pytest_clusterqual.launch.launchers import make_launcher
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.measurement import CRITERIA, Conditions, Measurement
from pytest_clusterqual.model.project import LAUNCHERS, LauncherOptions, Project
from pytest_clusterqual.model.record import SCHEMA, Finding, Judgement, Record, Verdict, worst
from pytest_clusterqual.read.hosts import read_hosts
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.report import junit, terminal
from pytest_clusterqual.runs import RunFolder, default_path, environment_variables
from pytest_clusterqual.session import Session
from pytest_clusterqual.show import ProgressLine
from pytest_clusterqual.world import Progress

_FILE = "clusterqual.yaml"
_CONCLUDED = (Verdict.PASS, Verdict.FAIL, Verdict.UNDECIDED, Verdict.ERROR)


class Qualification:
    """Everything between pytest's hooks and the session. Made only when a qualification test is collected."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the options and the project file; nothing is started."""
        self.config = config
        if plugin.distributes(config):
            raise ClusterQualError("qualification tests cannot be spread over xdist workers; run them without -n")
        asked = _whole(plugin.option(config, "--nproc-per-node"), "--nproc-per-node")
        file = self._find_file()
        self.nodes = _whole(plugin.option(config, "--nodes"), "--nodes") or self._nodes_there(load_project(file))
        project = load_project(file, nodes=self.nodes, nproc_per_node=asked)
        self.project = replace(project, launcher=self._launcher_options(project.launcher))
        self.nproc_per_node = asked or self.project.launcher.nproc_per_node
        self.selected: list[str] = []
        self.outcomes: list[Outcome] = []
        self.folder: RunFolder | None = None
        self.folder_problem = ""
        self.without_verdict: list[str] = []
        self.left_out: Counter[str] = Counter()
        self._kept: dict[str, str] = {}
        self._summarized = False
        self._session: Session | None = None
        self._progress: ProgressLine | None = None
        self._old_handler: Any = None

    def _launcher_options(self, options: LauncherOptions) -> LauncherOptions:
        """The file's launcher, with what the command line and the environment say about it."""
        kind = plugin.option(self.config, "--qual-launcher") or options.kind
        if kind not in LAUNCHERS:
            raise ClusterQualError(f"--qual-launcher: got {kind!r}, want one of {', '.join(LAUNCHERS)}")
        named = plugin.option(self.config, "--qual-hosts")
        if named and kind in ("local", "slurm"):
            if plugin.option(self.config, "--qual-launcher"):
                raise ClusterQualError(f"--qual-hosts: the {kind} launcher takes no hosts; want --qual-launcher ssh")
            kind = "ssh"  # who names hosts wants to reach them
        return replace(options, kind=kind, hosts=self._hosts(named) if named else options.hosts)

    def _hosts(self, named: str) -> tuple[str, ...]:
        return read_hosts(named, where="--qual-hosts", base=Path(self.config.invocation_params.dir))

    def _nodes_there(self, project: Project) -> int:
        """How many nodes there are, where nobody said how many to take."""
        options = self._launcher_options(project.launcher)
        allocated = os.environ.get("SLURM_JOB_NUM_NODES", "") if options.kind == "slurm" else ""
        if options.hosts or allocated.isdigit():
            return len(options.hosts) or int(allocated)
        raise ClusterQualError("say how many nodes to qualify, e.g. --nodes 2")

    def _find_file(self) -> Path:
        named = plugin.option(self.config, "--qual-config")
        if named:
            return Path(named)
        places = []
        for argument in self.config.args:
            place = Path(argument.partition("::")[0])
            places += [place if place.is_dir() else place.parent]
        places += [Path(self.config.invocation_params.dir), Path(self.config.invocation_params.dir) / "qualification"]
        found = next((place / _FILE for place in places if (place / _FILE).is_file()), None)
        if found is None:
            raise ProjectFileError([
                f"no {_FILE} in {', '.join(dict.fromkeys(str(place) for place in places))}; "
                "put one beside the tests, or name one with --qual-config FILE"
            ])  # fmt: skip
        return found

    # -- collection ------------------------------------------------------------------------------

    def parametrize(self, metafunc: pytest.Metafunc, criterion: str) -> None:
        """One test a case of the criterion; a case that cannot be asked on this world is skipped in sight."""
        cases = criteria.cases(self.project, criterion, nodes=self.nodes, nproc_per_node=self.nproc_per_node)
        metafunc.parametrize(
            "case",
            [
                pytest.param(
                    case, id=str(case),
                    marks=pytest.mark.skip(reason=case.inapplicable) if case.inapplicable else (),
                )
                for case in cases
            ],
            indirect=True,
        )  # fmt: skip

    def select(self, items: Sequence[pytest.Item]) -> None:
        """Note which criteria this run must reach a verdict on."""
        declared = [plugin.criterion_of(item) for item in items]
        self.selected = [name for name in CRITERIA if any(found and found[0] == name for found in declared)]
        self.left_out = Counter(
            case.inapplicable for case in map(_case_of, items) if case is not None and case.inapplicable
        )

    # -- before the first test -------------------------------------------------------------------

    def open(self) -> None:
        """Have the nodes and open the run folder; starts no rank."""
        self._progress = ProgressLine(self.config)
        launcher = make_launcher(self.project.launcher, tell=self._tell)
        path, resumed = self._run_folder()
        session = Session(
            self.project, launcher, nodes=self.nodes, nproc_per_node=self.nproc_per_node, folder=path,
            path=self._import_path(), tell=self._progress,
        )  # fmt: skip
        try:
            if resumed:
                self.folder = self._resume(path)
            else:
                environment = self._environment()
                self.folder = RunFolder.create(
                    path, run=path.name, environment=environment, simulated=launcher.simulated
                )
            (path / "ranks").mkdir(exist_ok=True)
        except BaseException:
            session.close()
            raise
        self._session = session
        self._catch_sigterm()

    def _tell(self, what: str) -> None:
        assert self._progress is not None
        self._progress(Progress(what, 0))

    def _run_folder(self) -> tuple[Path, bool]:
        """Where this run writes, and whether it goes on with what is there."""
        base = Path(self.config.invocation_params.dir)
        named, resumed = (plugin.option(self.config, name) for name in ("--qual-run-dir", "--qual-resume"))
        if named and resumed:
            raise ClusterQualError("--qual-resume goes on in its own folder; leave out --qual-run-dir")
        if resumed:
            return base / resumed, True
        return base / named if named else default_path(base / "clusterqual-runs", datetime.now(timezone.utc)), False

    def _resume(self, path: Path) -> RunFolder:
        """Open an earlier run and note which of its measurements need not be made again."""
        folder = RunFolder.open(path)
        now = self._environment()
        for key in ("project_file", "nodes", "nproc_per_node", "launcher"):
            if folder.environment.get(key) != now[key]:
                what = "another text" if key == "project_file" else f"{folder.environment.get(key)}, now {now[key]}"
                raise RunFolderError(f"{path}: cannot go on: {key} was {what}; start a new run without --qual-resume")
        folder.begin_attempt()
        for name, (test, _criterion, _measurement) in folder.measurements().items():
            if self._usable(folder, test, name):
                self._kept[test] = name
            else:
                self._kept.pop(test, None)
        return folder

    @staticmethod
    def _usable(folder: RunFolder, test: str, measurement: str) -> bool:
        """False if what came of the measurement was an error."""
        verdicts = [record.judgement.verdict for record in folder.records() if record.test == test]
        return Verdict.ERROR not in verdicts

    def _environment(self) -> dict[str, Any]:
        return {
            "project": self.project.name,
            "project_file": self.project.path.read_text(encoding="utf-8"),
            "argv": shlex.join(["pytest", *self.config.invocation_params.args]),
            "python": sys.version.split()[0],
            "variables": environment_variables(os.environ),
            "nodes": self.nodes,
            "nproc_per_node": self.nproc_per_node,
            "launcher": self.project.launcher.kind,
        }

    def _import_path(self) -> list[str]:
        """Where users' own job functions are found on the ranks: beside the tests and where pytest runs."""
        here = str(self.config.invocation_params.dir)
        return list(dict.fromkeys([str(self.project.path.resolve().parent), str(self.config.rootpath), here]))

    def _catch_sigterm(self) -> None:
        """End in order on SIGTERM (a scheduler's time limit): ranks ended, records kept, reports written."""
        if threading.current_thread() is not threading.main_thread():
            return

        def leave(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, self._old_handler)
            pytest.exit("SIGTERM received; the records so far are kept", returncode=128 + number)

        self._old_handler = signal.signal(signal.SIGTERM, leave)

    # -- while tests run -------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """The session; only tests that run may ask for it."""
        if self._session is None:
            raise ClusterQualError("no qualification session is open: it exists only while tests run")
        return self._session

    def check_gate(self, item: pytest.Item) -> None:
        """BLOCKED, with the culprit's name, if a criterion this test needs did not pass."""
        declared = plugin.criterion_of(item)
        if declared is None or not declared[1] or self.config.getoption("--qual-keep-going"):
            return
        case = _case_of(item)
        if case is not None and case.inapplicable:
            return
        reason = gate(declared[1], self.outcomes, case.params if case else {})
        if reason:
            judgement = _without_number(declared[0], Verdict.BLOCKED, reason)
            self.record(item, [judgement], started=time.time(), seconds=0.0)
            pytest.skip(f"BLOCKED: {reason}")

    def measure(self, item: pytest.Item, case: Case) -> Measurement:
        """Measure the case and keep the raw measurement before anyone judges it."""
        assert self.folder is not None
        if kept := self._kept.get(item.nodeid):
            item.stash[_measurement_id] = kept
            return self.folder.measurements()[kept][2]
        measurement = criteria.measure(self.session, case)
        item.stash[_measurement_id] = self.folder.add_measurement(case.criterion, item.nodeid, measurement)
        self._note_machine(measurement.conditions)
        criteria.judge(self.project, measurement)  # a measurement that cannot be judged is an ERROR of its fixture
        return measurement

    def _note_machine(self, conditions: Conditions | None) -> None:
        """Add to the recorded environment what only the ranks could tell, once."""
        assert self.folder is not None
        if conditions is not None and "hosts" not in self.folder.environment:
            links = self.session.topology.links
            self.folder.update_environment({
                "hosts": list(conditions.hosts), "device": conditions.device, "device_name": conditions.device_name,
                "backend": conditions.backend, "versions": conditions.versions, "links": to_json(links),
            })  # fmt: skip

    def record(
        self,
        item: pytest.Item,
        judgements: Sequence[Judgement],
        conditions: Conditions | None = None,
        measurement: str | None = None,
        *,
        started: float,
        seconds: float,
    ) -> None:
        """Write one record a judgement, at once, and hand the figures to pytest's own JUnit file."""
        assert self.folder is not None
        declared = plugin.criterion_of(item)
        criterion = declared[0] if declared else "own"
        exception = self.exception_for(item)
        # What is required comes first: it is what a reader of the test looks for.
        records = [
            Record(
                schema=SCHEMA,
                run=self.folder.run,
                test=item.nodeid,
                criterion=criterion,
                judgement=judgement,
                conditions=conditions,
                measurement=measurement,
                started=started,
                seconds=seconds,
                exception=exception,
                attempt=self.folder.attempt,
            )
            for judgement in sorted(judgements, key=lambda judgement: judgement.verdict is Verdict.MEASURED)
        ]
        known = {record.measurement for record in self.folder.records() if record.test == item.nodeid}
        again = measurement is not None and measurement in known  # a resumed run judges it again, and keeps its record
        for record in [] if again else records:
            try:
                self.folder.add_record(record)
            except RunFolderError as error:
                self.folder_problem = str(error)  # told at the end; the folder keeps the record and tries again
        item.user_properties.extend(junit.numbered(records))
        verdict = worst([judgement.verdict for judgement in judgements])
        case = _case_of(item)
        # A failure that is accepted by name must not block everything behind it.
        counted = Verdict.PASS if exception and verdict in (Verdict.FAIL, Verdict.UNDECIDED) else verdict
        self.outcomes.append(Outcome(item.name, criterion, case.params if case else {}, counted))
        item.stash[_recorded] = verdict

    def exception_for(self, item: pytest.Item) -> str:
        """The reason why this test may fail today, or nothing."""
        today = date.today()
        return next((known.reason for known in self.project.exceptions if known.covers(item.nodeid, today)), "")

    def expired_exception(self, item: pytest.Item) -> str:
        """A sentence if an exception for this test has run out."""
        for known in self.project.exceptions:
            if not known.covers(item.nodeid, date.today()) and known.covers(item.nodeid, known.until):
                return f"the exception for this test ({known.reason}) expired on {known.until}"
        return ""

    def note_report(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """A test that ended without a verdict of its own is an ERROR, with a record."""
        if self._progress is not None:
            self._progress.clear()
        if self.folder is None or not report.failed or _recorded in item.stash or plugin.criterion_of(item) is None:
            return
        reason = str(report.longrepr).strip().splitlines()[-1] if report.longrepr else "no reason given"
        error = item.stash.get(_error, None)
        findings: tuple[Finding, ...] = ()
        if error is not None:
            reason = str(error)
            findings = tuple(
                Finding(suspect=culprit, kind="failed rank", evidence=reason.splitlines()[0],
                        check_next=f"the end of its log in {self.folder.path / 'ranks'}")
                for culprit in getattr(error, "culprits", ())
            )  # fmt: skip
        declared = plugin.criterion_of(item)
        judgement = _without_number(declared[0] if declared else "own", Verdict.ERROR, reason, findings)
        self.record(item, [judgement], started=time.time() - report.duration, seconds=report.duration)

    # -- the end ---------------------------------------------------------------------------------

    def finish(self, exitstatus: int) -> int:
        """End the ranks, write the reports, and never exit 0 if a selected criterion reached no verdict."""
        self.close()
        if self.folder is None:
            return exitstatus
        records = self.folder.records()
        try:
            junit.write_junit(records, self.folder.path / "junit.xml", suite="clusterqual", properties={
                "clusterqual.run": self.folder.run, "clusterqual.project": self.project.name,
                "clusterqual.simulated": str(self.folder.simulated).lower(),
            })  # fmt: skip
        except (OSError, ClusterQualError) as error:
            self.folder_problem = self.folder_problem or f"no JUnit report: {error}"
        self.without_verdict = [
            name
            for name in self.selected
            if not any(r.criterion == name and r.judgement.verdict in _CONCLUDED for r in records)
        ]
        return exitstatus or (1 if self.without_verdict or self.folder_problem else 0)

    def print_summary(self, reporter: pytest.TerminalReporter) -> None:
        """The table of verdicts, and what is missing; once."""
        if self.folder is None or self._summarized:
            return
        self._summarized = True
        if records := self.folder.records():
            reporter.section("qualification", sep="=")
            tw = reporter._tw
            text = terminal.summary(
                records, run_folder=_relative(self.folder.path), simulated=self.folder.simulated,
                width=tw.fullwidth, color=tw.hasmarkup,
            )  # fmt: skip
            reporter.write(text.rstrip() + "\n")
        for reason, count in self.left_out.items():
            reporter.write_line(f"left out: {count} test{'s' if count > 1 else ''}: {reason}")
        for name in self.without_verdict:
            reporter.write_line(f"{name}: no verdict was reached, so this run does not exit 0", red=True)
        if self.folder_problem:
            reporter.write_line(self.folder_problem, red=True)

    def close(self) -> None:
        """End every process of the run. May be called again."""
        if self._session is not None:
            self._session.close()

    def restore(self) -> None:
        """Give SIGTERM back its old meaning; the last thing of a run."""
        if self._old_handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._old_handler)
            self._old_handler = None


_measurement_id = pytest.StashKey[str]()
_recorded = pytest.StashKey[Verdict]()
_error = pytest.StashKey[ClusterQualError]()


def remember_error(item: pytest.Item, error: ClusterQualError) -> None:
    """Keep the error of a test's fixture for its record."""
    item.stash[_error] = error


def measurement_id(item: pytest.Item) -> str | None:
    """The id of the raw measurement behind a test, once it was made."""
    return item.stash.get(_measurement_id, None)


def ordered(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Qualification tests in the order of their criteria.

    Tests without one come before Full-Run, which ends the warm ranks that they can use.
    """

    def place(item: pytest.Item) -> float:
        declared = plugin.criterion_of(item)
        return CRITERIA.index(declared[0]) if declared else CRITERIA.index("full_run") - 0.5

    return sorted(items, key=place)


def _case_of(item: pytest.Item) -> Case | None:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec else None
    return case if isinstance(case, Case) else None


def _without_number(quantity: str, verdict: Verdict, reason: str, findings: tuple[Finding, ...] = ()) -> Judgement:
    return Judgement(
        quantity=quantity, label="", value=None, unit="1", interval=None, verdict=verdict, reason=reason,
        findings=findings,
    )  # fmt: skip


def _whole(value: object, name: str) -> int | None:
    if value is None or isinstance(value, int):
        return value
    if str(value).isdigit() and int(str(value)) > 0:
        return int(str(value))
    raise ClusterQualError(f"{name}: got {value!r} from the environment, want a positive whole number")


def _relative(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
