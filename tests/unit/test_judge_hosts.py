"""Hosts before anything is started: each thing that is wrong is told once, with those it is wrong on."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hosts_made import Hosts, space

from pytest_clusterqual.judge.nodes import hosts as judged
from pytest_clusterqual.model.hardware import Gpu

BUS_ONLY = tuple(Gpu(index=index, pci=f"0000:0{index}:00.0") for index in range(8))

# what is changed on node3, the fact that is wrong, what is said of it, and a part of the remedy
WRONG: list[tuple[dict[str, Any], str, str, str]] = [
    ({"python": "3.9.18"}, "python", "/opt/python3 is Python 3.9.18, older than 3.10", "--python"),
    ({"torch": None}, "torch", "/opt/python3 has no torch", "install torch there"),
    ({"package": None}, "package", "/opt/python3 has no pytest-clusterqual", "install pytest-clusterqual 0.1.0"),
    ({"package": "0.0.9"}, "package", "/opt/python3 has pytest-clusterqual 0.0.9, here it is 0.1.0",
     "install pytest-clusterqual 0.1.0"),
    ({"torch": "2.12.1"}, "torch", "torch 2.12.1, most have 2.13.0+cu126", "same version"),
    ({"python": "3.12.1"}, "python", "Python 3.12.1, most have 3.11.7", "same version"),
    ({"clock_offset": -20.0}, "clock", "the clock is more than 10 s away from this machine's", "world of one"),
    ({"clock_offset": 10.5}, "clock", "the clock is more than 10 s away from this machine's", "chrony"),
    ({"shm": space("/dev/shm", 0.06, 0.0625)}, "shm", "/dev/shm is smaller than 1 GiB", "--shm-size"),
    ({"shm": space("/dev/shm", 6, 64)}, "shm", "/dev/shm is nearly full", "dead jobs"),
    ({"open_files": 1024.0}, "files", "only 1024 open files are allowed", "4096"),
    ({"temp": space("/tmp", 4.9)}, "disk", "less than 5 GiB are free in /tmp", "TMPDIR"),
    ({"cwd": space("/home/ada", 0)}, "disk", "less than 5 GiB are free in /home/ada", "free some"),
    ({"reverse_dns": 2.0}, "dns", "a reverse lookup of the host's own address takes seconds", "/etc/nsswitch.conf"),
    ({"host": "node1.example"}, "host", "answers as node1.example, which is another of the hosts asked", "/etc/hosts"),
    ({"unread": ("temp: no answer within 10 s",)}, "host", "cannot tell temp: no answer within 10 s", "hangs"),
]  # fmt: skip


def test_healthy_hosts_have_no_problem() -> None:
    assert Hosts().problems() == ()


@pytest.mark.parametrize(("changes", "fact", "what", "remedy"), WRONG, ids=[what for _, _, what, _ in WRONG])
def test_what_keeps_ranks_from_running(changes: dict[str, Any], fact: str, what: str, remedy: str) -> None:
    problems = [p for p in Hosts().change("node3", **changes).problems() if p.what == what]
    assert [(p.fact, p.nodes, p.warning) for p in problems] == [(fact, ("node3",), False)]
    assert remedy in problems[0].remedy


@pytest.mark.parametrize(
    "changes",
    [
        {"clock_offset": -0.9}, {"clock_offset": None}, {"clock_offset": 1.4, "clock_error": 0.5},
        {"shm": space("/dev/shm", 0.11, 1)}, {"shm": None}, {"open_files": 4096.0}, {"open_files": math.inf},
        {"temp": space("/tmp", 5)}, {"temp": None, "cwd": None}, {"reverse_dns": 1.9}, {"reverse_dns": None},
        {"host": "node3.example"}, {"host": "ip-10-0-0-3"}, {"boot": None}, {"cpus": None}, {"executable": None},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_problem(changes: dict[str, Any]) -> None:
    assert Hosts().change("node3", **changes).problems() == ()


def test_a_fault_that_several_have_is_told_once() -> None:
    (problem,) = Hosts().change("node2", "node4", package="0.0.9").problems()
    assert problem.nodes == ("node2", "node4")


def test_a_clock_that_is_a_little_off_is_a_warning() -> None:
    (problem,) = Hosts().change("node3", clock_offset=-9.0).problems()
    assert (problem.fact, problem.nodes, problem.warning) == ("clock", ("node3",), True)
    assert problem.what == "the clock is more than 1 s away from this machine's"


def test_the_world_of_one_is_told_of_before_torch_meets_it() -> None:
    assert judged.CLOCK_LIMIT < 15  # seconds, the age at which torch takes a heartbeat for dead


def test_without_a_majority_all_are_named() -> None:
    problems = Hosts(("node1", "node2")).change("node2", torch="2.12.1").problems()
    assert [(p.nodes, p.what) for p in problems] == [
        (("node1",), "torch 2.13.0+cu126, others have another"), (("node2",), "torch 2.12.1, others have another"),
    ]  # fmt: skip


def test_a_host_without_torch_is_not_odd_as_well() -> None:
    assert len(Hosts().change("node3", torch=None).problems()) == 1


@pytest.mark.parametrize("alias", ["10.0.0.1", "login"])
def test_one_machine_under_two_names(alias: str) -> None:
    hosts = Hosts(("node1", alias, "node3")).change(alias, host="node1", boot="boot of node1")
    (problem,) = hosts.problems()
    assert problem.nodes == ("node1", alias)
    assert problem.what == "one and the same machine, node1, whose devices would be used twice"


@pytest.mark.parametrize("changes", [{"host": "ip-10-0-0-1"}, {"boot": "boot of node1"}])
def test_a_shared_host_name_or_boot_alone_is_not_one_machine(changes: dict[str, Any]) -> None:
    assert Hosts().change("node1", "node2", **changes).problems() == ()


def test_exchanged_names_are_told_of_both() -> None:
    hosts = Hosts().change("node1", host="node2", boot="boot of node2")
    problems = hosts.change("node2", host="node1", boot="boot of node1").problems()
    assert [p.nodes for p in problems] == [("node1",), ("node2",)]


def test_silent_hosts_share_a_line_if_only_their_names_differ() -> None:
    hosts = Hosts(("gpu1", "gpu11", "gpu2", "gpu3"))
    for name in ("gpu1", "gpu11"):
        hosts.silence(name, f"connect to host {name} by way of gpu12: timed out: check that it is up")
    problems = hosts.silence("gpu2", "Permission denied (publickey): give this user a key").problems()
    assert [(p.fact, p.nodes, p.what) for p in problems] == [
        ("host", ("gpu1", "gpu11"), "connect to host * by way of gpu12: timed out: check that it is up"),
        ("host", ("gpu2",), "Permission denied (publickey): give this user a key"),
    ]  # fmt: skip


def test_one_silent_host_is_named_in_its_reason() -> None:
    (problem,) = Hosts().silence("node2", "connect to host node2 port 22: No route to host").problems()
    assert problem.what == "connect to host node2 port 22: No route to host"


def test_a_silent_host_may_be_the_one_that_another_answers_as() -> None:
    hosts = Hosts().silence("node1", "no answer within 30 s").change("node3", host="node1")
    assert [p.what for p in hosts.problems() if p.nodes == ("node3",)] == [
        "answers as node1, which is another of the hosts asked"
    ]


def test_gpus_without_a_driver() -> None:
    hosts = Hosts().rebuild("node3", gpus=BUS_ONLY, driver=None)
    (problem,) = hosts.problems()
    assert (problem.fact, problem.nodes, problem.warning) == ("driver", ("node3",), False)


def test_no_gpu_where_others_have_some() -> None:
    (problem,) = Hosts().rebuild("node3", gpus=(), driver=None).problems()
    assert (problem.fact, problem.nodes, problem.warning) == ("gpus", ("node3",), False)


@pytest.mark.parametrize(
    ("changes", "fact", "what"),
    [
        ({"gpus": BUS_ONLY[:7]}, "gpus", "a number of GPUs of 7, most have 8"),
        ({"driver": "535.54.03"}, "driver", "driver 535.54.03, most have 550.90.07"),
        ({"unread": ("nvidia-smi -q -x: exit code 9",)}, "gpus", "nvidia-smi -q -x: exit code 9"),
    ],
)
def test_odd_devices_are_a_warning(changes: dict[str, Any], fact: str, what: str) -> None:
    (problem,) = Hosts().rebuild("node3", **changes).problems()
    assert (problem.fact, problem.what, problem.nodes, problem.warning) == (fact, what, ("node3",), True)


def test_fewer_cpus_and_torch_without_gpus_are_warnings() -> None:
    hosts = Hosts().change("node3", cpus=48).change(*Hosts().asked, torch="2.13.0+cpu")
    assert [(p.fact, p.nodes, p.warning) for p in hosts.problems()] == [
        ("torch", hosts.asked, True), ("cpus", ("node3",), True),
    ]  # fmt: skip


def test_what_the_host_could_not_tell_is_told_once() -> None:
    reason = "nvidia_smi: no answer within 10 s"
    hosts = Hosts().change("node3", unread=(reason,)).rebuild("node3", unread=(reason,))
    assert [p.what for p in hosts.problems()] == [f"cannot tell {reason}"]


def test_versions_that_could_not_be_told_are_not_missing() -> None:
    hosts = Hosts().change("node3", python=None, torch=None, package=None, unread=("versions: no answer within 10 s",))
    assert [p.what for p in hosts.problems()] == ["cannot tell versions: no answer within 10 s"]


def test_warnings_come_last() -> None:
    hosts = Hosts().change("node1", clock_offset=5.0).change("node4", open_files=1024.0)
    assert [p.warning for p in hosts.problems()] == [False, True]
