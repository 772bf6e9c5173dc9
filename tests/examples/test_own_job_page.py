"""docs/own-job.md, followed step by step in an empty folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from scripts import EXAMPLES, shell

PAGE = (EXAMPLES.parent / "docs" / "own-job.md").read_text(encoding="utf-8")
# Getting there, and what test_verdicts.py does at length.
ELSEWHERE = ("pip install pytest-clusterqual", "cp .../examples/plain/train.py .", "clusterqual init")
VERDICTS = "pytest qualification/ --nodes 2 --qual-config clusterqual.yaml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def commands() -> list[str]:
    return re.findall(r"^    (\S.*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), flags=re.MULTILINE)


def labels(text: str) -> set[str]:
    """What the lines of an output begin with."""
    return {re.split(r"\s{2,}", line)[0] for line in text.splitlines() if re.match(r"[a-z]", line)}


def test_the_lines_of_the_page_are_those_of_the_script() -> None:
    (snippet,) = blocks("python")
    script = (EXAMPLES / "plain" / "train.py").read_text()
    at = 0
    for line in snippet.splitlines():
        if line.strip() != "...":
            at = script.index(line + "\n", at) + len(line)
    assert len(re.findall(r"\bprobe\b|Probe", script[script.index("\nimport") :])) == len(
        re.findall(r"\bprobe\b|Probe", snippet)
    ), "no line of the script is left out"


def test_its_project_file_is_that_of_the_example() -> None:
    assert blocks("yaml") == [(EXAMPLES / "plain" / "clusterqual.yaml").read_text()]


def test_its_commands_show_what_the_page_shows(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "plain" / "train.py", tmp_path)
    told = commands()
    assert [command for command in told if command in (*ELSEWHERE, VERDICTS)] == [*ELSEWHERE, VERDICTS]
    out = [shell(command, tmp_path) for command in told if command not in (*ELSEWHERE, VERDICTS)]
    log, probe, _verdicts = blocks("text")
    assert [labels(log) - labels(out[1]), labels(probe) - labels(out[3]) - {"warm-up"}] == [set(), set()]
    assert "step 40 loss" in (tmp_path / "train.log").read_text()
