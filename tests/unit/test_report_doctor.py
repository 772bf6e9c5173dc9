"""The doctor's table: a row a host, marks where something is wrong, and a line a problem below."""

from __future__ import annotations

import math
import re

import pytest
from hosts_made import Hosts

from pytest_clusterqual.read.hosts import fold_hosts
from pytest_clusterqual.report.doctor import doctor_report


def report(hosts: Hosts, *, width: int = 140, color: bool = False) -> str:
    return doctor_report(
        hosts.asked, hosts.checks, hosts.hardware, hosts.problems(), fold=fold_hosts, width=width, color=color
    )


def row(text: str, host: str) -> list[str]:
    (line,) = [line for line in text.partition("\n\n")[0].splitlines() if re.match(rf"!?{host}\s", line)]
    return re.split(r"\s{2,}", line)


def test_a_healthy_cluster() -> None:
    lines = report(Hosts()).splitlines()
    assert len(lines) == 7  # headings, four hosts, a blank line, the conclusion
    assert re.split(r"\s{2,}", lines[0]) == [
        "host", "python", "torch", "package", "clock", "shm free", "files", "disk free", "DNS", "cpus", "gpus",
        "driver",
    ]  # fmt: skip
    assert re.split(r"\s{2,}", lines[1]) == [
        "node1", "3.11.7", "2.13.0+cu126", "0.1.0", "+0.02 s", "60 GiB", "65536", "50 GiB", "0.01 s", "96", "8",
        "550.90.07",
    ]  # fmt: skip
    assert lines[-1] == "4 of 4 hosts can run ranks"


def test_what_is_wrong_is_marked_in_its_cell_and_told_below() -> None:
    text = report(Hosts().change("node2", package="0.0.9", clock_offset=-42.0).change("node3", package=None))
    assert row(text, "node2")[3:5] == ["!0.0.9", "!-42.00 s"]
    assert row(text, "node3")[3:5] == ["!missing", "+0.02 s"]
    assert row(text, "node4")[3:5] == ["0.1.0", "+0.02 s"]
    assert text.count("!") == 3
    assert re.search(r"^node2 +/opt/python3 has pytest-clusterqual 0\.0\.9, here it is 0\.1\.0: install", text, re.M)
    assert text.splitlines()[-1] == "2 of 4 hosts can run ranks"


def test_hosts_of_one_problem_are_folded() -> None:
    text = report(Hosts().change("node1", "node2", "node4", open_files=1024.0))
    assert re.search(r"^node\[1-2,4\] +only 1024 open files are allowed: allow 4096", text, re.M)


def test_a_host_that_did_not_answer_keeps_its_row_and_hides_no_other() -> None:
    text = report(Hosts().silence("node2", "connect to host node2 port 22: Connection timed out"))
    assert row(text, "node2") == ["!node2", *["-"] * 11]
    assert row(text, "node3")[2] == "2.13.0+cu126"
    assert [row(text, f"node{i}")[0].lstrip("!") for i in range(1, 5)] == [f"node{i}" for i in range(1, 5)]
    assert re.search(r"^node2 +connect to host node2 port 22: Connection timed out$", text, re.M)


def test_a_warning_says_so_and_takes_no_host_away() -> None:
    text = report(Hosts().change("node2", clock_offset=3.0))
    assert row(text, "node2")[4] == "!+3.00 s"
    assert re.search(r"^node2 +warning: the clock is more than 1 s away", text, re.M)
    assert text.splitlines()[-1] == "4 of 4 hosts can run ranks"


def test_a_cell_with_a_problem_and_a_warning_has_the_colour_of_the_problem() -> None:
    hosts = Hosts().change("node2", torch="2.12.1+cpu")
    text = report(hosts, color=True)
    assert [p.warning for p in hosts.problems()] == [False, True]
    assert "\x1b[1;31m2.12.1+cpu" in text and "\x1b[33m2.12.1+cpu" not in text
    assert "!" not in text


def test_colour_stands_for_the_mark() -> None:
    text = report(Hosts().change("node2", clock_offset=3.0).change("node3", torch=None), color=True)
    assert "\x1b[33m+3.00 s" in text and "\x1b[1;31mmissing" in text
    assert "\x1b[33mnode2" in text and "\x1b[1;31mnode3" in text
    assert "\x1b" not in report(Hosts().change("node2", clock_offset=3.0))


def test_no_limit_at_all() -> None:
    assert row(report(Hosts().change("node2", open_files=math.inf)), "node2")[6] == "unlimited"


def test_what_is_not_known() -> None:
    nothing = dict.fromkeys((
        "python", "torch", "package", "clock_offset", "shm", "open_files", "temp", "cwd", "reverse_dns", "cpus",
    ))  # fmt: skip
    hosts = Hosts().change("node2", **nothing).rebuild("node2", driver=None)
    assert row(report(hosts), "node2") == ["node2", *["?"] * 9, "8", "-"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    hosts = Hosts().change("node2", package="0.0.9").silence("node3", "word " * 40)
    assert max(map(len, report(hosts, width=width).splitlines())) <= width


def test_what_hosts_say_cannot_steer_the_terminal() -> None:
    hosts = Hosts().change("node1", torch="2.13\x1b[2J").silence("node2", "\x1b]0;owned\x07 [bold]said[/bold]\nmore")
    text = report(hosts, color=True)
    assert "\x1b[2J" not in text and "\x1b]" not in text and "\x07" not in text
    assert "[bold]said[/bold] more" in text
