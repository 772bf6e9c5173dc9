"""The suite through Slurm, outside and inside an allocation, and what Slurm does to a run."""

from __future__ import annotations

import pytest
from lab_hosts import Lab
from lab_site import LabSite, nothing_left, wait_until
from lab_suite import queue, run_suite

pytestmark = pytest.mark.lab(hosts=2, slurm=True, pin=True)
SALLOC = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--exclusive")


@pytest.fixture(scope="module")
def lab_site(lab: Lab) -> LabSite:
    return LabSite(lab, "slurm")


@pytest.fixture(autouse=True)
def _free_queue(lab: Lab) -> None:
    wait_until(lambda: not queue(lab), seconds=60, what="Slurm's queue is empty")


@pytest.mark.full
@pytest.mark.parametrize("before", [(), SALLOC], ids=["outside", "inside"])
def test_the_whole_suite_passes_on_two_hosts(before: tuple[str, ...], lab: Lab) -> None:
    nodes = () if before else ("--nodes", "2")  # inside an allocation all its nodes are taken
    name = "inside" if before else "outside"
    with nothing_left(lab, seconds=60):
        suite = run_suite(lab, name, "--qual-launcher", "slurm", *nodes, before=before)
    assert suite.code == 0, suite.out[-6000:]
    assert set(suite.verdicts) == {"nodes", "memory", "fabric", "scaling", "full_run", "own"}
    wait_until(lambda: not queue(lab), seconds=60, what="the allocation is given back")


@pytest.mark.parametrize("before", [(), SALLOC], ids=["outside", "inside"])
def test_a_part_of_the_suite_passes(before: tuple[str, ...], lab: Lab) -> None:
    with nothing_left(lab, seconds=60):
        suite = run_suite(
            lab, f"part-{len(before)}", "--qual-launcher", "slurm", "--nodes", "2",
            "-k", "test_nodes or (test_memory and ddp)", before=before,
        )  # fmt: skip
    assert suite.code == 0, suite.out[-6000:]
    assert suite.verdicts == dict.fromkeys(("nodes", "memory"), "PASS")


def test_a_queue_that_moves_is_waited_for_in_sight(lab: Lab, lab_site: LabSite) -> None:
    """Somebody else has the nodes until the run has said that it waits; then it measures."""
    with lab.login.popen(["salloc", *SALLOC[1:], "sleep", "1000"]) as other:
        wait_until(lambda: "RUNNING" in queue(lab), seconds=60, what="the other job runs")
        with lab_site.start("test_before") as running:
            running.read_until("for 2 nodes is pending (Resources)")
            other.terminate()
            ended = running.end(90)
    assert ended.code == 0, ended.out[-3000:]


@pytest.mark.full
def test_scancel_is_told_and_the_run_goes_on_later(lab: Lab, lab_site: LabSite) -> None:
    with nothing_left(lab, seconds=60), lab_site.start("test_before", "test_collectives") as running:
        wait_until(lab_site.marker.exists, seconds=60, what="the collective")
        lab.login.run(["scancel", "--user=root"], check=True)
        ended = running.end(90)
    verdict, reason = ended.verdict("test_collectives")
    assert verdict == "ERROR"
    assert "cancelled" in reason.lower() or "the allocation" in reason, reason
    assert "--qual-resume" in reason
    assert ended.verdict("test_before")[0] == "PASS"
    wait_until(lambda: not queue(lab), seconds=60, what="Slurm's queue is empty")
    again = lab_site.resume(ended.folder, "test_before", "test_collectives")
    assert again.code == 0, again.out[-3000:]
    assert again.verdict("test_collectives")[0] == "PASS"


@pytest.mark.full
def test_a_drained_node_is_told(lab: Lab, lab_site: LabSite) -> None:
    """Inside an allocation, a step cannot start on a node that went down meanwhile."""
    drain = ["scontrol", "update", "nodename=node2", "reason=test"]
    lab.login.run([*drain, "state=drain"], check=True)
    try:
        ended = lab_site.run("test_before", queue_timeout="6 s")
    finally:
        lab.login.run([*drain[:-1], "state=resume"], check=True)
    assert ended.code != 0
    assert "Slurm did not give 2 nodes within 6 s" in ended.out, ended.out


@pytest.mark.full
def test_a_time_limit_is_told(lab: Lab, lab_site: LabSite) -> None:
    """The smallest limit is one minute; Slurm looks now and then."""
    with (
        nothing_left(lab, seconds=60),
        lab_site.start("test_before", "test_for_minutes", slurm={"time": "1 min"}) as run,
    ):
        ended = run.end(240)
    verdict, reason = ended.verdict("test_for_minutes")
    assert verdict == "ERROR"
    assert "time limit" in reason.lower() or "the allocation" in reason, reason
    assert ended.verdict("test_before")[0] == "PASS"


def test_what_slurm_refuses_is_told_at_once(lab: Lab, lab_site: LabSite) -> None:
    ended = lab_site.run("test_before", slurm={"partition": "no-such-partition"})
    assert ended.code == 4, ended.out
    assert "salloc did not give 2 nodes" in ended.out
    assert "invalid partition specified: no-such-partition" in ended.out or "Invalid partition name" in ended.out
