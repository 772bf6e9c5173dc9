"""The lab's Slurm: real daemons on real hosts."""

from __future__ import annotations

import pytest
from lab_hosts import Lab
from lab_probes import until

pytestmark = pytest.mark.lab(hosts=3, slurm=True)


def said(lab: Lab, *argv: str) -> str:
    return lab.login.run(argv, cwd=lab.shared, check=True).stdout.strip()


@pytest.mark.parametrize("partition", ["debug", "second"])
def test_srun_starts_tasks_on_the_nodes(lab: Lab, partition: str) -> None:
    hosts = said(lab, "srun", "-t1", "-p", partition, "-N3", "--ntasks-per-node=1", "hostname")
    assert sorted(hosts.split()) == ["node1", "node2", "node3"]


def test_nodes_are_idle_and_have_four_processors(lab: Lab) -> None:
    rows = [f"node{i} idle 4" for i in (1, 2, 3)]  # once what ran before is over
    until(lambda: said(lab, "sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T %c").splitlines() == rows)
    assert said(lab, "scontrol", "show", "hostnames", lab.hosts_arg).split() == ["node1", "node2", "node3"]


def test_salloc_holds_nodes_for_several_steps(lab: Lab) -> None:
    steps = 'echo "$SLURM_JOB_NODELIST"; srun -N1 hostname; srun -N1 -w "node2" hostname'
    done = lab.login.run(["salloc", "-t1", "-w", "node[1-2]", "sh", "-c", steps])
    assert done.stdout.split() == ["node[1-2]", "node1", "node2"]


def test_exit_codes_come_back(lab: Lab) -> None:
    assert lab.login.run(["srun", "-t1", "-N2", "sh", "-c", "exit $((SLURM_PROCID * 3))"]).returncode == 3


def test_a_batch_job_runs_and_is_cancelled(lab: Lab) -> None:
    number = said(lab, "sbatch", "--parsable", "-t1", "-N2", "-o", "batch.out", "--wrap", "srun hostname; sleep 1000")
    out = lab.shared / "batch.out"
    try:
        until(lambda: out.exists() and sorted(out.read_text().split()) == ["node1", "node2"])
        until(lambda: lab["node1"].processes(lambda process: process.argv == ("sleep", "1000")))
    finally:
        said(lab, "scancel", number)
    until(lambda: number not in said(lab, "squeue", "-h", "-o", "%i"))
    until(lambda: not any(node.processes() for node in lab.nodes))


def test_a_node_that_was_rebooted_works_again(healthy: Lab) -> None:
    healthy.reboot("node3")
    assert said(healthy, "srun", "-t1", "-w", "node3", "hostname") == "node3"


def test_steps_leave_no_process_behind(lab: Lab) -> None:
    said(lab, "srun", "-t1", "-N3", "true")
    for host in lab.hosts.values():
        until(lambda host=host: not host.processes())
