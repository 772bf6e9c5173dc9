"""A recorded run is judged again by the same tests, without nodes, and comes to the same verdicts."""

from __future__ import annotations

import json

import pytest
from sites import SMALL, Site

pytestmark = pytest.mark.slow

OWN = """
import pytest

def test_own(cluster):
    cluster.run("jobs:none")
"""


@pytest.fixture
def recorded(site: Site) -> Site:
    """A site whose run of memory and scaling is recorded, without its data and jobs."""
    site.configure({"fabric": None, "full_run": None})
    first = site.run("-k", "memory or scaling", "--qual-run-dir=first")
    assert first.code == 0, first.out
    return site


def test_a_replay_comes_to_the_same_verdicts_and_starts_nothing(recorded: Site) -> None:
    (recorded.path / "test_own.py").write_text(OWN)
    again = recorded.run("-k", "memory or scaling or own", "--qual-replay=first", nodes=None)
    assert again.code == 0, again.out
    before = [json.loads(line) for line in (recorded.path / "first" / "records.jsonl").read_text().splitlines()]
    kept = [(record["test"], record["judgement"]) for record in before]
    assert [(record["test"], record["judgement"]) for record in again.records] == kept
    environment = json.loads((again.folder / "environment.json").read_text())
    assert environment["replay_of"] == "first"
    assert not list((again.folder / "ranks").iterdir())
    assert (
        "a replay has no nodes"
        in recorded.run("-k", "own", "--qual-replay=first", "--qual-run-dir=other", "-rs", nodes=None).out
    )


def test_a_replay_under_a_stricter_file_turns_red(recorded: Site) -> None:
    recorded.configure({"fabric": None, "full_run": None, "memory": {"require": [{"peak": "<= 1 KiB"}]}})
    again = recorded.run("-k", "memory", "--qual-replay=first", nodes=None)
    assert again.code == 1
    assert again.verdicts("memory")[0] == "FAIL"


def test_what_was_not_measured_is_an_error_and_tells_why(recorded: Site) -> None:
    recorded.configure({"fabric": None, "full_run": SMALL["full_run"]})
    again = recorded.run("--qual-keep-going", "-k", "full_run", "--qual-replay=first", nodes=None)
    assert again.code == 1
    assert "first has no measurement of this test" in again.out


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
    folder = site.path / "first"
    folder.mkdir()
    environment = {"schema": 1, "run": "first", "simulated": True, "nodes": 2, "nproc_per_node": 1}
    (folder / "environment.json").write_text(json.dumps(environment))
    done = site.run("-k", "memory", "--qual-replay=first", *options, nodes=None)
    assert done.code == 4
    assert words in done.out
