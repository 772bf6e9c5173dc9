"""The decision: one set of records for every outcome and for every mistake that is easily made, and its opposite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from decision_made import (
    NEEDS_TWO,
    fabric,
    full_run,
    ladder,
    memory,
    nothing_run,
    on,
    row,
    run,
    scaling,
    slow_link,
)
from made import finding

from pytest_clusterqual.judge.decision.verdict import decide, judge_decision
from pytest_clusterqual.model.decision import TITLES, Decision, Line, Outcome
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Record, Verdict

Records = dict[int, Record]
FAIL, ERROR, PASS, UNDECIDED, BLOCKED = (
    Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.UNDECIDED, Verdict.BLOCKED,
)  # fmt: skip
MORE_JOBS = DecisionPlan(goal="throughput")
NOT_SOONER = scaling(speedup=0.6, want=">= 0.01")
TOO_LITTLE = scaling(speedup=1.2, verdict=FAIL)
MEASURED_ONLY = scaling(want="")
OTHER_BATCH = scaling(
    speedup=None, want="", reason="speedup was not measured: 1 node and 2 nodes did not do the same job (tokens per "
    "step: 4096 on 1 node, 8192 on 2 nodes)",
)  # fmt: skip
IN_TIME = {"want": "<= 700000"}  # seconds of the whole target; one node takes 1000000, two take 556000

# name -> the records, the outcome, and a criterion that `why` rests on
OUTCOME_OF: dict[str, tuple[Callable[[], Records], str, str]] = {
    "two nodes are sooner as asked and the full run keeps it": (run, "performance", "full_run"),
    "more nodes gain too little": (lambda: run(scaling=TOO_LITTLE, full_run=None), "one-node", "scaling"),
    "nothing inside one node holds it": (
        lambda: run(memory=[*memory(), *ladder(NEEDS_TWO)], scaling=None, full_run=None), "memory", "memory",
    ),
    "the full run keeps too little": (lambda: run(full_run=full_run(verdict=FAIL)), "peak-only", "full_run"),
    "the fabric fails": (lambda: run(fabric=fabric(verdict=FAIL)), "not-qualified", "fabric"),
    "a node is odd": (
        lambda: run(nodes=[row("nodes[2nodes]", "version torch", 1.0, want="<= 0", verdict=FAIL, at=on(2, None))]),
        "not-qualified", "nodes",
    ),
    "no layout passes Memory": (lambda: run(memory=memory(verdict=FAIL)), "not-qualified", "memory"),
    "recovery is too slow": (lambda: run(full_run=full_run(recovery=FAIL)), "not-qualified", "full_run"),
    "the full run broke off": (
        lambda: run(full_run=nothing_run("full_run[ddp-2nodes]", ERROR, "rank 1 on gpu001 died")),
        "not-qualified", "full_run",
    ),
    "the speedup is not known well enough": (lambda: run(scaling=scaling(verdict=UNDECIDED)), "undecided", "scaling"),
    "a gate blocked the full run": (
        lambda: run(full_run=nothing_run("full_run[ddp-2nodes]", BLOCKED, "scaling did not pass")),
        "undecided", "full_run",
    ),
    "fits nowhere": (
        lambda: run(memory=[*memory(), *ladder({**NEEDS_TWO, "2 nodes": 0.0})], scaling=None, full_run=None),
        "not-qualified", "memory",
    ),
    # one-GPU OOM is not a need for more nodes
    "one device is too small, a shard inside the node fits": (
        lambda: run(
            memory=[*memory(), *ladder({**NEEDS_TWO, "shard": 1.0}, first_fit=1.0)], scaling=TOO_LITTLE, full_run=None
        ),
        "one-node", "scaling",
    ),
    "one device is too small, and nothing else was tried": (
        lambda: run(
            memory=[*memory(), *ladder({**dict.fromkeys(NEEDS_TWO), "one device": 0.0, "2 nodes": 1.0})],
            scaling=None, full_run=None,
        ),
        "undecided", "memory",
    ),
    # total VRAM is not a pool: nobody knows whether two nodes hold it before they do
    "nothing inside one node holds it, two were not tried": (
        lambda: run(memory=[*memory(), *ladder({**NEEDS_TWO, "2 nodes": None})], scaling=None, full_run=None),
        "undecided", "memory",
    ),
    # parameter count does not give training memory: without a rung or a step on one node there is no answer
    "nobody tried one node": (lambda: run(scaling=None, full_run=None), "undecided", ""),
    # Fabric PASS is not Scaling PASS
    "the fabric passes, the steps do not scale": (lambda: run(scaling=NOT_SOONER), "one-node", "scaling"),
    # communication activity is not exposed communication
    "much is sent, and it costs nothing": (
        lambda: run(scaling=[*scaling(), row("scaling[ddp-2nodes]", "exposed_communication", 0.01, label="2 nodes",
                                             at=on())]),
        "performance", "scaling",
    ),
    # step time without work per step proves nothing, and a changed global batch is another regime
    "the step is faster, but does other work": (lambda: run(scaling=OTHER_BATCH), "undecided", "scaling"),
    "a speedup is demanded of another regime": (
        lambda: run(scaling=scaling(speedup=None, verdict=ERROR), full_run=None), "undecided", "scaling",
    ),
    "step time alone is demanded": (
        lambda: run(scaling=[*scaling(want="")[:-3], *scaling(want="")[-2:],
                             row("scaling[ddp-2nodes]", "step_time", 0.05, label="2 nodes", want="<= 0.06", at=on())]),
        "undecided", "scaling",
    ),
    # 1->2 does not predict 2->8
    "two nodes are as asked, eight were only compared with two": (
        lambda: run(scaling=scaling(nodes=8, base=2), full_run=full_run(nodes=8)), "undecided", "scaling",
    ),
    "it fits one node, and eight were only compared with two": (
        lambda: run(memory=[*memory(), *ladder({"one device": 1.0})], scaling=scaling(nodes=8, base=2),
                    full_run=full_run(nodes=8)),
        "undecided", "scaling",
    ),
    "two nodes gain, eight do not, and the full run was to be on eight": (
        lambda: run(
            memory=memory(nodes=8), scaling=[*scaling(), *scaling(nodes=8, speedup=3.0, want=">= 6", verdict=FAIL)],
            full_run=nothing_run("full_run[ddp-8nodes]", BLOCKED, "scaling did not pass"),
        ),
        "undecided", "scaling",
    ),
    # peak throughput is not full-run goodput
    "steps scale, and nothing is demanded of the full run": (
        lambda: run(full_run=full_run(want="")), "undecided", "full_run",
    ),
    "steps scale, and there is no full run": (lambda: run(full_run=None), "undecided", "scaling"),
    # there is no universal good percentage
    "twice as fast, and the file demands nothing": (lambda: run(scaling=MEASURED_ONLY), "undecided", "scaling"),
    # a bandwidth without collective, size, ranks and topology says nothing
    "a bandwidth is known, and nothing is demanded of it": (lambda: run(fabric=fabric(want="")), "undecided", "fabric"),
    # an estimate is never a PASS
    "the projection is fine": (
        lambda: run(scaling=[*MEASURED_ONLY, row("scaling[ddp-2nodes]", "projected_speedup", 1.9, label="2 nodes",
                                                 at=on())]),
        "undecided", "scaling",
    ),
    # neither time meets what is asked
    "one node is too slow, and so are two": (
        lambda: run(scaling=scaling(speedup=1.2, verdict=FAIL, target=IN_TIME), full_run=None),
        "not-qualified", "scaling",
    ),
    "one node is in time, two gain too little": (
        lambda: run(scaling=scaling(speedup=1.2, verdict=FAIL, target={"want": "<= 2000000"}), full_run=None),
        "one-node", "scaling",
    ),
    "one node is slower than is asked of it, and two gain too little": (
        lambda: run(scaling=[*TOO_LITTLE, row("scaling[ddp-2nodes]", "step_time", 0.1, label="1 node", at=on(),
                                              want="<= 0.05", verdict=FAIL)], full_run=None),
        "not-qualified", "scaling",
    ),
    "whether one node is as fast as asked is not known": (
        lambda: run(scaling=[*TOO_LITTLE, row("scaling[ddp-2nodes]", "step_time", 0.1, label="1 node", at=on(),
                                              want="<= 0.1", verdict=UNDECIDED)], full_run=None),
        "undecided", "scaling",
    ),
    "it needs two nodes, and no full run keeps up there": (
        lambda: run(memory=[*memory(), *ladder(NEEDS_TWO)], scaling=None, full_run=full_run(verdict=FAIL)),
        "not-qualified", "full_run",
    ),
    "it needs two nodes, and one of two layouts keeps up there": (
        lambda: run(memory=[*memory(), *ladder(NEEDS_TWO)], scaling=None,
                    full_run=[*full_run(verdict=FAIL), *full_run("fsdp")]),
        "memory", "memory",
    ),
    "two nodes are in time": (lambda: run(scaling=scaling(target=IN_TIME)), "performance", "scaling"),
    "one layout has no room, another does it all": (
        lambda: run(memory=[*memory(verdict=FAIL), *memory("fsdp")], scaling=scaling("fsdp"),
                    full_run=full_run("fsdp")),
        "performance", "full_run",
    ),
    "another layout is faster on one node than this one on two": (
        lambda: run(memory=[*memory(), *memory("fsdp")], scaling=[
            *scaling("fsdp", one=200.0), *scaling("ddp", 1.2, one=90.0, verdict=FAIL)
        ], full_run=full_run("fsdp")),
        "one-node", "scaling",
    ),
    "nothing was measured": (lambda: {}, "undecided", ""),
    "two kinds of device": (
        lambda: run(full_run=[replace(r, conditions=on(device_name="NVIDIA A100")) for r in full_run()]),
        "undecided", "full_run",
    ),
}  # fmt: skip


def rests_on(decision: Decision, label: str = "outcome") -> Line:
    return next(line for line in decision.lines if (line.section, line.label) == ("decision", label))


@pytest.mark.parametrize("name", OUTCOME_OF)
def test_the_outcome_of_a_set_of_records(name: str) -> None:
    make, outcome, criterion = OUTCOME_OF[name]
    records = make()
    decision = decide(records, None)
    assert decision.outcome == outcome, decision.why
    assert bool(decision.missing) == (outcome == "undecided")
    line = rests_on(decision)
    assert decision.why in line.text
    assert set(line.records) <= set(records)
    assert not criterion or criterion in {records[number].criterion for number in line.records}


def test_every_outcome_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "decision.md").read_text()
    rules = [line for line in page.splitlines() if line.startswith("| ")]
    outcomes = set(get_args(Outcome))
    assert {outcome for outcome in outcomes if any(f"**{outcome}**" in rule for rule in rules)} == outcomes


def test_every_outcome_is_reached() -> None:
    reached = {outcome for _, outcome, _ in OUTCOME_OF.values()}
    assert reached | {decide(run(), MORE_JOBS).outcome} == set(get_args(Outcome))


# One part of a run that decides, and what comes out if it is another one.
TURNS: dict[str, tuple[dict[str, list[Record] | None], str]] = {
    "speedup fails": ({"scaling": TOO_LITTLE}, "one-node"),
    "speedup is not known": ({"scaling": scaling(verdict=UNDECIDED)}, "undecided"),
    "goodput fails": ({"full_run": full_run(verdict=FAIL)}, "peak-only"),
    "goodput is not known": ({"full_run": full_run(verdict=UNDECIDED)}, "undecided"),
    "recovery fails": ({"full_run": full_run(recovery=FAIL)}, "not-qualified"),
    "the full run is not sooner than on one node": ({"full_run": full_run(gain={"value": 0.9})}, "peak-only"),
    "it is not, though the file asks for no more": (
        {"full_run": full_run(gain={"value": 0.9, "want": ">= 0.5"})}, "peak-only",
    ),
    "the gain fails": ({"full_run": full_run(gain={"value": 1.2, "want": ">= 1.5", "verdict": FAIL})}, "peak-only"),
    "it may be sooner": ({"full_run": full_run(gain={"value": 1.0, "width": 0.01})}, "undecided"),
    "another full run of it is not sooner": (
        {"full_run": [*full_run(gain={"value": 1.5}), row("full_run[ddp-2nodes-async-every10]", "gain", 0.8, at=on())]},
        "peak-only",
    ),
    "one of its full runs broke off": (
        {"full_run": [*full_run(), *nothing_run("full_run[ddp-2nodes-kill_rank-2]", ERROR, "rank 1 on gpu001 died")]},
        "not-qualified",
    ),
    "fabric is not known": ({"fabric": fabric(verdict=UNDECIDED)}, "undecided"),
    "fabric is missing": ({"fabric": None}, "undecided"),
    "memory is missing": ({"memory": None}, "undecided"),
    "memory is measured only": ({"memory": memory(want="")}, "undecided"),
    "nodes are missing": ({"nodes": None}, "performance"),  # a file need not promise anything of its nodes
    "scaling did not run": (
        {"scaling": nothing_run("scaling[ddp-2nodes]", ERROR, "rank 0 on gpu000 died")}, "not-qualified",
    ),
    "scaling was blocked": (
        {"scaling": nothing_run("scaling[ddp-2nodes]", BLOCKED, "memory did not pass")}, "undecided",
    ),
    "efficiency alone is demanded, and two nodes are slower": ({"scaling": NOT_SOONER}, "one-node"),
    "two nodes may be slower": ({"scaling": scaling(speedup=1.01, want=">= 0.9", width=0.2)}, "undecided"),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNS)
def test_one_part_of_the_records_turns_the_outcome(name: str) -> None:
    parts, outcome = TURNS[name]
    assert decide(run(), None).outcome == "performance"
    assert decide(run(**parts), None).outcome == outcome


def left_of_the_gain(**gain: Any) -> str:
    lines = decide(run(full_run=full_run(**gain)), None).lines
    (told,) = [line.text for line in lines if line.label == "left of the gain"]
    return told


def test_the_gain_over_the_same_run_on_one_node_is_the_evidence_where_it_is_known() -> None:
    assert decide(run(full_run=full_run(gain={"value": 1.5}, want="")), None).outcome == "undecided", "not asked for"
    asked = full_run(gain={"value": 1.5, "want": ">= 1.2"}, want="")
    assert decide(run(full_run=asked), None).outcome == "performance", "a demand on the gain is enough"
    assert left_of_the_gain(gain={"value": 1.5}) == (
        "1.5 [1.5, 1.5]: so many times sooner than the same full run on one node, one run each"
    )
    assert left_of_the_gain() == (
        "at least 1.6 of what one node would make that loses nothing; its own full run was not measured"
    )
    why = decide(run(full_run=full_run(gain={"value": 0.9})), None).why
    assert why.startswith("ddp on 2 nodes does its full run not sooner than one node does the same: gain 0.9 [")


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_one_node_does_and_more_of_them_are_replicas(nodes: int) -> None:
    in_time = run(scaling=scaling(target={"want": f"<= {1_100_000 // nodes}"}))
    decision = decide(in_time, MORE_JOBS)
    # One node takes 1,000,000 s: with half the time to spend it is no replica of anything that was asked for.
    assert decision.outcome == ("replicas" if nodes == 1 else "performance")


def test_rules_hold_in_their_order() -> None:
    """A fabric that fails is a fault whatever is wanted; one that nobody asked about is none for replicas."""
    assert decide(run(fabric=fabric(verdict=FAIL)), MORE_JOBS).outcome == "not-qualified"
    assert decide(run(fabric=fabric(want="")), MORE_JOBS).outcome == "replicas"
    assert decide(run(fabric=fabric(want="")), None).outcome == "undecided"


def test_what_is_missing_rests_on_its_own_records() -> None:
    records = run(
        memory=[*memory(), *memory("fsdp")],
        scaling=[*scaling(), *scaling("fsdp", one=110.0, want="")], full_run=None,
    )  # fmt: skip
    decision = decide(records, None)
    assert decision.missing == (
        "ddp on 2 nodes has no full run",
        "fsdp on 2 nodes is measured only: the file demands no speedup or efficiency of 2 nodes",
    )
    line = rests_on(decision, "missing")
    assert line.text == decision.missing[1]  # the first one is said by the outcome
    at = [records[number].conditions for number in line.records]
    assert {conditions.layout for conditions in at if conditions} == {"fsdp"}


@pytest.mark.parametrize(("fits", "missing"), [(None, "all rungs of memory.ladder"), (1.0, "Training Scaling")])
def test_without_scaling_the_ladder_says_what_is_missing(fits: float | None, missing: str) -> None:
    rungs = ladder({"one device": 0.0, "shard": fits})
    decision = decide(run(memory=[*memory(), *rungs], scaling=None, full_run=None), None)
    assert decision.outcome == "undecided"
    assert missing in decision.missing[0]


def test_replicas_are_for_a_job_that_fits_one_node() -> None:
    needs_two = run(memory=[*memory(), *ladder(NEEDS_TWO)], scaling=None, full_run=None)
    assert decide(needs_two, MORE_JOBS).outcome == "memory"
    assert decide(run(scaling=None, full_run=None), MORE_JOBS).outcome == "undecided"


def test_a_rung_without_the_required_headroom_does_not_count() -> None:
    tight = ladder({**NEEDS_TWO, "shard": 1.0}, first_fit=2.0)
    assert decide(run(memory=[*memory(), *tight], scaling=None, full_run=None), None).outcome == "memory"


def test_of_several_layouts_the_fastest_that_passed_everything_is_named() -> None:
    records = run(
        memory=[*memory("slow"), *memory("fast"), *memory("faster")],
        scaling=[*scaling("slow", one=150.0), *scaling("fast"), *scaling("faster", one=50.0, verdict=FAIL)],
        full_run=[*full_run("slow"), *full_run("fast")],
    )
    # Nothing is sooner than `faster` on its one node, so nothing gains.
    assert decide(records, None).outcome == "one-node"
    records = run(
        memory=[*memory("slow"), *memory("fast")],
        scaling=[*scaling("slow", one=110.0, speedup=1.6), *scaling("fast")],
        full_run=[*full_run("slow"), *full_run("fast")],
    )
    decision = decide(records, None)
    assert decision.outcome == "performance"
    assert decision.why.startswith("fast on 2 nodes")
    assert [line.label for line in decision.lines if line.label.endswith("on 2 nodes")] == [
        "fast on 2 nodes", "slow on 2 nodes",
    ]  # fmt: skip


def test_a_failure_accepted_by_name_does_not_stand_in_the_way() -> None:
    odd = fabric(verdict=FAIL, exception="switch firmware, ticket 4711")
    assert decide(run(fabric=odd), None).outcome == "performance"
    assert decide(run(scaling=scaling(speedup=1.2, verdict=FAIL, exception="known")), None).outcome == "one-node"


def test_what_is_open_names_its_suspect_as_well() -> None:
    above = fabric(verdict=UNDECIDED, findings=(finding(suspect="the promised links", check_next="how many NICs"),))
    assert "how many NICs" in rests_on(decide(run(fabric=above), None), "check first").text


def test_what_fails_names_its_suspect_first() -> None:
    decision = decide(run(fabric=fabric(verdict=FAIL, findings=(finding(level="note"), slow_link()))), None)
    line = rests_on(decision, "check first")
    assert line.text == "node1 (slow link of a node): its cable and port"
    assert line.records


def test_simulated_nodes_are_told_of_in_the_first_line() -> None:
    shares = {number: replace(r, conditions=on(simulated=True)) for number, r in run().items()}
    first = decide(shares, None).lines[0]
    assert first.label == "simulated"
    assert "not about a cluster" in first.text
    assert first.records == tuple(shares)
    assert all(line.label != "simulated" for line in decide(run(), None).lines)


def test_every_line_rests_on_records_and_sections_come_in_order() -> None:
    records = run(memory=[*memory(), *ladder({**NEEDS_TWO, "shard": 1.0})], scaling=scaling(target=IN_TIME))
    decision = decide(records, DecisionPlan(expect="one-node", source="clusterqual.yaml:70"))
    assert all(line.records for line in decision.lines if line.label != "expected")
    assert [line.section for line in decision.lines] == sorted(
        (line.section for line in decision.lines), key=[
            "training identity", "parallelism", "single-node baseline", "multi-node candidate", "decision",
        ].index,
    )  # fmt: skip
    told = {(line.section, line.label): line.text for line in decision.lines}
    assert told["training identity", "job"] == "workload 9f2c41d07a55e310, 10,000 tokens a step"
    assert told["single-node baseline", "memory"] == "the job fits inside one node: ddp"
    assert told["multi-node candidate", "speedup"].startswith("1.8 [")
    assert told["multi-node candidate", "left of the gain"].startswith("at least 1.6 of what one node")
    assert told["decision", "time asked"] == "time to train <= 700000; one node does not meet that"
    assert told["decision", "expected"].endswith("(clusterqual.yaml:70)")


@pytest.mark.parametrize("sizes", [3, 4])
def test_beyond_what_was_measured_there_is_an_estimate_from_four_sizes_and_it_leads_to_nothing(sizes: int) -> None:
    counts = (2, 4, 8)[: sizes - 1]
    each = [scaling(nodes=nodes, speedup=0.9 * nodes, want="") for nodes in counts]
    records = run(scaling=[record for point in each for record in point], full_run=full_run(nodes=counts[-1]))
    decision = decide(records, None)
    (line,) = [line for line in decision.lines if line.label == f"on {2 * counts[-1]} nodes"]
    assert line.text.startswith("an estimate, no verdict: " if sizes == 4 else "3 sizes were measured, and nothing is")
    assert len(line.records) == sizes
    assert decision.outcome == "undecided"
    assert "the file demands no speedup" in decision.why


def test_lines_are_those_of_the_file_whatever_is_left_out_of_it() -> None:
    numbered = {10 * line: record for line, record in run().items()}
    decision = decide(numbered, None)
    assert {number for line in decision.lines for number in line.records} <= set(numbered)


def test_the_decision_does_not_rest_on_itself() -> None:
    before = decide(run(), None)
    mine = row("decision[2nodes]", "outcome", verdict=FAIL, at=on(device_name="another"))
    assert decide({**run(), 99: mine}, None) == before


@pytest.mark.parametrize(
    ("expect", "records", "verdict"),
    [
        (None, run, Verdict.MEASURED),
        ("performance", run, PASS),
        ("one-node", run, FAIL),
        ("one-node", lambda: run(full_run=None), UNDECIDED),
        ("undecided", lambda: run(full_run=None), PASS),
    ],
)
def test_the_outcome_against_what_the_file_expects(expect: Any, records: Callable[[], Records], verdict: str) -> None:
    plan = DecisionPlan(expect=expect, source="clusterqual.yaml:70")
    judgement = judge_decision(decide(records(), plan), plan)
    assert judgement.verdict == verdict
    assert judgement.quantity == "outcome"
    assert TITLES[judgement.label] in judgement.reason  # type: ignore[index]
    assert ("clusterqual.yaml:70" in judgement.reason) == (expect is not None)
