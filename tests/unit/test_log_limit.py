"""An expression that takes for ever is ended and named, whatever the check of expressions lets through."""

from __future__ import annotations

import itertools
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from logs_made import read, steps_of

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read import log_limit
from pytest_clusterqual.read.log_limit import Limited


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "BUDGET", 0.2)


@pytest.mark.parametrize("slow", [r".*a.*a.*a.*x", r"[a-z]+\w+[a-z]*\d?x"])
def test_an_expression_that_takes_for_ever_is_named(tmp_path: Path, slow: str) -> None:
    text = "step 1 took 0.5 s\n" + "a" * 3900 + "\n"
    with pytest.raises(ReadError) as error:
        read(tmp_path, text, rf"{slow}|step (?P<step>\d+)")
    assert str(error.value).startswith(f"--pattern: {tmp_path}/train.log:2: to look for ")
    assert slow.replace("\\", "\\\\") in str(error.value)


def test_many_slow_lines_are_ended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_limit, "_SLOW", 0.0)
    limited, text = Limited(re.compile("a*a*a*b")), "a" * 100
    while _seconds(text) < 0.01:
        text += text[: len(text) // 3]
    with pytest.raises(TimeoutError):
        all(limited.search(line) is None for line in itertools.repeat(text, 200))


def _seconds(text: str) -> float:
    began = time.process_time()
    re.search("a*a*a*b", text)
    return time.process_time() - began


def test_quick_lines_take_nothing_of_it(tmp_path: Path) -> None:
    log = read(tmp_path, "".join(f"step {n} of many\n" for n in range(2000)), r"step (?P<step>\d+) .*y")
    assert len(steps_of(log)) == 2000


def test_nothing_is_left_behind() -> None:
    def mine(*_: object) -> None:
        raise AssertionError

    before = signal.signal(signal.SIGVTALRM, mine)
    try:
        limited = Limited(re.compile(".*a.*a.*a.*x"))
        with pytest.raises(TimeoutError):
            limited.search("a" * 3900)
        assert limited.search("aaax") is not None
        assert signal.getsignal(signal.SIGVTALRM) is mine
        assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_another_thread_has_no_limit() -> None:
    with ThreadPoolExecutor() as pool:
        found = pool.submit(Limited(re.compile("a(b)")).search, "ab").result()
    assert found is not None
    assert found[1] == "b"
