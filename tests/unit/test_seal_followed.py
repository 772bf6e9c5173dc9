"""What a sealed run says is held against its measurements: what does not follow is told, in a seal that is sound."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_made import PROJECT, TEST
from seal_made import Change, added, edited, resealed, run_folder, sealed, told_otherwise, with_part

from pytest_clusterqual.cli import main
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.judge.decision.verdict import decide, judge_decision
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Record, Verdict
from pytest_clusterqual.recorded import following
from pytest_clusterqual.recorded.deciding import conclude, plan_of
from pytest_clusterqual.recorded.judging import changes
from pytest_clusterqual.recorded.verifying import Verified, verify

OWN = "qualification/test_own.py::test_barrier"
DECIDED = "qualification/test_decision.py::test_decision[2nodes]"
DECISION = PROJECT + "decision: {expect: one-node}\n"
EXCEPTED = PROJECT.replace("<= 1 GiB", "<= 1 KiB") + (
    'exceptions: [{test: "test_memory*", reason: "ticket 1", until: 2999-01-01}]\n'
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run")


def checked(run: Path) -> Verified:
    found = verify(resealed(run))
    assert found.problems == ()  # the sums are those of what was forged
    return found


def contradictions(run: Path) -> tuple[str, ...]:
    found = checked(run)
    assert found.followed is not None and not found.holds
    return found.followed.contradictions


def said(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["verify", str(resealed(run))])
    return code, capsys.readouterr().out


# -- of a sound run ------------------------------------------------------------------------------


def test_verdicts_come_out_again_with_nodes_and_times(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(run, capsys)
    assert code == 0
    assert "by pytest-clusterqual 0.1.0; nobody has signed that\n" in out
    assert "parts      all 7 are what was sealed\n" in out
    assert "measured   on simulated nodes, 2026-11-30 01:48:24 to 2026-11-30" in out
    assert "UTC, node[0-1]: AMD EPYC 9654 (gloo)\n" in out
    assert "verified   judged again from what was measured, with the same figures, reasons and findings:\n" in out
    assert f"findings:\n  PASS     {TEST}\n" in out
    assert "decision   undecided: " in out


def test_another_processor_may_round_otherwise(run: Path) -> None:
    def rounded(line: dict[str, Any]) -> None:
        figure = line["judgement"]
        figure["value"] *= 1 + 1e-12
        figure["per_rank"] = {rank: value * (1 - 1e-12) for rank, value in figure["per_rank"].items()}

    assert checked(edited(run, "records.jsonl", rounded)).holds


def test_what_is_no_number_is_no_change(run: Path) -> None:
    first = RunFolder.open(run).records()[0]
    one, other = (replace(first, judgement=replace(first.judgement, value=float("nan"))) for _ in range(2))
    assert one != other and not changes([one], [other])


# -- figures and what is said of them ------------------------------------------------------------


def verdict(line: dict[str, Any]) -> None:
    if line["judgement"]["verdict"] == "PASS":
        line["judgement"]["verdict"] = "FAIL"


def test_a_verdict_that_does_not_follow_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(edited(run, "records.jsonl", verdict), capsys)
    assert code == 1
    assert f"DIFFERENT  {TEST}: peak <= 1 GiB: 412 MiB FAIL -> 412 MiB PASS" in out
    assert "recorded   what the records say, contradicted by what is told above" in out


def test_a_value_a_little_off_is_told(run: Path) -> None:
    def moved(line: dict[str, Any]) -> None:
        line["judgement"]["value"] *= 1 + 1e-6

    found = checked(edited(run, "records.jsonl", moved))
    assert found.followed is not None and found.followed.changed


def figure(**changes: Any) -> Change:
    return lambda line: line["judgement"].update(changes)


def under(**changes: Any) -> Change:
    return lambda line: line["conditions"].update(changes)


def about(**changes: Any) -> Change:
    return lambda line: line.update(changes)


def bound(line: dict[str, Any]) -> None:
    if line["judgement"]["requirement"]:
        line["judgement"]["requirement"]["value"] *= 2


FINDING = {"suspect": "node1", "kind": "slow", "evidence": "seen", "check_next": "the NIC"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (figure(reason="all is well"), "peak: another reason than follows: peak 412 MiB meets the required <= 1 GiB"),
        (figure(findings=[FINDING]), "peak: another findings than follows"),
        (figure(samples=[1.0]), "peak: another samples than follows"),
        (figure(per_rank={"0": 1.0}), "peak: another per_rank than follows"),
        (lambda line: line["judgement"]["interval"].update(level=0.9999), "peak: another interval than follows"),
        (bound, "peak: another requirement than follows"),
        (under(device_name="NVIDIA H200"), "its conditions are not those of its measurement m0001"),
        (under(hosts=["gpu001", "gpu002"]), "its conditions are not those of its measurement m0001"),
        (under(simulated=False), "its conditions are not those of its measurement m0001"),
        (about(started=0.0), "its time is not that of its measurement m0001"),
        (about(measurement="m0002"), "its measurement m0002 is missing"),
        (about(run="another"), "is recorded in the run another, this is 20261130T014824Z"),
        (about(criterion="fabric"), f"its measurement m0001 is of {TEST}, memory"),
        (about(exception="ticket 1", until="2999-01-01"), "exception: got 'ticket 1', the project file gives ''"),
    ],
)  # fmt: skip
def test_what_a_reader_is_told_follows_too(run: Path, change: Change, told: str) -> None:
    assert any(f"{TEST}: {told}" in line for line in contradictions(edited(run, "records.jsonl", change)))


def test_what_the_project_file_accepts_is_told_and_follows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(run_folder(tmp_path / "run", project=EXCEPTED), capsys)
    assert code == 0
    assert f"  FAIL     {TEST} (accepted until 2999-01-01: ticket 1)" in out


def test_two_figures_of_one_name_are_both_compared(run: Path) -> None:
    lines = (run / "records.jsonl").read_text().splitlines()
    forged = json.loads(lines[0])
    forged["judgement"].update(verdict="FAIL", value=1.0)
    (run / "records.jsonl").write_text("".join(f"{line}\n" for line in (json.dumps(forged), *lines)))
    assert not checked(run).holds


def test_a_record_that_was_taken_away_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "records.jsonl").write_text("")
    RunFolder.open(run).select({TEST: Selected(criterion="memory"), OWN: Selected(criterion="own")})
    code, out = said(run, capsys)
    assert code == 1
    assert f"DIFFERENT  {TEST}: peak <= 1 GiB: not judged -> 412 MiB PASS" in out
    assert f"NO RECORD  {OWN}" in out


def test_a_record_is_of_the_criterion_that_was_asked_for(run: Path) -> None:
    RunFolder.open(run).select({TEST: Selected(criterion="fabric")})
    assert contradictions(run) == (f"{TEST}: is recorded as memory, was selected as fabric",)


def measured_again(run: Path, *before: Verdict) -> Path:
    """The run, resumed to measure its test once more; `before` is what the new records say of the first attempt."""
    folder = RunFolder.open(run)
    measurement, first = folder.measurements()["m0001"][2], folder.records()
    folder.begin_attempt()
    name = folder.add_measurement("memory", TEST, measurement)
    for each in first:
        folder.add_record(replace(each, measurement=name, attempt=2, earlier=before))
    return run


def test_what_a_test_was_before_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(measured_again(run, Verdict.PASS), capsys)
    assert code == 0
    assert f"  PASS     {TEST} (before: PASS)\n" in out


def test_a_test_that_was_repeated_in_secret_is_told(run: Path) -> None:
    assert contradictions(measured_again(run)) == (
        f"{TEST}: was PASS in earlier attempts, and its record does not say so",
    )


# -- without a measurement -----------------------------------------------------------------------


@pytest.mark.parametrize("told", ["PASS", "FAIL", "UNDECIDED", "MEASURED"])
def test_a_verdict_that_nothing_was_measured_for_is_told(run: Path, told: str) -> None:
    def forged(line: dict[str, Any]) -> None:
        line.update(test="test_fabric.py::test_fabric[all_reduce-world]", criterion="fabric", measurement=None)
        line["judgement"]["verdict"] = told

    found = checked(added(run, forged))
    assert found.followed is not None and not found.holds
    (change,) = found.followed.changed
    assert change.before is not None and change.after is not None
    assert (change.before.verdict, change.after.verdict) == (Verdict(told), Verdict.ERROR)
    assert change.after.reason == f"there is no measurement that {told} could follow from"


def test_a_figure_of_an_own_test_that_counts_for_a_criterion_is_listed_apart(run: Path) -> None:
    def given(line: dict[str, Any]) -> None:
        line.update(test="test_own.py::test_multiplication", criterion="nodes", measurement=None)
        line["judgement"]["quantity"] = "multiplication"

    found = checked(added(run, given))
    assert found.followed is not None and found.holds
    assert any("an own test, which keeps no measurement" in text for _, text in found.followed.unmeasured)


@pytest.mark.parametrize(
    ("criterion", "told", "why"),
    [
        ("own", "PASS", "an own test, which keeps no measurement"),
        ("fabric", "BLOCKED", "Memory did not pass"),
        ("fabric", "ERROR", "Memory did not pass"),
    ],
)
def test_what_cannot_be_judged_again_is_named(
    run: Path, capsys: pytest.CaptureFixture[str], criterion: str, told: str, why: str
) -> None:
    def other(line: dict[str, Any]) -> None:
        line.update(test=OWN, criterion=criterion, measurement=None)
        line["judgement"].update(verdict=told, reason="Memory did not pass")

    code, out = said(added(run, other), capsys)
    assert code == 0
    verified, recorded = out.split("recorded   without a measurement that it could be judged again from:\n")
    assert OWN not in verified and f"  {told:<8} {OWN}: {why}\n" in recorded


# -- the decision --------------------------------------------------------------------------------


def with_decision(tmp_path: Path) -> Path:
    """A run with a test of the decision, recorded where its project file was elsewhere."""
    run = run_folder(tmp_path / "run", project=DECISION)
    folder = RunFolder.open(run)
    plan = DecisionPlan(expect="one-node", source="my site/clusterqual.yaml:15")
    folder.update_environment({"decision": to_json(plan)})
    judged = judge_decision(decide(folder.numbered(), plan), plan)
    about = replace(folder.records()[0], test=DECIDED, criterion="decision", measurement=None, conditions=None)
    folder.add_record(replace(about, judgement=judged))
    conclude(folder, plan_of(folder))
    return run


def test_the_decision_is_made_again(tmp_path: Path) -> None:
    found = checked(with_decision(tmp_path))
    assert found.holds and found.followed is not None
    assert [line for line in found.followed.measured if DECIDED in line[1]] == [("  UNDECIDED", DECIDED)]


@pytest.mark.parametrize("forged", [{"verdict": "PASS"}, {"label": "one-node"}, {"reason": "one node suffices"}])
def test_a_decision_that_does_not_follow_is_told(tmp_path: Path, forged: dict[str, str]) -> None:
    def change(line: dict[str, Any]) -> None:
        if line["criterion"] == "decision":
            line["judgement"].update(forged)

    (told,) = contradictions(edited(with_decision(tmp_path), "records.jsonl", change))
    assert told.startswith(f"{DECIDED}: decided ")
    assert "what follows from the records: undecided UNDECIDED: undecided: " in told


@pytest.mark.parametrize("content", ["{}", "[1]", '{"outcome": "one-node", "why": "it does"}', "[" * 100_000])
def test_a_page_of_another_decision_is_told(run: Path, content: str) -> None:
    (run / "decision.json").write_text(content)
    (told,) = contradictions(run)
    assert told.startswith("decision.json: what follows from the records: undecided: ")


def test_another_expectation_than_the_project_file_s_is_told(tmp_path: Path) -> None:
    run = with_decision(tmp_path)
    RunFolder.open(run).update_environment({"decision": to_json(DecisionPlan(expect="undecided", source="a:1"))})
    assert "environment.json: decision: is not what the project file says" in contradictions(run)


# -- the run as a whole --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forged", [{"device": "cuda"}, {"device_name": "H200"}, {"backend": "nccl"}, {"versions": {}}, {"hosts": ["dgx"]}]
)  # fmt: skip
def test_the_machine_of_a_run_is_one_that_it_measured(run: Path, forged: dict[str, Any]) -> None:
    folder, file = RunFolder.open(run), run / "environment.json"
    at = folder.records()[0].conditions
    assert at is not None
    folder.update_environment({key: getattr(at, key) for key in ("device", "device_name", "backend", "versions")})
    assert checked(run).holds
    file.write_text(json.dumps({**RunFolder.open(run).environment, **forged}))
    ((key, value),) = forged.items()
    assert contradictions(run) == (f"environment.json: {key}: got {value!r}, and no measurement was made under that",)


def test_the_nodes_of_a_run_are_those_of_its_measurements(run: Path) -> None:
    text = (run / "environment.json").read_text()
    (run / "environment.json").write_text(text.replace('"simulated": true', '"simulated": false'))
    assert contradictions(run) == (f"{TEST}: was measured on simulated nodes, the run says real nodes",)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda m: m["verdicts"].update({TEST: "FAIL"}), f"MANIFEST.json: says FAIL of {TEST}, its records say PASS"),
        (lambda m: m["verdicts"].clear(), f"MANIFEST.json: says nothing of {TEST}, its records say PASS"),
        (lambda m: m.update(simulated=False), "MANIFEST.json: simulated: got False, the run says True"),
        (lambda m: m.update(run="another"), "MANIFEST.json: run: got 'another', the run says '20261130T014824Z'"),
    ],
)  # fmt: skip
def test_the_manifest_says_what_the_records_say(tmp_path: Path, change: Change, told: str) -> None:
    found = verify(told_otherwise(sealed(tmp_path), change))
    assert found.problems == () and found.followed is not None
    assert found.followed.contradictions == (told,) and not found.holds


def test_the_project_file_to_read_is_the_one_that_judges(tmp_path: Path) -> None:
    found = verify(with_part(sealed(tmp_path), "clusterqual.yaml", PROJECT.replace("1 GiB", "1 KiB").encode()))
    assert found.problems == () and found.followed is not None
    assert found.followed.contradictions == ("clusterqual.yaml: is not the project file that the run recorded",)


# -- what cannot be judged here ------------------------------------------------------------------


def test_a_run_without_a_project_file_is_checked_as_far_as_it_goes(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (run / "environment.json").read_text()
    (run / "environment.json").write_text(text.replace('"project_file"', '"no_project_file"'))
    code, out = said(run, capsys)
    assert code == 1
    assert "parts      all 6 are what was sealed\n" in out
    assert "NOT JUDGED the verdicts cannot be judged again: the run recorded no project file; judge" in out
    assert f"recorded   what the records say, not judged again:\n  PASS     {TEST}\n" in out
    assert "DIFFERENT" not in out
    assert contradictions(edited(run, "records.jsonl", under(device_name="NVIDIA H200")))  # that needs no project


def cannot(*_: object) -> list[Record]:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda text: text.replace("<= 1 GiB", "<= 1 peek"), "20261130T014824Z/clusterqual.yaml:14: memory.require"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), ".clusterqual.zip/environment.json:2: got schema 2"),
        (lambda text: text[:-9], "run.clusterqual.zip/environment.json: not JSON"),
        (None, "the verdicts cannot be judged again: ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_takes_nothing_from_the_rest(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[str], str] | None, told: str,
) -> None:  # fmt: skip
    file = resealed(run)
    if prepare is None:
        monkeypatch.setattr(following, "judge_again", cannot)
    else:
        with_part(file, "environment.json", prepare((run / "environment.json").read_text()).encode())
    assert main(["verify", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.index("signature  nobody has signed it") < out.index("parts      all 7 are") < out.index("NOT JUDGED")
    assert told in out and "/clusterqual-" not in out


def test_sentences_of_another_release_are_not_compared(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def by_another(line: dict[str, Any]) -> None:
        line.get("measurement", line)["conditions"]["versions"]["pytest_clusterqual"] = "0.0.9"

    edited(run, "measurements.jsonl", by_another)
    edited(run, "records.jsonl", lambda line: line["conditions"]["versions"].update(pytest_clusterqual="0.0.9"))
    code, out = said(edited(run, "records.jsonl", figure(reason="in other words")), capsys)
    assert code == 0
    assert "release    0.0.9 measured, 0.1.0 judged again; sentences are not compared" in out


def test_a_time_that_no_calendar_knows_is_told_all_the_same(run: Path) -> None:
    edited(run, "measurements.jsonl", lambda line: line["measurement"].update(started=1e300))
    found = checked(edited(run, "records.jsonl", about(started=1e300)))
    assert found.followed is not None and "9999-12-31" in found.followed.when
