"""Parts of a suite, once more or alone, as people expect of pytest: no rank is started, what is measured is made up."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabric_made import exchanged_by
from made import conditions, judgement, memory_measurement
from test_judge_scaling import interleaved

from pytest_clusterqual import cli
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.measure import criteria
from pytest_clusterqual.measure.cases import Case
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.record import Judgement, Record, Verdict
from pytest_clusterqual.report import plots
from pytest_clusterqual.session.session import Session

SUITE = Path(__file__).parents[2] / "qualification"
PROJECT = """version: 1
project: small
launcher: {kind: local, device: cpu, oversubscribe: true}
workload:
  model: {layers: 1, hidden: 32, heads: 2, kv_heads: 1, ffn: 64, vocab: 256}
  optimizer: {name: adamw, lr: 3.0e-4}
  precision: fp32
  sequence_length: 32
  microbatch: 1
  global_batch: 4
  steps: 6
  seed: 1
layouts: [{name: ddp}]
memory: {require: [{peak: "<= 1 GiB"}]}
fabric:
  collectives: [all_reduce]
  groups: [world]
  sizes: {from: 4 KiB, to: 16 KiB, factor: 4}
  require: [{collective: all_reduce, busbw: ">= 1 B/s"}]
scaling: {points: [1, 2], require: [{nodes: 2, speedup: ">= 0.5"}]}
"""
MEMORY, FABRIC, SCALING = "memory", "fabric", "scaling"
MADE: dict[str, Measurement] = {
    MEMORY: memory_measurement(), FABRIC: replace(exchanged_by(2), conditions=conditions()),
    SCALING: interleaved(0.2, 0.125),
}  # fmt: skip


class Bench:
    """A site whose criteria come to the verdicts that a test wants; `measured` are those that were really asked for."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = dict(MADE)
        self.verdicts = dict.fromkeys(MADE, Verdict.PASS)
        self.measured: list[str] = []
        self.out = ""
        self._pytester = pytester
        for criterion in MADE:
            shutil.copy(SUITE / f"test_{criterion}.py", pytester.path)
        (pytester.path / "clusterqual.yaml").write_text(PROJECT)
        monkeypatch.setattr(criteria, "measure", self._measure)
        monkeypatch.setattr("pytest_clusterqual.judge.verdict._judge_kind", self._judge)
        monkeypatch.setattr(Session, "topology", SimpleNamespace(links=None))
        monkeypatch.setattr(plots, "write_plots", lambda *_, **__: ([], ""))

    def _measure(self, _: object, case: Case) -> Measurement:
        self.measured.append(case.criterion)
        return self.made[case.criterion]

    def _judge(self, _: object, measurement: Measurement) -> tuple[Judgement, ...]:
        criterion = next(name for name, made in MADE.items() if type(made) is type(measurement))
        verdict = self.verdicts[criterion]
        return (judgement(quantity=criterion, label="", verdict=verdict, findings=(), reason=f"made {verdict}"),)

    def run(self, *options: str, folder: str = "run", into: str = "--qual-run-dir") -> int:
        """The exit code of a run; the names of the tests that were measured are in `measured`."""
        self.measured.clear()
        nodes = () if into == "--qual-replay" else ("--nodes=2",)
        done = self._pytester.runpytest_inprocess(
            "--strict-markers", "-rsx", "-p", "no:hypothesispytest", *nodes, f"{into}={folder}", *options
        )
        self.out = " ".join(done.stdout.str().split())
        return int(done.ret)

    def resume(self, *options: str) -> int:
        return self.run(*options, into="--qual-resume")

    def records(self, folder: str = "run") -> dict[str, Record]:
        """Criterion -> its record that counts; there is one each."""
        return {record.criterion: record for record in RunFolder.open(self._pytester.path / folder).records()}


@pytest.fixture(autouse=True, scope="module")
def _loaded_once() -> None:
    """Pytester forgets what a run has imported."""
    for name in ("jinja2", "numpy", "pint", "pytest_clusterqual.qualify"):
        importlib.import_module(name)


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(pytester, monkeypatch)


# -- once more -----------------------------------------------------------------------------------


def test_a_repaired_test_is_measured_again(
    bench: Bench, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.verdicts[FABRIC] = Verdict.FAIL
    assert bench.run() == 1
    assert bench.measured == [MEMORY, FABRIC]
    assert bench.resume("-k", "all_reduce") == 1
    assert bench.measured == [], "its samples are there, so they are judged again"

    bench.verdicts[FABRIC] = Verdict.UNDECIDED
    assert bench.resume("--qual-again", "-k", "all_reduce") == 1
    bench.verdicts[FABRIC] = Verdict.PASS
    assert bench.resume("--qual-again", "-m", "fabric") == 1, "Training Scaling is still BLOCKED"
    assert (bench.measured, "1 passed" in bench.out) == ([FABRIC], True)
    assert "test_scaling.py::test_scaling[ddp-2nodes] is BLOCKED, so this run does not exit 0" in bench.out
    told = "all_reduce-world: PASS at attempt 3, before: FAIL, UNDECIDED"
    assert f"repeated {told}" in bench.out

    assert bench.resume() == 0
    assert bench.measured == [SCALING], "without --qual-again only what is missing is measured"
    folder = RunFolder.open(pytester.path / "run")
    assert bench.records()[FABRIC].earlier == (Verdict.FAIL, Verdict.UNDECIDED)
    assert [criterion for _, criterion, _ in folder.measurements().values()] == [MEMORY, *[FABRIC] * 3, SCALING]
    assert (folder.path / "records.jsonl").read_text().count('"verdict": "FAIL"') == 1, "the old record is kept"
    for command, arguments in {"report": (), "judge": (), "export": ("--format", "markdown")}.items():
        assert cli.main([command, "run", *arguments]) == 0
        assert told in " ".join(capsys.readouterr().out.replace("\\", "").split()), command
    assert bench.run(folder="run", into="--qual-replay") == 0
    assert told in bench.out


def test_to_measure_again_needs_a_run_to_go_on_with(bench: Bench) -> None:
    assert bench.run("--qual-again") == 4
    assert bench.run(folder="run") == 0
    assert bench.run("--qual-again", into="--qual-replay") == 4


# -- a part of the suite -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "measured"),
    [(("-m", "memory"), [MEMORY]), (("-m", "not scaling"), [MEMORY, FABRIC]), (("-k", "scaling"), [SCALING])],
)
def test_criteria_are_selected_by_marker_and_name(bench: Bench, options: tuple[str, ...], measured: list[str]) -> None:
    assert bench.run(*options) == 0, bench.out
    assert bench.measured == measured


def test_a_gate_that_was_not_selected_has_not_failed_and_is_told(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("-m", "scaling", folder="second") == 0
    assert bench.records("second")[SCALING].gates_not_run == (MEMORY, FABRIC)
    told = "scaling needs memory and fabric first, and nobody asked for them: no full qualification"
    assert f"no gate {told}" in bench.out
    assert cli.main(["report", "second"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())

    assert bench.run("-m", "not scaling", folder="first") == 0
    assert cli.main(["merge", "first", "second", "--out", "whole"]) == 0
    assert "no gate" not in capsys.readouterr().out, "the merged run has the gates' records"
    bench.verdicts[MEMORY] = Verdict.FAIL
    assert bench.run("-m", "not scaling", folder="bad") == 1
    assert cli.main(["merge", "bad", "second", "--out", "worse"]) == 1, "a gate that failed elsewhere counts"


def test_a_gate_that_failed_blocks_and_goes_on_to_block_when_resumed(bench: Bench) -> None:
    bench.verdicts[MEMORY] = Verdict.FAIL
    assert bench.run("-m", "memory or scaling") == 1
    assert bench.measured == [MEMORY]
    assert bench.records()[SCALING].judgement.verdict is Verdict.BLOCKED
    assert bench.resume("-m", "scaling") == 1
    assert bench.measured == []
    assert "memory did not pass: test_memory[ddp-2nodes] is FAIL" in bench.out
    assert bench.resume("-m", "scaling", "--qual-keep-going") == 1, "it passes, but the run as a whole does not"
    assert bench.measured == [SCALING]
    assert bench.records()[SCALING].gates_not_run == (FABRIC,)


@pytest.mark.parametrize(("needs", "code"), [('"memory"', 0), ('["memroy"]', 4)])
def test_a_gate_that_does_not_exist_is_refused(bench: Bench, pytester: pytest.Pytester, needs: str, code: int) -> None:
    test = pytester.path / "test_scaling.py"
    test.write_text(test.read_text().replace('["memory", "fabric"]', needs))
    assert bench.run("-m", "memory or scaling") == code


def test_the_last_failed_ones_are_those_that_did_not_pass_nor_run(bench: Bench) -> None:
    bench.verdicts[FABRIC] = Verdict.FAIL
    assert bench.run(folder="a") == 1
    bench.verdicts[FABRIC] = Verdict.PASS
    assert bench.run("--lf", folder="b") == 0, bench.out
    assert bench.measured == [FABRIC, SCALING], "what was BLOCKED is remembered"
    assert bench.records("b")[SCALING].gates_not_run == (MEMORY,)
    bench.verdicts[SCALING] = Verdict.FAIL
    assert bench.run(folder="c") == 1
    assert bench.run("--lf", folder="d") == 1
    assert bench.measured == [SCALING], "its gates passed in the run before, and are not run again"


# -- exceptions, and one exit code for all -------------------------------------------------------


def excepting(folder: Path, until: date) -> None:
    known = f'exceptions: [{{test: "test_fabric*", reason: "ticket 4711", until: {until}}}]\n'
    (folder / "clusterqual.yaml").write_text(PROJECT + known)


@pytest.mark.parametrize(
    ("until", "code", "told"),
    [
        (date(2023, 12, 31), 0, "FAIL accepted until 2023-12-31: ticket 4711"),
        (date(2023, 11, 1), 1, "FAIL, and its exception expired on 2023-11-01: ticket 4711"),
    ],
    ids=["valid when it was measured", "over by then"],
)
def test_every_command_agrees_with_the_run_about_an_exception(
    bench: Bench, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], until: date, code: int, told: str
) -> None:
    excepting(pytester.path, until)
    bench.verdicts[FABRIC] = Verdict.FAIL
    bench.made[FABRIC] = replace(bench.made[FABRIC], started=1_700_000_000.0)  # 2023-11-14
    assert bench.run("-m", "not scaling") == code
    assert told in bench.out
    assert bench.records()[FABRIC].until == str(until)
    for command in (("report", "run"), ("judge", "run"), ("merge", "run", "--out", "merged")):
        assert cli.main([*command]) == code, command
        assert told in " ".join(capsys.readouterr().out.split()), command
    assert bench.run("-m", "not scaling", into="--qual-replay") == code
    assert told in bench.out


OWN = """
import pytest

def test_own(cluster, qualify):
    qualify.samples("barrier", [2.0] * 6, unit="s", require="<= 1 s")
"""


@pytest.mark.parametrize("passes", [True, False])
def test_a_replay_keeps_the_verdict_of_a_test_that_wants_ranks(
    bench: Bench, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    monkeypatch.setattr(Session, "conditions", lambda *_, **__: None)
    monkeypatch.setattr(Session, "telemetry", lambda *_, **__: ())
    (pytester.path / "test_own.py").write_text(OWN.replace("<= 1 s", "<= 3 s") if passes else OWN)
    code = 0 if passes else 1
    assert bench.run("-k", "memory or own") == code, bench.out
    assert bench.run("-k", "memory or own", into="--qual-replay", folder="run") == code
    assert "1 passed, 1 skipped" in bench.out
    assert ("test_own.py::test_own is FAIL, so this run does not exit 0" in bench.out) is not passes


def test_a_run_without_a_verdict_of_a_test_is_not_well_for_any_command(
    bench: Bench, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    skips = "import pytest\n\n@pytest.mark.criterion('memory')\ndef test_skips():\n    pytest.skip('no time')\n"
    (pytester.path / "test_skips.py").write_text(skips)
    told = "asked for and not recorded: test_skips.py::test_skips"
    assert bench.run("-m", "memory") == 1
    assert f"{told}, so this run does not exit 0" in bench.out
    for command in (("report", "run"), ("judge", "run"), ("merge", "run", "--out", "merged")):
        assert cli.main([*command]) == 1, command
        assert told in capsys.readouterr().out, command
    assert cli.main(["export", "run", "--format", "markdown"]) == 0
    out = capsys.readouterr().out.replace("\\", "")
    assert (out.splitlines()[0], told in out) == ("## Cluster qualification: no verdict yet", True)


def test_a_test_of_ones_own_that_fails_by_itself_is_an_error_of_the_run(
    bench: Bench, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    fails = "def test_own(topology):\n    assert topology is None, 'a rack too many'\n"
    (pytester.path / "test_own.py").write_text(fails)
    assert bench.run("-k", "memory or own") == 1
    for command in (("report", "run"), ("judge", "run"), ("merge", "run", "--out", "merged")):
        assert cli.main([*command]) == 1, command
        assert "AssertionError: a rack too many" in " ".join(capsys.readouterr().out.split()), command


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("    assert 0, 'no label on the rack'", 1),
        ("\n\n@pytest.fixture(autouse=True)\ndef tidy():\n    yield\n    raise OSError('no label on the rack')\n", 1),
        ("", 0),
    ],
    ids=["assert", "teardown", "neither"],
)
def test_a_test_that_fails_after_its_verdict_is_an_error_and_opens_no_gate(
    bench: Bench, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], body: str, code: int
) -> None:
    path = pytester.path / "test_memory.py"
    path.write_text(f"{path.read_text().rstrip()}\n{body}")
    assert bench.run("-m", "memory or scaling") == code, bench.out
    assert bench.measured == [MEMORY, *([] if code else [SCALING])]
    for command in (("report", "run"), ("judge", "run"), ("merge", "run", "--out", "merged")):
        assert cli.main([*command]) == code, command
        told = " ".join(capsys.readouterr().out.split())
        assert ("it failed after its verdict PASS" in told) == ("no label on the rack" in told) == bool(code), command


def test_what_pytest_itself_says_stands(bench: Bench, pytester: pytest.Pytester) -> None:
    assert bench.run("-k", "nothing") == pytest.ExitCode.NO_TESTS_COLLECTED == 5
    assert bench.run("--qual-config=nowhere.yaml") == pytest.ExitCode.USAGE_ERROR == 4
    broken = "def pytest_runtest_logreport(report):\n    assert report.when != 'teardown'\n"
    (pytester.path / "conftest.py").write_text(broken)
    assert bench.run("-m", "memory") == pytest.ExitCode.INTERNAL_ERROR == 3
    assert bench.records()[MEMORY].judgement.verdict is Verdict.PASS, "what was recorded is kept"


def test_a_command_that_is_interrupted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "open", interrupted)
    assert cli.main(["report", "run"]) == 130
