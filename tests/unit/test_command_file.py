"""A project file whose job is a command of the user's own: what is read, and what is said about every bad one."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pytest_clusterqual.errors import ClusterQualError, ProjectFileError
from pytest_clusterqual.measure.cases import cases
from pytest_clusterqual.model.command import CommandJob
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.read.project import load_project

GOOD = """\
version: 1
project: mine
launcher: {device: cpu}
workload:
  command: [train.py, --steps, "{steps}", --lr, 3e-4, --depth, 2]
  name: tiny
  environment: {OUTPUT: "{run}/saved", SEED: 1}
  folder: scripts
  steps: 20
  tokens_per_step: 4096
  time_limit: 2 min
memory: {steps: 2, require: [{peak: "<= 2 GiB"}, {layout: tiny, headroom: ">= 10 %"}]}
fabric: {collectives: [all_reduce], groups: [world, layouts]}
scaling: {points: [1, 2], require: [{nodes: 2, speedup: ">= 1.3"}]}
full_run:
  failure: {kill_rank: 1, at_step: 4}
  require: [{recovery: "<= 60 s"}]
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scripts").mkdir()
    Path("scripts/train.py").touch()


def load(text: str, *, nodes: int | None = 2) -> Project:
    Path("clusterqual.yaml").write_text(text)
    return load_project(Path("clusterqual.yaml"), nodes=nodes)


def test_a_command_is_read_word_by_word() -> None:
    project = load(GOOD)
    assert project.command == CommandJob(
        name="tiny", words=("train.py", "--steps", "{steps}", "--lr", "0.0003", "--depth", "2"),
        environment={"OUTPUT": "{run}/saved", "SEED": "1"}, folder=str(Path("scripts").absolute()), steps=20,
        tokens_per_step=4096, time_limit=120.0,
    )  # fmt: skip
    assert project.layouts == (Layout(name="tiny"),)


def test_of_a_command_nothing_else_is_known() -> None:
    with pytest.raises(ClusterQualError, match="of the job tiny only its command is known"):
        _ = load(GOOD).workload


def test_what_placeholders_stand_for() -> None:
    job = load(GOOD).command
    assert job is not None
    assert job.takes_steps
    filled = partial(job.filled, run="/shared/run", steps=23, ranks=16, nodes=2)
    assert [*map(filled, job.words[:3])] == ["train.py", "--steps", "23"]
    assert filled(job.environment["OUTPUT"]) == "/shared/run/saved"
    assert filled("--accumulate={ranks}/{nodes}") == "--accumulate=16/2"


def test_another_command_script_or_version_is_another_job() -> None:
    job = load(GOOD).command
    other = load(GOOD.replace("--depth, 2", "--depth, 3")).command
    elsewhere = load(GOOD.replace("time_limit: 2 min", "time_limit: 3 min")).command
    assert job is not None and other is not None and elsewhere is not None
    of = {"versions": {"torch": "2.13.0"}, "script": "aa"}
    assert job.fingerprint(**of) == elsewhere.fingerprint(**of)
    prints = [
        job.fingerprint(**of), other.fingerprint(**of), job.fingerprint(**{**of, "script": "ab"}),
        job.fingerprint(versions={"torch": "2.14.0"}, script="aa"),
    ]  # fmt: skip
    assert len(set(prints)) == 4


def test_every_criterion_has_its_tests_under_the_name_of_the_command() -> None:
    project = load(GOOD)
    found = {c: cases(project, c, nodes=2, nproc_per_node=1) for c in ("memory", "fabric", "scaling", "full_run")}
    assert [str(case) for case in found["memory"]] == ["tiny-2nodes"]
    assert [str(case) for case in found["scaling"]] == ["tiny-2nodes"]
    assert [str(case) for case in found["full_run"]] == ["tiny-2nodes"]
    assert not any(case.inapplicable for name in ("memory", "scaling", "full_run") for case in found[name])
    swept, untold = found["fabric"]
    assert (str(swept), swept.inapplicable) == ("all_reduce-world", "")
    assert untold.inapplicable == "which collectives a command calls, and with what sizes, is not known"


def test_a_log_gives_no_full_run_and_the_test_says_so() -> None:
    text = GOOD.replace("  time_limit: 2 min\n", "  log: {}\n").replace("  failure: {kill_rank: 1, at_step: 4}\n", "")
    project = load(text.replace('[{recovery: "<= 60 s"}]', "[]"))
    (case,) = cases(project, "full_run", nodes=2, nproc_per_node=1)
    assert case.inapplicable.startswith("a log does not tell where all the time of a run goes: have the command make a")


def test_a_module_needs_no_file() -> None:
    job = load(GOOD.replace("[train.py,", "[-m, package.train,")).command
    assert job is not None
    assert job.words[:2] == ("-m", "package.train")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'command: [train.py, --steps, "{steps}", --lr, 3e-4, --depth, 2]',
            "command: []",
            "5: workload.command: got an empty list, want at least 1 item(s)",
        ),
        (
            "[train.py,",
            "[python,",
            '5: workload.command[0]: got "python", want a Python script such as train.py, or -m and a module',
        ),
        (
            '[train.py, --steps, "{steps}", --lr, 3e-4, --depth, 2]',
            "[-m]",
            "5: workload.command: got -m alone, want the name of a module after it",
        ),
        (
            "[train.py,",
            "[missing.py,",
            '5: workload.command[0]: got "missing.py", want a script that exists in scripts',
        ),
        (
            "--depth, 2]",
            "--depth, true]",
            "5: workload.command[6]: got true, want a text",
        ),
        (
            "folder: scripts",
            "folder: nowhere",
            '8: workload.folder: got "nowhere", want a folder that exists beside the project file',
        ),
        (
            "  steps: 20\n",
            "",
            "4: workload.steps: the command has {steps} in it, want the number of steps of the fixed work",
        ),
        (
            "SEED: 1",
            "CLUSTERQUAL_PROBE: x",
            "7: workload.environment.CLUSTERQUAL_PROBE: want a name of letters, digits and _, and none that is "
            "CLUSTERQUAL_...",
        ),
        (
            "tokens_per_step: 4096",
            "tokens_per_step: 0",
            "10: workload.tokens_per_step: got 0, want at least 1",
        ),
        (
            "time_limit: 2 min",
            "log: {pattern: 'loss (?P<loss>.*)'}",
            "11: workload.log.pattern: there is no group step; want one such as in 'step (?P<step>\\d+) .* "
            "(?P<seconds>[\\d.]+)s'",
        ),
        (
            "  folder: scripts\n",
            "  folder: scripts\n  global_batch: 8\n",
            "9: workload.global_batch: unknown key; want one of command, name, environment, folder, steps, "
            "tokens_per_step, sequences_per_step, launcher_line, log, time_limit",
        ),
        (
            "launcher: {device: cpu}",
            "layouts: [{name: ddp}]",
            "3: layouts: a command spreads its job by itself, want no such key",
        ),
        (
            "{device: cpu}",
            "{rank_map: cyclic}",
            "3: launcher.rank_map: torchrun itself seats the ranks of a command, want block",
        ),
        (
            "{steps: 2,",
            "{ladder: true,",
            "12: memory.ladder: got true: a command can be cut in no other way than its own, want false",
        ),
        (
            "layout: tiny",
            "layout: ddp",
            '12: memory.require[1].layout: got "ddp", want one of tiny',
        ),
        (
            "collectives: [all_reduce], ",
            "",
            "13: fabric.collectives: which collectives a command calls is not known, want a list such as "
            "[all_reduce, all_gather]",
        ),
        (
            "groups: [world, layouts]",
            "synchronization: [tiny]",
            "13: fabric.synchronization: a command's step is seen from outside only, want no layouts here",
        ),
        (
            "points: [1, 2]",
            "rank_maps: [cyclic]",
            "14: scaling.rank_maps: torchrun itself seats the ranks of a command, want no rank maps",
        ),
        (
            "full_run:\n",
            "full_run:\n  checkpoint: {every: 5}\n",
            "16: full_run.checkpoint: a command saves by itself, as its own words say; want no such key",
        ),
        (
            "full_run:\n",
            "full_run:\n  minutes: 5\n",
            "16: full_run.minutes: how long a command trains is in its own words, want steps or no such key",
        ),
        (
            "kill_rank: 1",
            "raise_rank: 1",
            "16: full_run.failure.raise_rank: this is done by a job from inside itself; to a command can be "
            "done kill_rank, hang_rank, kill_node, sigterm",
        ),
        (
            "at_step: 4",
            "at_step: 1",
            "16: full_run.failure.at_step: got 1, want 2 or more: a command is hurt once the step before is done",
        ),
        (
            "at_step: 4",
            "at_step: 21",
            "16: full_run.failure.at_step: got 21, want at most the 20 steps of the run, else nothing ever fails",
        ),
        (
            "kill_rank: 1, at_step: 4",
            "sigterm: true, at_step: 20",
            "16: full_run.failure.at_step: got 20, want at most 19, or more steps: after the last step there is "
            "nothing to go on with",
        ),
        (
            "kill_rank: 1",
            "kill_rank: 2",
            "16: full_run.failure.kill_rank: got 2, want a rank below 2 = 2 node(s) x 1 rank(s)",
        ),
        (
            'OUTPUT: "{run}/saved"',
            'OUTPUT: "{rum}/{step}-{tag}"',
            "7: workload.environment.OUTPUT: got {rum}, want {run}; placeholders are {run}, {steps}, {ranks}, {nodes}",
        ),
        (
            "  time_limit: 2 min\n",
            '  launcher_line: [torchrun, "--nnodes={node}"]\n',
            "11: workload.launcher_line[1]: got {node}, want one of {nodes}, {node_rank}, {nproc_per_node}, {ranks}, "
            "{address}, {port}, {restarts}",
        ),
        (
            "  time_limit: 2 min\n",
            '  launcher_line: [torchrun, "--nnodes={nodes}"]\n',
            "11: workload.launcher_line: nobody would start the ranks again: want {restarts} in it, such as "
            "--max-restarts={restarts}",
        ),
        (
            "  time_limit: 2 min\n",
            "  log: {}\n",
            "16: full_run.failure.kill_rank: from a log alone nobody knows the moment, want the probe and no "
            "workload.log",
        ),
    ],
)
def test_what_is_said_of_a_bad_one(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ProjectFileError) as caught:
        load(GOOD.replace(old, new))
    assert f"clusterqual.yaml:{said}" in caught.value.problems


def test_a_number_of_steps_that_the_command_does_not_take_is_refused() -> None:
    text = GOOD.replace('--steps, "{steps}", ', "").replace("full_run:\n", "full_run:\n  steps: 40\n")
    with pytest.raises(ProjectFileError) as caught:
        load(text)
    wanted = "the command takes no number of steps, want {steps} among its words, or no such key"
    assert caught.value.problems == (
        f"clusterqual.yaml:12: memory.steps: {wanted}", f"clusterqual.yaml:16: full_run.steps: {wanted}"
    )  # fmt: skip
