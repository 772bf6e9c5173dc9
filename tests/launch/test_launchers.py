"""Launchers are pure: the exact line for every way to a node, and what the words of each way mean."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import until

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.launchers import make_launcher
from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.launch.mpi import MpiLauncher
from pytest_clusterqual.launch.plan import GUARD, OWN_ADDRESS, LaunchPlan, NodePlan, choose, guard_order, torchrun
from pytest_clusterqual.launch.slurm import SlurmLauncher, salloc
from pytest_clusterqual.launch.ssh import SshLauncher
from pytest_clusterqual.launch.surveys import survey
from pytest_clusterqual.model.project import LauncherOptions

NODE = NodePlan(name="gpu001", host="gpu001")
PROGRAM = ("/opt/python", *GUARD)
OPTIONS = [
    word
    for option in (
        "BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10", "ServerAliveInterval=5",
        "ServerAliveCountMax=3", "ControlMaster=no", "ControlPath=none", "ExitOnForwardFailure=yes",
        "PermitLocalCommand=no", "EscapeChar=none",
    )
    for word in ("-o", option)
]  # fmt: skip


def test_ssh_carries_the_store_through_its_own_connection() -> None:
    launcher = SshLauncher(["gpu001"])
    assert launcher.address == "127.0.0.1"
    assert launcher.command(NODE, PROGRAM, store=("127.0.0.1", 4711)) == [
        "ssh", "-T", "-x", *OPTIONS, "-R", "127.0.0.1:4711:127.0.0.1:4711", "--", "gpu001",
        "/opt/python -m pytest_clusterqual.launch.guard",
    ]  # fmt: skip


def test_ssh_without_a_store_or_with_an_address_forwards_nothing() -> None:
    assert "-R" not in SshLauncher(["gpu001"]).command(NODE, PROGRAM)
    direct = SshLauncher(["gpu001"], address="10.0.0.9")
    assert direct.address == "10.0.0.9"
    assert "-R" not in direct.command(NODE, PROGRAM, store=("10.0.0.9", 4711))


@pytest.mark.parametrize("word", ["a b", "$(reboot)", "'; reboot; '", "`id`", "*", "", "a\nb", "\\"])
def test_a_remote_shell_gets_every_word_back_as_it_was(word: str) -> None:
    line = SshLauncher(["h"]).command(NODE, ["printf", "%s|", word, "end"])[-1]
    assert shlex.split(line) == ["printf", "%s|", word, "end"]
    assert subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout == f"{word}|end|"


def test_srun_starts_one_task_beside_other_steps() -> None:
    launcher = SlurmLauncher(environ={"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[001-002]"}, address="10.0.0.9")
    assert launcher.command(NODE, PROGRAM) == [
        "srun", "--jobid=77", "--nodelist=gpu001", "--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none",
        "--mem=0", "--unbuffered", "--job-name=clusterqual", *PROGRAM,
    ]  # fmt: skip


def test_salloc_asks_for_what_the_file_says() -> None:
    options: dict[str, str | bool] = {"partition": "gpu", "time": "120", "exclusive": True, "gres": "gpu:8"}
    line = salloc(4, options)
    assert line[:-3] == [
        "salloc", "--nodes=4", "--ntasks-per-node=1", "--job-name=clusterqual", "--partition=gpu", "--time=120",
        "--exclusive", "--gres=gpu:8", "--",
    ]  # fmt: skip
    assert line[-3:-1] == [sys.executable, "-c"]
    assert "--exclusive" not in salloc(4, {"exclusive": False})


def test_mpirun_starts_one_process_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    launcher = MpiLauncher(["gpu001"], address="10.0.0.9")
    assert launcher.command(NODE, PROGRAM) == [
        "mpirun", "--host", "gpu001:1", "-np", "1", "--bind-to", "none", "--mca", "plm_rsh_args",
        "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10", *PROGRAM,
    ]  # fmt: skip
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "--allow-run-as-root" in launcher.command(NODE, PROGRAM)


def test_the_secret_is_on_no_line_of_any_launcher() -> None:
    plan = LaunchPlan(
        nodes=(NODE,), nproc_per_node=1, device="cpu", mode="serve", launch="ab", store=("127.0.0.1", 4711)
    )
    secret = "5ec2e7" * 10
    order = guard_order(plan, NODE, secret=secret, python="/opt/python", version="1", heartbeat=30.0)
    assert order["environment"]["CLUSTERQUAL_SECRET"] == secret
    slurm = SlurmLauncher(environ={"SLURM_JOB_ID": "77"}, address="10.0.0.9")
    for launcher in (SshLauncher(["h"]), slurm, MpiLauncher(["h"], address="10.0.0.9")):
        assert not any(secret in word for word in launcher.command(NODE, PROGRAM, store=plan.store))


def test_a_node_finds_its_own_address() -> None:
    plan = LaunchPlan(
        nodes=(NODE, NodePlan(name="b", host="gpu002")), nproc_per_node=1, device="cpu", mode="serve", launch="ab",
        store=("127.0.0.1", 4711), interface="ib0",
    )  # fmt: skip
    order = guard_order(plan, NODE, secret="", python="/opt/python", version="1", heartbeat=30.0)
    assert f"--local-addr={OWN_ADDRESS}" in torchrun(plan, NODE, "/opt/python") == order["argv"]
    assert (order["address"], order["interface"], order["peers"]) == (None, "ib0", ["gpu002"])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ssh: Could not resolve hostname gpu9: Name or service not known", "correct the name in --qual-hosts"),
        ("No ED25519 host key is known.\nHost key verification failed.", "deploy known_hosts"),
        ("root@gpu1: Permission denied (publickey).", "give this user a key"),
        ("ssh: connect to host gpu1 port 22: Connection timed out", "check that the host is up"),
        ("Error: remote port forwarding failed for listen port 4711", "AllowTcpForwarding"),
        ("Timeout, server gpu1 not responding.", "the network to it is cut"),
        ("Connection to gpu1 closed by remote host.", "the host or its sshd went down"),
        ("/opt/python: No module named pytest_clusterqual", "`clusterqual doctor` shows every host"),
        ("sh: 1: /opt/python3.12: not found", "launcher.python"),
    ],
)
def test_what_ssh_says_gets_a_remedy(said: str, told: str) -> None:
    assert told in SshLauncher(["h"]).explain(f"a banner\n{said}\nmore")


@pytest.mark.parametrize("said", ["", "Traceback (most recent call last):\nRuntimeError: boom", "exit code 255"])
def test_what_a_command_says_is_not_taken_for_ssh(said: str) -> None:
    assert SshLauncher(["h"]).explain(said) == ""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***", "slurm.time"),
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***", "priority"),
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE ***", "failed"),
        ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", "scancel"),
        ("srun: error: Node failure on n3", "lost that node"),
        ("srun: error: Unable to confirm allocation for job 5: Invalid job id specified", "the allocation is gone"),
        ("srun: Required node not available (down, drained or reserved)", "return the node to service"),
        ("srun: error: n1: task 0: Killed", "Slurm's own log"),
    ],
)
def test_what_slurm_says_gets_a_remedy(said: str, told: str) -> None:
    text = SlurmLauncher(environ={}).explain(said)
    assert told in text
    assert ("--qual-resume" in text) == ("srun: error: n1" not in said and "Required node" not in said)


def test_the_first_hosts_are_taken_in_the_order_given() -> None:
    assert [node.host for node in choose(["b", "a", "c"], 2, "the list")] == ["b", "a"]
    with pytest.raises(LaunchError, match="4 nodes asked for, the list has 3: b, a, c"):
        choose(["b", "a", "c"], 4, "the list")


@pytest.mark.parametrize("kind", ["ssh", "mpi"])
def test_a_launcher_that_needs_hosts_says_so(kind: Any) -> None:
    with pytest.raises(LaunchError, match=f"the {kind} launcher needs hosts: name them with --qual-hosts"):
        make_launcher(LauncherOptions(kind=kind))


def test_slurm_outside_an_allocation_needs_salloc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LaunchError, match="cannot start salloc: No such file"):
        SlurmLauncher(environ={}).nodes(2, 1)


class Elsewhere(LocalLauncher):
    """Sixty-four nodes of which one never answers; what they run is a sleep in place of torchrun."""

    heartbeat = 30.0

    def __init__(self, python: str, silent: str) -> None:
        super().__init__(device="cpu", oversubscribe=True)
        self.python = python
        self._silent = silent

    def command(self, node: NodePlan, program: Any, *, store: tuple[str, int] | None = None) -> list[str]:
        return ["sleep", "1000"] if node.name == self._silent else [sys.executable, *program[1:]]


def test_sixty_four_nodes_start_side_by_side_and_the_silent_one_is_named(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec sleep 1000\n")
    agent.chmod(0o755)
    server = __import__("socket").create_server(("127.0.0.1", 0))
    launcher = Elsewhere(str(agent), "node17")
    nodes = launcher.nodes(64, 1)
    plan = LaunchPlan(
        nodes=nodes, nproc_per_node=1, device="cpu", mode="serve", launch="ab",
        store=("127.0.0.1", server.getsockname()[1]), interface="lo",
    )  # fmt: skip
    launch = Launch(launcher, plan, secret="", logs=tmp_path)
    try:
        names = [node.name for node in nodes]
        assert until(lambda: len(launch.not_there(names)) == 1)
        assert [process.node.name for process in launch.not_there(names)] == ["node17"]
        pids = [process._process.pid for process in launch.processes]
    finally:
        launch.end(grace=1.0)  # for the silent one, which must be killed
        server.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_survey_tells_why_a_program_did_not_start() -> None:
    launcher = Elsewhere(sys.executable, "none")
    launcher.command = lambda node, program, store=None: ["sh", "-c", "echo went wrong >&2; exit 3"]  # type: ignore[method-assign]  # a broken host
    assert survey(launcher, launcher.nodes(1, 1), timeout=20.0)["node0"].problem == "went wrong"
