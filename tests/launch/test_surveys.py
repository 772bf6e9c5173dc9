"""Asking several nodes side by side: whatever one of them does, the others are heard."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest
from processes import ours, until

from pytest_clusterqual.launch import surveys
from pytest_clusterqual.launch.plan import NodePlan
from pytest_clusterqual.launch.ssh import SshLauncher
from pytest_clusterqual.launch.surveys import Survey, survey
from pytest_clusterqual.read.survey import read_host_check

LARGE = "import json, sys; print(json.dumps({'text': 'x' * 1_000_000}), flush=True); sys.stdin.read()"
BEHIND = """
import json, sys, time
sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
print("Welcome!")
print("{}", flush=True)
for line in sys.stdin:
    print(json.dumps({"time": time.time() - 42}), flush=True)
"""


class Shells(SshLauncher):
    """Every node runs what its name says, here; the words for its complaints are ssh's."""

    def __init__(self, **what: Sequence[str]) -> None:
        super().__init__(list(what))
        self._what = what

    def command(self, node: NodePlan, program: Sequence[str], *, store: Any = None) -> list[str]:
        return list(self._what[node.name] or program)


def asked(timeout: float = 20.0, **what: Sequence[str]) -> dict[str, Survey]:
    launcher = Shells(**what)
    return survey(launcher, launcher.nodes(len(what), 1), timeout=timeout)


def over_after(answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to answer is over as soon as so many have, however long they take."""
    genuine, told = surveys._look, []

    def look(*about: Any, late: bool, timeout: float) -> Survey | None:
        answer = genuine(*about, late=len(told) >= answers, timeout=timeout)
        told.extend([answer] if answer else [])
        return answer

    monkeypatch.setattr(surveys, "_look", look)


def test_a_node_tells_what_it_is_and_its_time() -> None:
    answer = asked(this=())["this"]
    check = read_host_check(answer.text, node="this")
    assert (answer.problem, check.python) == ("", sys.version.split()[0])
    assert answer.clock_offset is not None and abs(answer.clock_offset) <= answer.clock_error + 0.001, "one clock"


def test_a_clock_that_is_behind_and_a_banner() -> None:
    answer = asked(behind=[sys.executable, "-c", BEHIND])["behind"]
    assert answer.text == "{}"
    assert answer.clock_offset is not None
    assert answer.clock_offset == pytest.approx(-42, abs=answer.clock_error + 0.001)


def test_a_node_that_hangs_keeps_back_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    over_after(3, monkeypatch)
    refused = ["sh", "-c", "echo 'Permission denied (publickey).' >&2; exit 255"]
    answers = asked(8.0, hung=["sleep", "1000"], refused=refused, large=[sys.executable, "-c", LARGE], last=())
    assert list(answers) == ["hung", "refused", "large", "last"]
    assert answers["hung"].problem.startswith("no answer within 8 s: it hangs or is overloaded")
    assert answers["refused"].problem.startswith("Permission denied (publickey): give this user a key")
    assert len(json.loads(answers["large"].text)["text"]) == 1_000_000
    assert json.loads(answers["last"].text)["host"]


def test_what_nobody_knows_is_told_as_it_was_said() -> None:
    answers = asked(odd=["sh", "-c", "echo first >&2; echo last >&2; exit 3"], mute=["true"])
    assert answers["odd"].problem == "last"
    assert answers["mute"].problem == "it ended without a word"


def test_who_is_refused_is_not_waited_for() -> None:
    began, limit = time.monotonic(), 600.0
    asked(limit, refused=["false"])
    assert time.monotonic() - began < limit


def test_many_are_asked_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "_AT_ONCE", 2)
    speak = [sys.executable, "-S", "-c", BEHIND]
    assert [answer.text for answer in asked(a=speak, b=speak, c=speak, d=speak, e=speak).values()] == ["{}"] * 5


def test_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"surveyed-{os.getpid()}"
    monkeypatch.setenv("CLUSTERQUAL_TEST", mark)
    answers = asked(timeout=1.0, hung=["sleep", "1000"], last=(), refused=["false"])
    assert answers["hung"].problem.startswith("no answer within 1 s")
    assert until(lambda: not ours(f"CLUSTERQUAL_TEST={mark}")), "what a survey runs is killed, and waited for by nobody"
