"""A full run of some minutes as a user asks for it; here of some seconds."""

from __future__ import annotations

from sites import Site

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.full_run import FullRunMeasurement

SECONDS = 4.8


def test_a_run_of_minutes_has_the_steps_that_were_done(site: Site) -> None:
    full = {"minutes": SECONDS / 60, "checkpoint": {"every": 50, "mode": "sync"}, "alone": False, "apart": False}
    site.configure({"full_run": {**full, "require": [{"goodput": ">= 0.1 %"}, {"drift": "<= 1000000 %"}]}})
    run = site.run("test_full_run.py", "--qual-keep-going")
    (measurement,) = [m for _, c, m in RunFolder.open(run.folder).measurements().values() if c == "full_run"]
    assert isinstance(measurement, FullRunMeasurement)
    took = measurement.run
    steps = [[line for p in rank.processes for line in p.lines if line.what == "step"] for rank in took.ranks]
    assert [len(mine) for mine in steps] == [took.steps] * 2
    # Rank 0 looks at its clock within a step, and counts from a moment between `resumed` and the first step. However
    # few steps there were in that time, it is not the workload's number of them that ended the run.
    (resumed,) = (line for p in took.ranks[0].processes for line in p.lines if line.what == "resumed")
    *others, last = steps[0]
    assert last.at + last.seconds - resumed.at >= SECONDS
    assert all(line.at - steps[0][0].at < SECONDS for line in others)
    judged = {line["judgement"]["quantity"]: line["judgement"] for line in run.records}
    assert judged["goodput"]["verdict"] == "PASS", run.out
    # Either there were enough steps, or it is said that there were not.
    drift = judged["drift"]
    assert (drift["verdict"] == "PASS") == (drift["value"] is not None)
    assert (run.code == 0) == (drift["value"] is not None)
