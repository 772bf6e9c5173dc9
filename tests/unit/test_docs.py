"""What the pages show is true: files load, links lead somewhere, names are the ones in the code."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from pytest_clusterqual import plugin
from pytest_clusterqual.cli import main
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.measurement import CRITERIA, KINDS
from pytest_clusterqual.model.record import Interval, Judgement, Record, Verdict
from pytest_clusterqual.model.requirement import QUANTITIES
from pytest_clusterqual.own import TrainingJob
from pytest_clusterqual.read.command import CommandSection
from pytest_clusterqual.read.project import load_project

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), flags=re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target


def test_every_page_is_linked_from_the_readme() -> None:
    for path in (ROOT / "docs").glob("*.md"):
        assert f"docs/{path.name}" in page("README.md"), path.name


def test_the_project_file_of_the_page_loads(tmp_path: Path) -> None:
    text, *_parts = blocks("docs/project-file.md", "yaml")
    (tmp_path / "clusterqual.yaml").write_text(text)
    project = load_project(tmp_path / "clusterqual.yaml", nodes=2, nproc_per_node=1)
    assert project.fabric is not None
    assert [r.of_expected for r in project.fabric.require] == [True, False]


def test_the_command_of_the_page_loads(tmp_path: Path) -> None:
    _whole, text, *_parts = blocks("docs/project-file.md", "yaml")
    (tmp_path / "train.py").touch()
    (tmp_path / "clusterqual.yaml").write_text(f"version: 1\nproject: page\n{text}memory: {{}}\nscaling: {{}}\n")
    job = load_project(tmp_path / "clusterqual.yaml", nodes=2, nproc_per_node=1).command
    assert job is not None
    assert job.folder == str(tmp_path)
    keys = {line.split(":")[0].strip() for line in text.splitlines()[1:]}
    assert keys == set(CommandSection.model_fields)


def test_the_estimates_of_the_page_are_those_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,), (shown,) = blocks("docs/buying.md", "yaml"), blocks("docs/buying.md", "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NODES", "NPROC_PER_NODE", "CONFIG"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    Path("clusterqual.yaml").write_text(text)
    assert main(["plan"]) == 0
    rest = capsys.readouterr().out
    for part in shown.strip().split("\n\n...\n\n"):
        assert part in rest
        rest = rest.partition(part)[2]


def test_the_suites_own_file_loads_for_several_worlds() -> None:
    for nodes, nproc in ((2, 1), (4, 1), (2, 2)):
        load_project(ROOT / "qualification" / "clusterqual.yaml", nodes=nodes, nproc_per_node=nproc)


def test_every_quantity_is_on_the_page() -> None:
    for criterion, quantities in QUANTITIES.items():
        (row,) = [line for line in page("docs/project-file.md").splitlines() if line.startswith(f"| {criterion} |")]
        assert set(re.findall(r"`(\w+)`", row.partition("; select")[0])) == set(quantities)


def test_the_example_of_an_own_test_is_the_one_in_the_suite() -> None:
    test, job = blocks("docs/own-tests.md", "python")
    assert test.strip() in page("qualification/test_own_example.py")
    assert [line.strip() for line in job.splitlines() if line.strip()] == [
        line.strip()
        for line in re.sub(r'"""[^"]*"""', "", page("qualification/own_jobs.py")).splitlines()
        if line.strip()
    ]
    assert blocks("README.md", "python")[0].strip() == test.strip()


def test_every_fixture_is_on_its_page() -> None:
    rows = re.findall(r"^\| (`.*?) \|", page("docs/own-tests.md"), flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {*plugin._FIXTURES, "case"}


def test_every_field_and_verdict_is_on_its_page() -> None:
    records = page("docs/records.md")
    for kind in (Record, Judgement):
        for field in dataclasses.fields(kind):
            assert field.name == "judgement" or re.search(rf"`(?:judgement)?\.?{field.name}`", records), field.name
    for field in dataclasses.fields(Conditions):
        assert f"`{field.name}`" in records, field.name
    kinds = typing.get_args(typing.get_type_hints(Interval)["kind"])
    of_measurements = {kind for kinds_of_one in KINDS.values() for kind in kinds_of_one} - set(CRITERIA)
    (of_criterion,) = re.findall(r"^\| .*`criterion` \|(.*)", records, flags=re.MULTILINE)
    assert {*CRITERIA, "own"} == set(re.findall(r"`(\w+)`", of_criterion))
    for name in (*kinds, *of_measurements):
        assert f"`{name}`" in records, name
    for verdict in Verdict:
        assert f"| {verdict} |" in page("docs/verdicts.md")


def test_every_page_is_in_the_site() -> None:
    import yaml

    def pages(entry: object) -> list[str]:
        if isinstance(entry, dict):
            entry = list(entry.values())
        return [page for each in entry for page in pages(each)] if isinstance(entry, list) else [str(entry)]

    found = pages(yaml.safe_load(page("mkdocs.yml"))["nav"])
    assert sorted(found) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_the_factory_of_the_page_is_the_one_of_the_examples() -> None:
    (code,), (text,) = blocks("docs/factory.md", "python"), blocks("docs/factory.md", "yaml")
    assert code.strip() in page("examples/factory/images.py")
    assert text.strip() in page("examples/factory/clusterqual.yaml")
    factory = load_project(ROOT / "examples" / "factory" / "clusterqual.yaml", nodes=2, nproc_per_node=1)
    assert factory.workload.factory is not None
    told = set(re.findall(r"^\| `(\w+)` \| ", page("docs/factory.md").partition("## ")[0], flags=re.MULTILINE))
    assert told == {field.name for field in dataclasses.fields(TrainingJob)}
