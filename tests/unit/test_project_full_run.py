"""The section full_run of a project file: ways to save, failures, and what is said where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.model.full_run import FAILURES, Checkpoints, Failure
from pytest_clusterqual.model.project import FullRunPlan
from pytest_clusterqual.read.project import load_project

LINE = 1 + SMALL.count("\n")  # where full_run begins, and ends, for it is written on one line
SAVE_2 = "checkpoint: {every: 2}"
WITH_1 = "steps: 15, checkpoint: {every: 4}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("clusterqual.yaml")


def plan(file: Path, keys: str, **options: int) -> FullRunPlan:
    file.write_text(f"{SMALL}full_run: {{{keys}}}\n")
    found = load_project(file, **options).full_run
    assert found is not None
    return found


def problems(file: Path, keys: str, **options: int) -> list[str]:
    with pytest.raises(ProjectFileError) as caught:
        plan(file, keys, **options)
    return list(caught.value.problems)


def test_one_way_to_save_may_stand_by_itself_and_several_are_a_list(file: Path) -> None:
    assert plan(file, SAVE_2).checkpoints == (Checkpoints(every=2),)
    several = "checkpoint: [{every: 2, mode: sync}, {every: 3, mode: async-process, folder: saved}]"
    assert plan(file, several).checkpoints == (
        Checkpoints(every=2, mode="sync"),
        Checkpoints(every=3, mode="async-process", folder=str(file.absolute().parent / "saved")),
    )  # fmt: skip


def test_every_kind_of_failure_can_be_asked_for(file: Path) -> None:
    asked = [f"{{{kind}: {'true' if kind == 'sigterm' else 1}, at_step: {5 + n}}}" for n, kind in enumerate(FAILURES)]
    assert plan(file, f"{WITH_1}, failure: [{', '.join(asked)}]").failures == tuple(
        Failure(kind=kind, step=5 + n, target=0 if kind == "sigterm" else 1) for n, kind in enumerate(FAILURES)
    )
    alone = plan(file, f"{WITH_1}, failure: {{kill_node: 1, at_step: 7, go_on: fewer}}", nodes=2).failures
    assert alone == (Failure(kind="kill_node", step=7, target=1, go_on="fewer"),)


def test_failures_may_be_further_apart_than_any_run_lasts(file: Path) -> None:
    assert plan(file, f"{SAVE_2}, time_between_failures: 1000 d").time_between_failures == 1000 * 86400.0


def test_the_other_keys_have_units_and_defaults(file: Path) -> None:
    given = plan(
        file, f"minutes: 1.5, {SAVE_2}, hang_timeout: 5 s, time_between_failures: 8 h, alone: false, apart: false"
    )
    assert given == FullRunPlan(
        minutes=90.0, checkpoints=(Checkpoints(every=2),), hang_timeout=5.0, time_between_failures=28800.0, alone=False,
        apart=False,
    )  # fmt: skip
    assert plan(file, SAVE_2) == FullRunPlan(checkpoints=(Checkpoints(every=2),))


def test_a_demand_may_be_on_one_layout(file: Path) -> None:
    (demand,) = plan(file, f"{SAVE_2}, require: [{{layout: ddp, gain: '>= 1.3'}}]").require
    assert (demand.layout, demand.quantity, demand.value) == ("ddp", "gain", 1.3)


ONE_OF = "want one of kill_rank, hang_rank, raise_rank, fail_save, kill_node, sigterm"
NOTHING_FAILS = "nothing fails in this run, want full_run.failure: {kill_rank: ..., at_step: ...}"
FAULTS = [
    # What stands by itself is told without a position, what stands in a list with it.
    ("", "checkpoint.every: got 10, want at most the 3 steps of the run, else nothing is ever saved"),
    ("steps: 5", "checkpoint.every: got 10, want at most the 5 steps of the run, else nothing is ever saved"),
    ("steps: 5, checkpoint: {every: 6}", "checkpoint.every: got 6, want at most the 5 steps of the run, else nothing "
     "is ever saved"),
    ("steps: 5, checkpoint: [{every: 5}, {every: 6}]", "checkpoint[1].every: got 6, want at most the 5 steps of the "
     "run, else nothing is ever saved"),
    ("checkpoint: {every: 0}", "checkpoint.every: got 0, want at least 1"),
    ("checkpoint: [{every: 2}, {every: 1.5}]", "checkpoint[1].every: got 1.5, want a whole number"),
    ("checkpoint: {every: 2, mode: lazy}", 'checkpoint.mode: got "lazy", want sync, async or async-process'),
    ("checkpoint: {evry: 2}", "checkpoint.evry: unknown key; did you mean every? want one of every, mode, folder"),
    ("checkpoint: []", "checkpoint: got an empty list, want at least 1 item(s)"),
    ("checkpoint: 2", "checkpoint: got 2, want a list"),
    ("checkpoint: [{every: 2}, {every: 2, mode: async}]", "checkpoint[1]: the same again, want each once"),
    (f"{WITH_1}, failure: {{at_step: 12}}", f"failure: nothing is to fail, {ONE_OF}"),
    (f"{WITH_1}, failure: {{kill_rank: 0, hang_rank: 0, at_step: 12}}", f"failure.hang_rank: got kill_rank and "
     f"hang_rank, {ONE_OF}"),
    (f"{WITH_1}, failure: {{kill_rank: 0}}", "failure.at_step: the key is missing"),
    (f"{WITH_1}, failure: {{kill_rank: -1, at_step: 12}}", "failure.kill_rank: got -1, want at least 0"),
    (f"{WITH_1}, failure: {{sigterm: false, at_step: 12}}", "failure.sigterm: got false, want true"),
    (f"{WITH_1}, failure: {{sigkill: 1, at_step: 12}}", "failure.sigkill: unknown key; want one of "
     "kill_rank, hang_rank, raise_rank, fail_save, kill_node, sigterm, at_step, go_on"),
    (f"{WITH_1}, failure: {{kill_rank: 0, at_step: 4}}", "failure.at_step: got 4, want a step after the first "
     "checkpoint at 4, so that there is one to resume"),
    (f"{WITH_1}, failure: [{{kill_rank: 0, at_step: 5}}, {{kill_rank: 0, at_step: 16}}]", "failure[1].at_step: got 16, "
     "want at most the 15 steps of the run, else nothing ever fails"),
    (f"{WITH_1}, failure: {{fail_save: 0, at_step: 13}}", "failure.at_step: got 13, want at most 12, or more steps: no "
     "checkpoint is saved between that and the end"),
    ("steps: 12, checkpoint: {every: 4}, failure: {fail_save: 0, at_step: 9}", "failure.at_step: got 9, want at most "
     "8, or more steps: no checkpoint is saved between that and the end"),
    (f"{WITH_1}, failure: {{sigterm: true, at_step: 15}}", "failure.at_step: got 15, want at most 14, or more steps: "
     "after the last step there is nothing to go on with"),
    (f"{WITH_1}, failure: [{{kill_rank: 0, at_step: 5}}, {{kill_rank: 0, at_step: 5}}]", "failure[1]: the same again, "
     "want each once"),
    (f"{WITH_1}, failure: {{kill_rank: 0, at_step: 5, go_on: fewer}}", 'failure.go_on: got "fewer", want same: only a '
     "node that is lost can be replaced"),
    (f"{WITH_1}, failure: {{kill_node: 0, at_step: 5, go_on: less}}", 'failure.go_on: got "less", want same, spare or '
     "fewer"),
    (f"{WITH_1}, minutes: 2", "minutes: got 2 beside steps 15, want one of them"),
    (f"{SAVE_2}, minutes: 0", "minutes: got 0, want more than 0"),
    (f"{SAVE_2}, minutes: 2 min", 'minutes: got "2 min", want a number'),
    (f"{SAVE_2}, hang_timeout: 30", "hang_timeout: got 30, want a time such as 20 s"),
    (f"{SAVE_2}, hang_timeout: 366 d", 'hang_timeout: got "366 d", want at most 365 d, a time such as 20 s'),
    (f"{SAVE_2}, minutes: 525601", "minutes: got 525601, want at most 525600"),
    (f"{SAVE_2}, time_between_failures: 0 h", 'time_between_failures: got "0 h", want more than zero, a time such as '
     "20 s"),
    (f"{SAVE_2}, alone: 1", "alone: got 1, want true or false"),
    (f"{SAVE_2}, apart: 1", "apart: got 1, want true or false"),
    (f"{SAVE_2}, alone: false, require: [{{gain: '>= 1'}}]", "require[0].gain: there is no run on one node to compare "
     "with, want full_run.alone: true"),
    (f"{SAVE_2}, require: [{{recovery: '<= 60 s'}}]", f"require[0].recovery: {NOTHING_FAILS}"),
    (f"{SAVE_2}, failure: null, require: [{{steps_lost: '<= 4'}}]", f"require[0].steps_lost: {NOTHING_FAILS}"),
    (f"{SAVE_2}, require: [{{layout: fsdp, gain: '>= 1'}}]", 'require[0].layout: got "fsdp", want one of ddp'),
    (f"{SAVE_2}, require: [{{ettr: '>= 2'}}]", 'require[0].ettr: got ">= 2", which is 200 %; want at most 100 %'),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "said"), FAULTS, ids=[str(number) for number in range(len(FAULTS))])
def test_what_is_wrong_is_named_with_its_line_and_what_is_wanted(file: Path, keys: str, said: str) -> None:
    assert problems(file, keys) == [f"clusterqual.yaml:{LINE}: full_run.{said}"]


AIMED = [
    ("{kill_rank: 4, at_step: 12}", "kill_rank: got 4, want a rank below 4 = 2 node(s) x 2 rank(s)"),
    ("{fail_save: 4, at_step: 12}", "fail_save: got 4, want a rank below 4 = 2 node(s) x 2 rank(s)"),
    ("{kill_node: 2, at_step: 12}", "kill_node: got 2, want a node below 2"),
    ("{kill_node: 1, at_step: 12, go_on: spare}", "kill_node: got 1, want a node below 1: the last of 2 is the spare"),
]


@pytest.mark.parametrize(("failure", "said"), AIMED, ids=[failure for failure, _ in AIMED])
def test_what_is_to_fail_must_be_there(file: Path, failure: str, said: str) -> None:
    assert problems(file, f"{WITH_1}, failure: {failure}", nodes=2, nproc_per_node=2) == [
        f"clusterqual.yaml:{LINE}: full_run.failure.{said}"
    ]
    assert plan(file, f"{WITH_1}, failure: {failure}").failures, "without the options nobody knows how many there are"


def test_one_node_cannot_go_on_with_fewer(file: Path) -> None:
    failure = f"{WITH_1}, failure: {{kill_node: 0, at_step: 12, go_on: fewer}}"
    said = f"clusterqual.yaml:{LINE}: full_run.failure.go_on: got fewer, want same or spare: there is one node only"
    assert problems(file, failure, nodes=1) == [said]


def test_in_a_file_of_several_lines_each_fault_has_its_own(file: Path) -> None:
    file.write_text(
        f"{SMALL}full_run:\n  steps: 15\n  checkpoint:\n    - {{every: 2}}\n    - {{every: 20}}\n"
        "  failure:\n    - {kill_rank: 0, at_step: 1}\n    - {hang_rank: 0, at_step: 99}\n"
    )
    with pytest.raises(ProjectFileError) as caught:
        load_project(file)
    assert [problem.partition(": got")[0] for problem in caught.value.problems] == [
        f"clusterqual.yaml:{LINE + 4}: full_run.checkpoint[1].every",
        f"clusterqual.yaml:{LINE + 6}: full_run.failure[0].at_step",
        f"clusterqual.yaml:{LINE + 7}: full_run.failure[1].at_step",
    ]
