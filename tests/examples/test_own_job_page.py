"""docs/own-job.md, followed step by step in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import EXAMPLES, blocks, labels, shell

PAGE = (EXAMPLES.parent / "docs" / "own-job.md").read_text(encoding="utf-8")
SCRIPT = (EXAMPLES / "plain" / "train.py").read_text(encoding="utf-8")
# It is installed where this runs; test_verdicts.py asks for the verdicts, and compares them with the page.
ELSEWHERE = ["pip install pytest-clusterqual", "pytest qualification/ --nodes 2 --qual-config clusterqual.yaml"]


def commands() -> list[str]:
    return re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), flags=re.MULTILINE)


def test_the_lines_of_the_page_are_those_of_the_script() -> None:
    snippet, script = blocks(PAGE, "python")
    assert script == SCRIPT
    at = 0
    for line in snippet.splitlines():
        if line.strip() != "...":
            at = script.index(line + "\n", at) + len(line)
    assert len(re.findall(r"\bprobe\b|Probe", script[script.index("\nimport") :])) == len(
        re.findall(r"\bprobe\b|Probe", snippet)
    ), "no line of the script is left out"


def test_its_project_file_is_that_of_the_example() -> None:
    assert blocks(PAGE, "yaml") == [(EXAMPLES / "plain" / "clusterqual.yaml").read_text()]


def test_its_commands_show_what_the_page_shows(tmp_path: Path) -> None:
    """From the script that a reader copies out of it to the suite, whose verdicts take longer than a test may."""
    (tmp_path / "train.py").write_text(blocks(PAGE, "python")[1])
    told = commands()
    assert [command for command in told if command in ELSEWHERE] == ELSEWHERE
    out = [shell(command, tmp_path) for command in told if command not in ELSEWHERE]
    log, probe, _verdicts = blocks(PAGE, "text")
    assert [labels(log) - labels(out[1]), labels(probe) - labels(out[3]) - {"warm-up"}] == [set(), set()]
    assert "step 40 loss" in (tmp_path / "train.log").read_text()
    assert (tmp_path / "qualification" / "test_full_run.py").is_file()
