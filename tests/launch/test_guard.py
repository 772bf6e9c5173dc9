"""The guard by itself: what it tells, what it refuses, and that nothing outlives it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
from processes import ours, until

from pytest_clusterqual import __version__
from pytest_clusterqual.launch import network
from pytest_clusterqual.launch.network import NoRoute, interfaces, own_place, reachable, route_to
from pytest_clusterqual.launch.plan import GUARD, OWN_ADDRESS

STOPPED = (
    "import os, signal, subprocess, sys, time; "
    "rank = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], "
    "env={**os.environ, 'LOCAL_RANK': '3', 'X': ''}); os.kill(rank.pid, signal.SIGSTOP); time.sleep(1000)"
)


@pytest.fixture
def store() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@contextmanager
def guard(store: socket.socket, *agent: str, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """A guard whose agent is a Python program; leaving the block cuts its lifeline."""
    order = {
        "argv": [sys.executable, "-c", *agent], "environment": {"CLUSTERQUAL_TEST": f"guard-{os.getpid()}"},
        "cores": [], "store": store.getsockname(), "address": "127.0.0.1", "interface": "lo", "peers": [],
        "version": __version__, "heartbeat": 0.0, **changes,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, *GUARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait(20)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        assert ours(f"CLUSTERQUAL_TEST=guard-{os.getpid()}") == []


def event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next event of that name."""
    assert process.stdout is not None
    for line in process.stdout:
        data: dict[str, Any] = json.loads(line)
        if data["event"] == name:
            return data
    raise AssertionError(f"no event {name}")


def test_it_tells_who_it_is_and_how_its_agent_ended(store: socket.socket) -> None:
    with guard(store, "import sys; sys.exit(7)") as process:
        hello = event(process, "hello")
        assert (hello["host"], hello["version"]) == (socket.gethostname(), __version__)
        assert event(process, "began")["address"] == "127.0.0.1"
        ended = event(process, "ended")
        assert (ended["code"], ended["out_of_memory"]) == (7, False)


def test_the_agent_gets_the_nodes_own_address_and_interface(store: socket.socket) -> None:
    show = "import os, sys; print(sys.argv[1], os.environ['GLOO_SOCKET_IFNAME'], file=sys.stderr)"
    with guard(store, show, f"--local-addr={OWN_ADDRESS}", address=None, interface="lo") as process:
        event(process, "ended")
        assert process.stderr is not None
        assert process.stderr.readline() == "--local-addr=127.0.0.1 lo\n"


def test_another_version_is_refused(store: socket.socket) -> None:
    with guard(store, "pass", version="0.0.1") as process:
        reason = event(process, "failed")["reason"]
    assert f"has pytest-clusterqual {__version__}, the session 0.0.1: install the same version" in reason


def test_an_interface_that_is_not_there_is_named(store: socket.socket) -> None:
    with guard(store, "pass", address=None, interface="ib7") as process:
        reason = event(process, "failed")["reason"]
    assert "has no interface ib7 with an IPv4 address (it has lo 127.0.0.1" in reason


def test_a_store_that_cannot_be_reached_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        port = closed.getsockname()[1]
        with guard(closed, "pass") as process:
            reason = event(process, "failed")["reason"]
    assert f"cannot reach the session at 127.0.0.1 port {port}: Connection refused" in reason


def test_what_cannot_be_started_is_named(store: socket.socket) -> None:
    with guard(store, argv=["/no/such/python"]) as process:
        assert event(process, "failed")["reason"] == "cannot start /no/such/python: No such file or directory"


def test_a_session_that_falls_silent_loses_its_ranks(store: socket.socket) -> None:
    with guard(store, "import time; time.sleep(1000)", heartbeat=1.0) as process:
        assert process.stdin is not None
        given = [event(process, "began")["monotonic"]]
        for _ in range(8):  # signs of life keep it, unless this process itself was held up between two of them
            time.sleep(0.2)
            with suppress(BrokenPipeError):
                os.write(process.stdin.fileno(), b"\n")
            given.append(time.monotonic())
        assert process.poll() is None or max(after - before for before, after in pairwise(given)) > 1.0
        assert process.wait(20) == 1
        assert process.stderr is not None
        assert "no sign of life from the session for 1 s" in process.stderr.read()


def test_it_tells_which_ranks_are_stopped(store: socket.socket) -> None:
    with guard(store, STOPPED) as process:
        event(process, "began")
        assert until(lambda: states(process) == {"3": "T (stopped)"})


def states(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None
    process.stdin.write("?")
    process.stdin.flush()
    return event(process, "ranks")["states"]


def test_it_samples_the_node_while_somebody_reads(store: socket.socket) -> None:
    with guard(store, "import time; time.sleep(1000)") as process:
        assert event(process, "sample")["gauges"]["memory_available"] > 0


def test_a_reader_that_does_not_read_does_not_hold_it(store: socket.socket) -> None:
    """The pipe of events is full, and still the end of the lifeline is noticed."""
    with guard(store, "import time; time.sleep(1000)") as process:
        event(process, "began")
        assert process.stdin is not None and process.stdout is not None
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(300):
            process.stdin.write("?")
            process.stdin.flush()
            time.sleep(0.002)
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize("after", [0.0, 0.002, 0.005, 0.01, 0.02, 0.5])
def test_a_killed_guard_takes_its_agent_along(store: socket.socket, after: float) -> None:
    """Also one that it has just begun to start."""
    with guard(store, "import time; time.sleep(1000)") as process:
        event(process, "began")
        time.sleep(after)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        time.sleep(0.3)  # until it can be seen what a forked child became
        assert until(lambda: not ours(f"CLUSTERQUAL_TEST=guard-{os.getpid()}"))


def test_this_machine_has_a_loopback() -> None:
    assert interfaces()["lo"] == "127.0.0.1"
    assert own_place("lo", []) == ("127.0.0.1", "lo")


def test_a_name_that_nobody_knows_is_named() -> None:
    with pytest.raises(NoRoute, match=r"cannot resolve the name no-such-host\.invalid"):
        route_to("no-such-host.invalid")


def test_a_peer_that_is_oneself_is_a_mistake_in_the_hosts_file() -> None:
    with pytest.raises(NoRoute, match=r"the name localhost means 127\.0\.0\.1, which is itself"):
        own_place(None, ["localhost"])


@pytest.mark.parametrize(
    ("ways", "told"),
    [
        ({"a": "10.0.0.1", "b": "10.1.0.1"}, "reaches the other nodes from 10.0.0.1 and 10.1.0.1; say which interface"),
        ({"a": "10.9.9.9"}, "reaches the other nodes from 10.9.9.9; say which interface"),
    ],
)
def test_peers_on_several_interfaces(ways: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "route_to", ways.__getitem__)
    monkeypatch.setattr(network, "interfaces", lambda: {"eth0": "10.0.0.1", "ib0": "10.1.0.1"})
    with pytest.raises(NoRoute, match=told):
        own_place(None, list(ways))
    monkeypatch.setattr(network, "route_to", lambda peer: "10.1.0.1")
    assert own_place(None, ["a", "b"]) == ("10.1.0.1", "ib0")


def test_a_port_is_tried_before_ranks_are_started(store: socket.socket) -> None:
    assert reachable(*store.getsockname(), timeout=5.0) == ""
    assert reachable("127.0.0.1", 1, timeout=5.0) == "Connection refused"


# The first child is told to end while it is stopped; the second one is only stopped.
TOLD = (
    "import os, signal, subprocess, sys, time\n"
    "rank = lambda number: subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], "
    "env={**os.environ, 'LOCAL_RANK': number, 'X': ''})\n"
    "told, paused = rank('3'), rank('4')\n"
    "for child in (told, paused):\n"
    "    os.kill(child.pid, signal.SIGSTOP)\n"
    "    while ') T' not in open(f'/proc/{child.pid}/stat').read(): time.sleep(0.01)\n"
    "told.terminate()\n"
    "code = told.wait(20)\n"
    "time.sleep(1.0)\n"
    "sys.exit(11 if code == -9 and paused.poll() is None else 12)\n"
)


def test_a_stopped_rank_that_is_told_to_end_is_ended_and_no_other(store: socket.socket) -> None:
    """By itself it would stay until the agent's grace of 30 s is over: SIGTERM waits for a stopped process."""
    with guard(store, TOLD) as process:
        assert event(process, "stopped")["local_rank"] == "3"
        assert event(process, "ended")["code"] == 11
