from __future__ import annotations

import pytest

from pytest_clusterqual.judge.gates import Outcome, gate, not_run
from pytest_clusterqual.model.record import Verdict


def memory(layout: str, verdict: Verdict) -> Outcome:
    return Outcome(f"qualification/test_memory.py::test_memory[{layout}]", "memory", {"layout": layout}, verdict)


def fabric(name: str, verdict: Verdict) -> Outcome:
    return Outcome(f"qualification/test_fabric.py::test_fabric[{name}]", "fabric", {"collective": name}, verdict)


DDP = {"layout": "ddp", "nodes": 2}


def test_the_gate_opens_where_everything_needed_passed() -> None:
    outcomes = [memory("ddp", Verdict.PASS), fabric("all_reduce", Verdict.PASS), fabric("send_recv", Verdict.MEASURED)]
    assert gate(("memory", "fabric"), outcomes, DDP) is None
    assert gate((), [], DDP) is None


def test_what_was_asked_for_and_has_no_record_is_named() -> None:
    expected = "fabric was asked for and has no record: see why it was skipped, or use --qual-keep-going"
    assert gate(("memory", "fabric"), [memory("ddp", Verdict.PASS)], DDP) == expected


def test_only_the_same_layout_counts() -> None:
    assert gate(("memory",), [memory("ddp", Verdict.PASS), memory("fsdp", Verdict.FAIL)], DDP) is None
    assert gate(("memory",), [memory("fsdp", Verdict.PASS)], DDP) == (
        "memory was asked for and has no record: see why it was skipped, or use --qual-keep-going"
    )


def test_a_test_without_layout_counts_for_all_layouts() -> None:
    assert gate(("fabric",), [fabric("all_reduce", Verdict.FAIL)], DDP) == (
        "fabric did not pass: test_fabric[all_reduce] is FAIL"
    )
    assert gate(("memory",), [memory("fsdp", Verdict.FAIL)], {}) == "memory did not pass: test_memory[fsdp] is FAIL"


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.UNDECIDED, Verdict.ERROR, Verdict.BLOCKED])
def test_anything_but_pass_and_measured_closes_the_gate(verdict: Verdict) -> None:
    outcomes = [fabric("all_reduce", Verdict.PASS), fabric("all_gather", verdict)]
    assert gate(("fabric",), outcomes, DDP) == f"fabric did not pass: test_fabric[all_gather] is {verdict}"


def test_the_worst_of_several_is_named() -> None:
    outcomes = [fabric("a", Verdict.UNDECIDED), fabric("b", Verdict.ERROR), fabric("c", Verdict.FAIL)]
    assert gate(("fabric",), outcomes, DDP) == "fabric did not pass: test_fabric[b] is ERROR, and 2 more"


def test_numbers_without_requirement_open_no_gate() -> None:
    assert gate(("memory",), [memory("ddp", Verdict.MEASURED)], DDP) == (
        "memory reached no verdict: no requirement in the project file"
    )


def test_a_gate_that_nobody_asked_for_was_not_run() -> None:
    needs = ("memory", "fabric")
    assert not_run(needs, [("fabric", {})], DDP) == ("memory",)
    assert not_run(needs, [("fabric", {}), ("memory", {"layout": "fsdp"})], DDP) == ("memory",)
    assert not_run(needs, [("fabric", {}), ("memory", {"layout": "ddp"})], DDP) == ()
    assert not_run((), [], DDP) == ()
