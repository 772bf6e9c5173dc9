"""The pipelines of docs/ci.md: they run what exists, keep what a run leaves, and lose it on no exit code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_clusterqual.recorded.reporting import JUNIT

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
GITLAB, GITHUB, JENKINS = re.findall(r"```(?:yaml|groovy)\n(.*?)```", PAGE, flags=re.DOTALL)
# What a declarative pipeline may hold (Jenkins' page on pipeline syntax): directives and sections by what they are in.
WITHIN = {
    "": {"pipeline"},
    "pipeline": {"agent", "environment", "options", "parameters", "post", "stages", "tools", "triggers"},
    "stages": {"stage"},
    "stage": {"agent", "environment", "options", "post", "steps", "tools", "when"},
    "post": {"always", "changed", "cleanup", "failure", "success", "unstable"},
}
REQUIRED = {"pipeline": {"agent", "stages"}, "stages": {"stage"}, "stage": {"steps"}}
Block = list[tuple[str, Any]]


def run_folder(command: str) -> str:
    (folder,) = re.findall(r"--qual-run-dir (\S+)", command)
    return str(folder)


def gitlab(text: str) -> Iterator[str]:
    """What is wrong with it."""
    job = yaml.safe_load(text)["qualify"]
    folder, kept = run_folder(job["script"][-1]), job["artifacts"]
    if kept.get("when") != "always":
        yield "artifacts of a run that failed are lost"
    if kept["paths"] != [f"{folder}/"] or kept["reports"]["junit"] != f"{folder}/{JUNIT}":
        yield "artifacts are looked for where none are"
    if not all(f" {folder} " in f"{line} " for line in job["after_script"]):
        yield "another run is exported"


def github(text: str) -> Iterator[str]:
    """What is wrong with it."""
    steps = yaml.safe_load(text)["jobs"]["qualify"]["steps"]
    number, folder = next((n, run_folder(s["run"])) for n, s in enumerate(steps) if "pytest" in s.get("run", ""))
    after = steps[number + 1 :]
    if not all(step.get("if") == "always()" for step in after):
        yield "a step after a run that failed is left out"
    if not any(step.get("with", {}).get("path") == f"{folder}/" for step in after):
        yield "the run folder is not kept"
    if any("run" in step and f" {folder} " not in step["run"] for step in after):
        yield "another run is exported"


def jenkins(text: str) -> Iterator[str]:
    """What is wrong with it."""
    found = tokens(text)
    if problem := unbalanced(found):
        yield problem
        return
    blocks, _ = block(found, 0)
    yield from misplaced("", blocks)
    words = re.findall(r"'([^']*)'", text)
    command = next((word for word in words if "pytest" in word), "")
    folder = run_folder(command)
    if not command.startswith(f"rm -rf {folder} && "):
        yield "the second build finds the folder of the first"
    if f"{folder}/{JUNIT}" not in words or f"{folder}/**" not in words:
        yield "artifacts are looked for where none are"
    if not re.search(r"always \{.*allowEmptyArchive: true.*junit .*allowEmptyResults: true", text, flags=re.DOTALL):
        yield "a run that was not started fails for another reason, or keeps nothing"


def tokens(text: str) -> list[str]:
    """Strings, brackets, quotes that begin no string, and what is between them."""
    found = re.findall(r"'[^'\n]*'|\"[^\"\n]*\"|[{}()\[\]'\"]|[^{}()\[\]'\"\n]+", text)
    return [token.strip() for token in found if token.strip()]


def unbalanced(found: list[str]) -> str:
    opened: list[str] = []
    for token in found:
        if token in ("'", '"'):
            return "a string does not end"
        if token in "{([":
            opened.append(token)
        elif token in "})]" and (not opened or f"{opened.pop()}{token}" not in ("{}", "()", "[]")):
            return f"a {token} closes nothing"
    return f"a {opened[-1]} is not closed" if opened else ""


def block(found: list[str], at: int) -> tuple[Block, int]:
    """Names and contents of the blocks up to the bracket that closes this one, and where that is."""
    blocks: Block = []
    name = ""
    while at < len(found) and found[at] != "}":
        if found[at] == "{":
            inner, at = block(found, at + 1)
            blocks.append((name, inner))
            name = ""
        elif not name and re.match(r"\w", found[at]):
            name = found[at].split()[0]
        at += 1
    return blocks, at


def misplaced(within: str, blocks: Block) -> Iterator[str]:
    names = [name for name, _ in blocks]
    if within in WITHIN:
        yield from (f"{name} in {within or 'the file'}" for name in names if name not in WITHIN[within])
        yield from (f"{within} has no {name}" for name in REQUIRED.get(within, set()) - set(names))
    for name, inner in blocks:
        yield from misplaced(name, inner)


def test_the_pipelines_of_the_page_keep_what_a_run_leaves() -> None:
    assert [*gitlab(GITLAB), *github(GITHUB), *jenkins(JENKINS)] == []


@pytest.mark.parametrize(
    ("check", "text", "there", "instead"),
    [
        (gitlab, GITLAB, "when: always", "when: on_success"),
        (gitlab, GITLAB, "junit: run/junit.xml", "junit: junit.xml"),
        (gitlab, GITLAB, "export run ", "export other "),
        (github, GITHUB, "- if: always()\n        uses", "- uses"),
        (github, GITHUB, "path: run/", "path: runs/"),
        (github, GITHUB, "export run ", "export other "),
        (jenkins, JENKINS, "    }\n  }\n}", "    }\n  }\n"),
        (jenkins, JENKINS, "    }\n  }\n}", "    }\n  }\n}\n}"),
        (jenkins, JENKINS, "('H 3", "(('H 3"),
        (jenkins, JENKINS, "'H 3 * * *')", "'H 3 * * *'))"),
        (jenkins, JENKINS, "'cluster'", "'cluster"),
        (jenkins, JENKINS, "  post {", "  steps {"),
        (jenkins, JENKINS, "agent { label 'cluster' }", ""),
        (jenkins, JENKINS, "rm -rf run && ", ""),
        (jenkins, JENKINS, "run/junit.xml", "junit.xml"),
        (jenkins, JENKINS, ", allowEmptyResults: true", ""),
        (jenkins, JENKINS, "always {", "success {"),
    ],
)  # fmt: skip
def test_a_broken_pipeline_is_noticed(check: Any, text: str, there: str, instead: str) -> None:
    assert there in text
    assert list(check(text.replace(there, instead, 1)))
