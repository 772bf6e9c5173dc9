"""Every command of the pages is run here in a folder made for it, or is known to a test that has the nodes for it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from pages_read import NAMES, Command, commands, text_of
from pages_site import key_of, make_site, whole_file

import pytest_clusterqual.run.qualification  # noqa: F401  # once, and not again in each run that is collected
from pytest_clusterqual.cli import _parser, _with_subparsers, main

# Commands that want hosts, minutes or another machine, and the test that runs them.
ELSEWHERE = {
    r"clusterqual doctor --qual-hosts .*": "tests/lab/test_doctor.py::test_healthy_hosts",
    r"clusterqual init --qual-hosts .*": "tests/lab/test_doctor.py::test_a_new_site",
    r"clusterqual init": "tests/unit/test_init.py::test_all_files_are_written",
    r"clusterqual import log train.log --pattern 'step .* loss .* ms' --tokens-per-step 4096":
        "tests/examples/test_own_job_page.py::test_its_commands_show_what_the_page_shows",
    r"clusterqual import probe probe":
        "tests/examples/test_own_job_page.py::test_its_commands_show_what_the_page_shows",
    r"(CLUSTERQUAL_PROBE=probe )?torchrun --nproc-per-node 2 train.py --folder .*":
        "tests/examples/test_own_job_page.py::test_its_commands_show_what_the_page_shows",
    r"CLUSTERQUAL_PROBE=/shared/run-17 torchrun ... train.py":
        "tests/unit/test_import_probe.py::test_the_script_of_the_page_is_killed_and_goes_on",
    r"pip install pytest-clusterqual": "tests/unit/test_init.py::test_a_wheel_brings_every_room_and_the_suite",
    r'eval "\$\(clusterqual completion bash\)".*': "tests/unit/test_completion.py::test_bash_offers_what_can_be_typed",
    r"salloc --nodes=4 .*": "tests/lab/test_suite_slurm.py::test_a_part_of_the_suite_passes",
    r"sbatch .*": "tests/lab/test_batch_job.py::test_the_order_to_end_reaches_pytest",
}  # fmt: skip
# Every option that a page gives to pytest, and a test that runs the suite with it on ranks or on a recorded run.
OPTIONS = {
    "--nodes": "tests/plugin/test_run.py::test_all_four_criteria_pass",
    "--lf": "tests/unit/test_partial_runs.py::test_the_last_failed_ones_are_those_that_did_not_pass_nor_run",
    "-k": "tests/lab/test_suite_ssh.py::test_a_part_of_the_suite_passes",
    "-m": "tests/unit/test_partial_runs.py::test_criteria_are_selected_by_marker_and_name",
    "-n": "tests/plugin/test_xdist.py::test_the_verdicts_are_the_same",
    "--qual-again": "tests/unit/test_partial_runs.py::test_a_repaired_test_is_measured_again",
    "--qual-baseline": "tests/plugin/test_replay.py::test_a_run_is_held_against_a_baseline",
    "--qual-config": "tests/plugin/test_run.py::test_judge_again_under_another_file",
    "--qual-hosts": "tests/lab/test_suite_ssh.py::test_the_whole_suite_passes_on_two_hosts",
    "--qual-keep-going": "tests/plugin/test_run.py::test_a_number_without_a_requirement_is_no_verdict",
    "--qual-launcher": "tests/lab/test_suite_slurm.py::test_the_whole_suite_passes_on_two_hosts",
    "--qual-replay": "tests/plugin/test_replay.py::test_a_replay_comes_to_the_same_verdicts_and_starts_nothing",
    "--qual-report": "tests/plugin/test_replay.py::test_its_page_goes_where_it_is_asked_for_and_says_what_it_is",
    "--qual-resume": "tests/plugin/test_resume.py::test_what_was_measured_is_not_measured_again",
    "--qual-run-dir": "tests/lab/test_suite_ssh.py::test_the_whole_suite_passes_on_two_hosts",
}
# Pages whose commands are typed where there is no project file.
BARE = ("docs/points.md",)
_FILES = re.compile(r"[\w./-]*\*[\w./-]*")  # a pattern that stands for several
# What a command exits with, where that is not 0.
EXITS = {"clusterqual judge run --config stricter.yaml": 1}


def told(command: Command) -> str:
    """The test that runs a command elsewhere, or nothing."""
    typed = command.text.partition("  #")[0].strip()
    return next((test for pattern, test in ELSEWHERE.items() if re.fullmatch(pattern, typed)), "")


def runs_here(command: Command) -> bool:
    return command.program == "clusterqual" and not (command.shown or command.script) and not told(command)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    make_site(folder)
    if shutil.which("ssh-keygen"):
        key_of(folder)
    return folder


@pytest.fixture
def site(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder for one test, which is where it runs."""
    folder = tmp_path / "site"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")  # as in the batch job of the page
    for name in ("CONFIG", "HOSTS", "LAUNCHER", "NODES", "NPROC_PER_NODE", "RUN_DIR"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    return folder


@pytest.mark.parametrize("page", NAMES)
def test_every_command_of_a_page_is_known(page: str) -> None:
    for command in commands(page):
        words = command.words
        known = told(command) or command.program in ("clusterqual", "pytest", "make", "python")
        assert known, f"{command.where}: {command.text}: add it to ELSEWHERE, with the test that runs it"
        if command.program == "clusterqual":
            parsed(command)
        if command.program == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{target}:", text_of("Makefile"), re.MULTILINE) for target in targets), command
        if command.program == "python":
            program = text_of(words[1])
            assert all(f'"{word}"' in program for word in words[2:] if word.startswith("-")), command


def parsed(command: Command) -> None:
    """In a sentence a command may be named without its arguments, never with an option that does not exist."""
    words = [each for word in command.words[1:] for each in ((word, word) if _FILES.fullmatch(word) else (word,))]
    try:
        _parser().parse_args(words)
    except SystemExit:
        bare = command.shown and not any(word.startswith("-") for word in words)
        assert bare, f"{command.where}: {command.text}: is refused"
        with pytest.raises(SystemExit) as left:
            _parser().parse_args([*words, "--help"])
        assert left.value.code == 0, f"{command.where}: {command.text}: there is no such command"


@pytest.mark.parametrize("page", [page for page in NAMES if any(map(runs_here, commands(page)))])
def test_the_commands_of_a_page_do_what_it_says(page: str, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if whole := whole_file(page):
        (site / "clusterqual.yaml").write_text(whole)
    if page in BARE:
        (site / "clusterqual.yaml").unlink()
        shutil.rmtree(site / "qualification")
    for command in filter(runs_here, commands(page)):
        words = arguments(command)
        for option in {"--key", "--signers"} & set(words) if not (site / ".ssh").exists() else ():
            words = words[: words.index(option)]  # there is no ssh-keygen here
        for option in {"--extract", "--out"} & set(words):  # what is made is not there before
            shutil.rmtree(words[words.index(option) + 1], ignore_errors=True)
        code = main(words)
        typed = command.text.partition("  #")[0].strip()
        assert code == EXITS.get(typed, 0), f"{command.where}: {command.text}: {capsys.readouterr()}"


def arguments(command: Command) -> list[str]:
    """With what a shell does to them; what the pages call /shared is here."""
    found: list[str] = []
    for word in command.words[1:]:
        files = sorted(map(str, Path().glob(word))) if _FILES.fullmatch(word) else []
        found += files or [word.removeprefix("/shared/")]
    return found


def pytest_commands() -> dict[str, Command]:
    found = [command for page in NAMES for command in commands(page) if command.program == "pytest"]
    return {" ".join(command.words[1:]): command for command in found}


@pytest.mark.parametrize("command", pytest_commands().values(), ids=pytest_commands())
def test_the_runs_of_the_pages_are_collected(command: Command, pytester: pytest.Pytester, site: Path) -> None:
    """Options, project file and number of nodes are accepted by pytest itself, which starts nothing yet."""
    options = [word.partition("=")[0] for word in command.words[1:] if re.match(r"-[a-z-]", word)]
    assert set(options) <= set(OPTIONS), f"{command.where}: add the option to OPTIONS, with the test that uses it"
    without = ("-p", "no:hypothesispytest")  # which would be loaded anew each time
    done = pytester.inline_run(*arguments(command), "--collect-only", "-q", *without)
    assert done.ret == 0, f"{command.where}: {command.text}"


def test_every_subcommand_and_option_is_on_some_page() -> None:
    every = "\n".join(map(text_of, NAMES))
    wanted = set(re.findall(r'"(--[a-z-]+)"', text_of("pytest_clusterqual/plugin.py")))
    for parser in _with_subparsers(_parser()):
        wanted |= {parser.prog, *(word for action in parser._actions for word in action.option_strings)}
    missing = [word for word in wanted if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", every)]
    assert sorted(missing) == ["--help", "--version", "-h"]


def test_the_tests_that_are_named_exist_and_the_tables_hold_nothing_else() -> None:
    for name in (*ELSEWHERE.values(), *OPTIONS.values()):
        file, _, function = name.partition("::")
        assert re.search(rf"^def {function}\(", text_of(file), re.MULTILINE), name
    every = [command for page in NAMES for command in commands(page)]
    unused = [p for p in ELSEWHERE if not any(re.fullmatch(p, c.text.partition("  #")[0].strip()) for c in every)]
    assert not unused
    given = {word for command in every if command.program == "pytest" for word in command.words}
    assert not set(OPTIONS) - given
    assert {"".join(c.text.partition("  #")[:1]).strip() for c in every if runs_here(c)} >= set(EXITS)
