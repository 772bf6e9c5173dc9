"""Rank maps compared and a step taken apart, on real ranks, as a user runs them."""

from __future__ import annotations

from sites import Site


def test_placement_and_synchronization_are_measured_and_judged(site: Site) -> None:
    fabric = {
        "collectives": ["all_reduce"], "groups": ["world"], "sizes": {"from": "4 KiB", "to": "64 KiB", "factor": 4},
        "traffic": False, "rank_maps": ["block", "cyclic"], "synchronization": ["ddp"], "budget": "4 s",
        "require": [{"placement": "<= 100 %"}, {"amplification": "<= 1000000"}],
    }  # fmt: skip
    site.configure({"fabric": fabric, "memory": None, "scaling": None, "full_run": None})
    run = site.run("test_fabric.py", "-k", "placement or synchronization", "--nproc-per-node=2")
    assert run.code == 0, run.out
    judged = {(r["test"].rpartition("[")[2], r["judgement"]["label"]): r["judgement"] for r in run.records}
    assert set(judged) == {
        ("all_reduce-world-placement]", "16 KiB"), ("all_reduce-world-placement]", "64 KiB"),
        ("ddp-synchronization]", ""),
    }  # fmt: skip
    assert {each["verdict"] for each in judged.values()} == {"PASS"}
    assert {each["quantity"] for each in judged.values()} == {"placement", "amplification"}
    ladder = judged["ddp-synchronization]", ""]
    assert "compute " in ladder["reason"]
    assert ladder["findings"]
