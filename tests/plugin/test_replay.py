"""A recorded run is judged again by the same tests, without nodes, and comes to the same verdicts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sites import Run, Site, make_site

pytestmark = pytest.mark.slow

OWN = """
import pytest

def test_own(cluster):
    cluster.run("jobs:none")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site whose run of memory is recorded."""
    site = make_site(tmp_path_factory.mktemp("recorded"))
    site.configure({"fabric": None, "full_run": None})
    first = site.run("-k", "memory", "--qual-run-dir=first")
    assert first.code == 0, first.out
    return site


@pytest.fixture
def site(recorded: Site, tmp_path: Path) -> Site:
    """The recorded run, on a machine of its own."""
    shutil.copytree(recorded.path, tmp_path, dirs_exist_ok=True)
    return Site(tmp_path)


def replayed(site: Site, tests: str, *options: str) -> Run:
    return site.run("-k", tests, "--qual-keep-going", "--qual-replay=first", *options, nodes=None)


def test_a_replay_comes_to_the_same_verdicts_and_starts_nothing(site: Site) -> None:
    (site.path / "test_own.py").write_text(OWN)
    again = replayed(site, "memory or own", "-rs")
    assert again.code == 0, again.out
    assert "a replay has no nodes" in again.out
    before = [json.loads(line) for line in (site.path / "first" / "records.jsonl").read_text().splitlines()]
    assert [(record["test"], record["judgement"]) for record in again.records] == [
        (record["test"], record["judgement"]) for record in before
    ]
    environment = json.loads((again.folder / "environment.json").read_text())
    assert environment["replay_of"] == "first"
    assert environment["versions"] == before[0]["conditions"]["versions"]
    assert not list((again.folder / "ranks").iterdir())


def test_its_page_goes_where_it_is_asked_for_and_says_what_it_is(site: Site) -> None:
    again = replayed(site, "memory", "--qual-report=pages/rack.html")
    page = (site.path / "pages" / "rack.html").read_text()
    assert "Judged again from the run first: nothing was measured." in page
    assert "memory of each rank at its peak" in page
    assert "page pages/rack.html" in " ".join(again.out.split())
    assert not (again.folder / "report.html").exists()


def test_a_replay_under_a_stricter_file_turns_red(site: Site) -> None:
    site.configure({"fabric": None, "full_run": None, "memory": {"require": [{"peak": "<= 1 KiB"}]}})
    again = replayed(site, "memory")
    assert again.code == 1
    assert again.verdicts("memory")[0] == "FAIL"


def test_what_was_not_measured_is_an_error_and_tells_why(site: Site) -> None:
    site.configure({"fabric": None})
    again = replayed(site, "full_run")
    assert again.code == 1
    assert "first has no measurement of this test" in again.out


def test_a_run_is_held_against_a_baseline(site: Site) -> None:
    assert replayed(site, "memory", "--qual-baseline=first").code == 0
    shutil.copytree(site.path / "first", site.path / "better")
    records = [json.loads(line) for line in (site.path / "better" / "records.jsonl").read_text().splitlines()]
    for record in records:
        if record["judgement"]["quantity"] == "peak":
            record["judgement"]["value"] /= 2
    (site.path / "better" / "records.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    worse = replayed(site, "memory", "--qual-baseline=better", "--qual-run-dir=other")
    assert worse.code == 1
    assert "(baseline first: " in worse.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--nodes=3",), "--nodes: got 3, the run that is replayed had 2; leave it out"),
        (("--qual-resume=first",), "--qual-replay measures nothing: leave out --qual-resume"),
        (("--qual-hosts=a",), "leave out --qual-hosts"),
        (("-n2",), "a replay takes seconds: leave out -n"),
    ],
)
def test_a_replay_asked_for_wrongly_is_refused(site: Site, options: tuple[str, ...], words: str) -> None:
    done = site.run("-k", "memory", "--qual-replay=first", *options, nodes=None)
    assert done.code == 4
    assert words in done.out
