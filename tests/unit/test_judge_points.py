"""Scaling points of a table: what may be called scaling, what is refused, and what the table does not tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge_made import require
from points_made import TOLD, between, judged, lines_of, values

from pytest_clusterqual.judge.scaling.points import judge_points
from pytest_clusterqual.model.points import Point
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.model.workload import ModelShape, Optimizer, Workload

HEADER = "nodes,devices_per_node,global_batch,samples_per_second"
ONE, TWO = "1,8,64,10.0", "2,8,64,18.0"
JOB = Workload(
    model=ModelShape(layers=4, hidden=64, heads=8, kv_heads=8, ffn=128, vocab=256),
    optimizer=Optimizer(name="adamw", lr=1e-3), precision="fp32", sequence_length=128, microbatch=8, global_batch=64,
    steps=4, seed=1,
)  # fmt: skip


def runs(nodes: int, *rates: float, batch: int = 64, **more: object) -> list[dict[str, object]]:
    return [
        {"nodes": nodes, "devices_per_node": 8, "global_batch": batch, "samples_per_second": rate, **more}
        for rate in rates
    ]


SIX = [*runs(1, 9.9, 10.0, 10.1, 10.0, 9.95, 10.05), *runs(2, 17.9, 18.0, 18.1, 18.0, 17.95, 18.05)]


def test_the_same_job_on_more_nodes_is_strong_scaling(tmp_path: Path) -> None:
    found = between(judged(tmp_path, HEADER, ONE, TWO, "4,8,64,30"), "1 x 8", "4 x 8")
    assert (found.kind, found.differences, found.missing) == ("strong scaling", (), ())
    assert values(found) == pytest.approx({"speedup": 3.0, "efficiency": 0.75})
    assert {each.verdict for each in found.judgements} == {Verdict.MEASURED}
    assert "4 x 8 against 1 x 8, one run of each, too few for an interval" in found.judgements[1].reason


def test_the_smallest_point_is_the_baseline_and_is_named(tmp_path: Path) -> None:
    result = judged(tmp_path, HEADER, "8,8,64,50", "4,8,64,30")
    assert values(between(result, "4 x 8", "8 x 8"))["efficiency"] == pytest.approx(50 / 30 / 2)
    assert len(result.comparisons) == 1


@pytest.mark.parametrize("column", ["samples_per_second", "step_time_s", "it/s"])
def test_it_does_not_matter_how_the_throughput_is_told(tmp_path: Path, column: str) -> None:
    cells = {"samples_per_second": (10, 18), "step_time_s": (6.4, 64 / 18), "it/s": (10 / 64, 18 / 64)}[column]
    found = judged(tmp_path, HEADER.replace("samples_per_second", column), f"1,8,64,{cells[0]}", f"2,8,64,{cells[1]}")
    assert values(between(found, "1 x 8", "2 x 8")) == pytest.approx({"speedup": 1.8, "efficiency": 0.9})


def test_six_runs_of_each_have_an_interval_and_requirements_decide(tmp_path: Path) -> None:
    def verdicts(bound: str, lines: list[dict[str, object]] = SIX) -> list[Verdict]:
        demanded = [require("scaling", "efficiency", bound, nodes=2)]
        found = between(judged(tmp_path, *lines_of(lines), require=demanded), "1 x 8", "2 x 8")
        return [each.verdict for each in found.judgements if each.requirement]

    assert verdicts(">= 0.85") == [Verdict.PASS]
    assert verdicts(">= 0.95") == [Verdict.FAIL]
    assert verdicts(">= 0.9") == [Verdict.UNDECIDED]
    assert verdicts(">= 0.1", SIX[1:]) == [Verdict.UNDECIDED]  # five runs of one
    found = between(judged(tmp_path, *lines_of(SIX)), "1 x 8", "2 x 8")
    interval = found.judgements[1].interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((17.9 / 10.1 / 2, 18.1 / 9.9 / 2))


def test_weak_scaling_is_not_called_strong(tmp_path: Path) -> None:
    demanded = [require("scaling", "efficiency", ">= 0.1"), require("scaling", "speedup", ">= 0.1", nodes=2)]
    result = judged(tmp_path, HEADER, ONE, "2,8,128,19.0", require=demanded)
    found = between(result, "1 x 8", "2 x 8")
    assert found.kind == "weak scaling"
    assert values(found) == {"normalized_throughput": pytest.approx(0.95)}
    assert [each.verdict for each in result.unanswered] == [Verdict.ERROR, Verdict.ERROR]
    assert "no efficiency of strong scaling" in result.unanswered[0].reason


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"batch": 96}, "global batch: 64 against 96 (8 against 6 a device)"),
        ({"model": "70B"}, "model: 8B against 70B"),
        ({"hardware": "H200"}, "hardware: H100 against H200"),
        ({"software": "torch 2.9"}, "software: torch 2.8 against torch 2.9"),
        ({"precision": "fp8"}, "precision: bf16 against fp8"),
        ({"recipe": "tp8"}, "recipe: tp1 against tp8"),
        ({"sequence_length": 4096}, "sequence length: 2048 against 4096"),
    ],
)
def test_what_differs_makes_another_regime_and_is_listed(
    tmp_path: Path, change: dict[str, object], difference: str
) -> None:
    base = {"model": "8B", "hardware": "H100", "software": "torch 2.8", "precision": "bf16", "recipe": "tp1",
            "sequence_length": 2048}  # fmt: skip
    rows = [*runs(1, 10.0, **base), *runs(2, 18.0, **{**base, **change})]
    demanded = [require("scaling", "efficiency", ">= 0.1", nodes=2)]
    result = judged(tmp_path, *lines_of(rows), same=(), require=demanded)
    found = between(result, "1 x 8", "2 x 8")
    assert (found.kind, found.differences) == ("another regime", (difference,))
    tokens = 2 if "sequence_length" in change else 1  # in as many samples
    assert values(found) == {"normalized_throughput": pytest.approx(0.9 * tokens)}
    assert [each.verdict for each in result.unanswered] == [Verdict.ERROR]
    assert difference in result.unanswered[0].reason
    assert result.curves == ()


def test_accumulation_follows_from_the_batch_and_is_no_difference(tmp_path: Path) -> None:
    strong = judged(tmp_path, HEADER + ",grad_accum", ONE + ",4", TWO + ",2")
    assert between(strong, "1 x 8", "2 x 8").kind == "strong scaling"
    weak = between(judged(tmp_path, HEADER + ",grad_accum", ONE + ",4", "2,8,128,19,2"), "1 x 8", "2 x 8")
    assert weak.kind == "another regime"
    assert weak.differences == ("global batch: 64 against 128 (8 against 8 a device); "
                                "microbatches one after the other: 4 against 2",)  # fmt: skip


def test_other_nodes_are_no_points_of_one_curve(tmp_path: Path) -> None:
    result = judged(tmp_path, HEADER, ONE, TWO, "4,4,64,16", "8,4,64,28")
    topology = between(result, "2 x 8", "4 x 4")
    assert topology.kind == "other topology"
    assert topology.differences == ("devices per node: 8 against 4",)
    assert values(topology) == {"normalized_throughput": pytest.approx(16 / 18)}
    assert between(result, "4 x 4", "8 x 4").kind == "strong scaling"
    assert {(c.baseline, c.point) for c in result.comparisons if c.kind == "strong scaling"} == {(0, 1), (2, 3)}


def test_devices_of_one_node_are_a_curve_that_requirements_by_nodes_are_not_about(tmp_path: Path) -> None:
    demanded = [require("scaling", "efficiency", ">= 0.99")]
    result = judged(tmp_path, HEADER, "1,1,64,2", "1,8,64,12", require=demanded)
    found = between(result, "1 x 1", "1 x 8")
    assert (found.kind, values(found)["efficiency"]) == ("strong scaling", pytest.approx(0.75))
    assert {each.verdict for each in found.judgements} == {Verdict.MEASURED}
    assert result.curves == ()


def test_techniques_on_the_same_devices_are_not_scaling(tmp_path: Path) -> None:
    result = judged(tmp_path, HEADER + ",technique", ONE + ",plain", "1,8,64,11,async")
    found = between(result, "1 x 8", "1 x 8")
    assert (found.kind, found.differences) == ("same devices", ("technique: plain against async",))
    assert values(found) == {"normalized_throughput": pytest.approx(1.1)}


def test_a_point_that_is_alone_is_held_against_the_one_it_differs_least_from(tmp_path: Path) -> None:
    lines = [ONE + ",tp1,bf16", "2,8,64,17,tp2,bf16", "4,8,64,30,tp1,fp8"]
    result = judged(tmp_path, HEADER + ",recipe,precision", *lines)
    assert [(each.baseline, each.point, each.differences) for each in result.comparisons] == [
        (0, 1, ("recipe: tp1 against tp2",)), (0, 2, ("precision: bf16 against fp8",)),
    ]  # fmt: skip


@pytest.mark.parametrize("column", ["hardware", "model", "software"])
def test_other_hardware_job_or_versions_are_no_technique(tmp_path: Path, column: str) -> None:
    same = [(name, cell) for name, cell in TOLD if name != column]
    result = judged(tmp_path, f"{HEADER},{column}", ONE + ",one", "1,8,64,11,other", same=same)
    assert between(result, "1 x 8", "1 x 8").kind == "another regime"


@pytest.mark.parametrize("left_out", ["hardware", "model", "software"])
def test_without_evidence_a_ratio_decides_nothing(tmp_path: Path, left_out: str) -> None:
    same = [(name, cell) for name, cell in TOLD if name != left_out]
    demanded = [require("scaling", "efficiency", ">= 0.1")]
    result = judged(tmp_path, *lines_of(SIX), same=same, require=demanded)
    found = between(result, "1 x 8", "2 x 8")
    what = {"software": "versions"}.get(left_out, left_out)
    assert (found.kind, found.would_be, found.missing) == ("undecided", "strong scaling", (what,))
    assert {each.verdict for each in found.judgements} == {Verdict.UNDECIDED}
    assert found.why == (f"cannot be decided, because the table does not tell {what}: strong scaling if it is the same")
    assert result.curves == ()
    assert [each.kind for each in found.notes] == ["missing evidence"]


def test_what_is_told_of_one_point_only_is_missing(tmp_path: Path) -> None:
    found = between(judged(tmp_path, HEADER + ",recipe", ONE + ",tp2", TWO + ","), "1 x 8", "2 x 8")
    assert (found.kind, found.missing) == ("undecided", ("recipe (told of one of them)",))


def test_without_a_batch_both_readings_are_told(tmp_path: Path) -> None:
    result = judged(tmp_path, "nodes,devices_per_node,it/s", "1,1,8.71", "1,8,0.61")
    found = between(result, "1 x 1", "1 x 8")
    assert (found.kind, found.would_be) == ("undecided", None)
    assert "a speedup of 0.07 if the global batch was the same, 0.56 times the work a second on 8 times" in found.why
    (judgement,) = found.judgements
    assert (judgement.value, judgement.verdict) == (None, Verdict.UNDECIDED)


def test_time_to_train_is_judged_apart_from_the_throughput(tmp_path: Path) -> None:
    header = HEADER + ",time_to_train_min,samples_to_converge"
    found = between(judged(tmp_path, header, ONE + ",30,3072", TWO + ",20,3456"), "1 x 8", "2 x 8")
    assert values(found) == pytest.approx({"speedup": 1.8, "efficiency": 0.9, "speedup_by_time_to_train": 1.5})
    (note,) = found.notes
    assert note.evidence == "3072 samples to converge on fewer devices, 3456 on more"
    same = between(judged(tmp_path, header, ONE + ",30,3072", TWO + ",20,3072"), "1 x 8", "2 x 8")
    assert same.notes == ()
    alone = judged(tmp_path, "nodes,devices_per_node,global_batch,time_to_train_min", "1,8,64,30", "2,8,64,20")
    found = between(alone, "1 x 8", "2 x 8")
    assert values(found) == {"speedup": None, "efficiency": None, "speedup_by_time_to_train": pytest.approx(1.5)}
    assert {each.verdict for each in found.judgements[:2]} == {Verdict.UNDECIDED}


def test_one_point_alone_says_nothing_of_scaling(tmp_path: Path) -> None:
    result = judged(tmp_path, HEADER, ONE, require=[require("scaling", "efficiency", ">= 0.1")])
    assert (result.comparisons, result.curves) == ((), ())
    assert [each.verdict for each in result.unanswered] == [Verdict.UNDECIDED]


def test_requirements_on_single_points(tmp_path: Path) -> None:
    rows = [{**row, "sequence_length": 128} for row in SIX]
    demanded = [
        require("scaling", "throughput", ">= 2200 tokens/s", nodes=2),
        require("scaling", "step_time", "<= 3 s", nodes=2),
    ]  # fmt: skip
    result = judged(tmp_path, *lines_of(rows), require=demanded)
    found = {each.quantity: each for each in result.figures[1]}
    assert (found["throughput"].value, found["throughput"].verdict) == (18 * 128, Verdict.PASS)
    assert (found["step_time"].value, found["step_time"].verdict) == (pytest.approx(64 / 18), Verdict.FAIL)
    (untold,) = judged(tmp_path, *lines_of(SIX), require=demanded[:1]).figures[1][:1]
    assert untold.verdict is Verdict.UNDECIDED
    assert "the table does not tell it in tokens/s" in untold.reason


def test_no_requirement_vanishes(tmp_path: Path) -> None:
    demanded = [
        require("scaling", "efficiency", ">= 0.1", nodes=16), require("scaling", "waiting", "<= 0.1"),
        require("scaling", "efficiency", ">= 0.1", layout="fsdp"), require("scaling", "efficiency", ">= 0.1"),
        require("scaling", "efficiency", ">= 0.1", nodes=1),
    ]  # fmt: skip
    result = judged(tmp_path, *lines_of(SIX), require=demanded)
    assert [each.reason.partition(": ")[2] for each in result.unanswered] == [
        "there is no point of 16 nodes", "a table of points does not tell it", "there is no point of layout fsdp",
        "there is nothing to compare it with, or it is the baseline itself",
    ]  # fmt: skip
    assert {each.verdict for each in result.unanswered} == {Verdict.UNDECIDED}
    with_layout = [{**row, "layout": "fsdp"} for row in SIX]
    result = judged(tmp_path, *lines_of(with_layout), require=demanded[2:3])
    assert (result.unanswered, between(result, "1 x 8", "2 x 8").judgements[1].verdict) == ((), Verdict.PASS)


def test_requirements_of_another_job_decide_nothing(tmp_path: Path) -> None:
    demanded = [require("scaling", "efficiency", ">= 0.1"), require("scaling", "step_time", "<= 1 h")]

    def verdicts(job: Workload) -> set[Verdict]:
        result = judged(tmp_path, *lines_of(SIX), require=demanded, workload=job)
        return {each.verdict for each in result.judgements if each.requirement}

    assert verdicts(JOB) == {Verdict.PASS}
    assert verdicts(replace(JOB, global_batch=128)) == {Verdict.UNDECIDED}


def test_more_devices_that_do_less_accuse_nobody(tmp_path: Path) -> None:
    found = between(judged(tmp_path, HEADER, ONE, "2,8,64,2"), "1 x 8", "2 x 8")
    (note,) = found.notes
    assert (note.level, note.evidence) == ("note", "0.2 times the work a second on 2 times the devices")
    assert note.check_next.startswith("how much each device computes in a step")


def test_a_bubble_is_explained_by_stages_and_microbatches(tmp_path: Path) -> None:
    found = between(judged(tmp_path, HEADER + ",pp,gas", ONE + ",4,32", TWO + ",4,16"), "1 x 8", "2 x 8")
    assert found.kind == "strong scaling"
    assert [note.evidence for note in found.notes] == [
        "by its shape alone a pipeline idles, 8.57 % of 4 stages with 32 microbatches and 15.8 % of 4 stages with 16 "
        "microbatches"
    ]


def test_beyond_four_sizes_there_is_an_envelope_and_below_none(tmp_path: Path) -> None:
    lines = [f"{nodes},8,64,{10 / (0.1 + 0.9 / nodes)}" for nodes in (1, 2, 4, 8)]
    (curve,) = judged(tmp_path, HEADER, *lines).curves
    assert curve.points == (0, 1, 2, 3)
    assert curve.envelope is not None
    assert curve.envelope.nodes == 16
    assert curve.envelope.low <= 0.1 + 0.9 / 16 <= curve.envelope.high
    noisy = [
        row for nodes in (1, 2, 4, 8)
        for row in runs(nodes, *(10 / (0.1 + 0.9 / nodes) * noise for noise in (0.8, 0.9, 1.0, 1.0, 1.1, 1.2)))
    ]  # fmt: skip
    (wider,) = judged(tmp_path, *lines_of(noisy)).curves
    assert wider.envelope is not None
    assert wider.envelope.low < curve.envelope.low < curve.envelope.high < wider.envelope.high
    (curve,) = judged(tmp_path, HEADER, *lines[:3]).curves
    assert curve.envelope is None
    assert curve.why_not.startswith("3 sizes were measured")


points_of_a_table = st.lists(
    st.builds(
        Point, nodes=st.sampled_from([None, 1, 2, 4]), devices=st.sampled_from([None, 8, 16]),
        global_batch=st.sampled_from([None, 8, 16]), sequence_length=st.sampled_from([None, 128]),
        microbatches=st.sampled_from([None, 2]),
        identity=st.dictionaries(st.sampled_from(["model", "hardware", "software", "pp"]), st.sampled_from("12")),
        work=st.sampled_from(["tokens", "samples", "steps", "epochs", "FLOP", "peaks"]),
        rates=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=7).map(tuple), times_to_train=st.just(()),
        samples_to_converge=st.just(()), sources=st.just(("points.csv:2",)),
    ).filter(lambda p: (p.nodes or p.devices) and (not p.nodes or not p.devices or p.devices % p.nodes == 0)),
    min_size=1, max_size=6,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(points_of_a_table)
def test_no_table_gives_an_efficiency_to_what_is_not_the_same_job(made: list[Point]) -> None:
    result = judge_points(made, [require("scaling", "efficiency", ">= 0.0001")])
    for each in result.comparisons:
        base, point = result.points[each.baseline], result.points[each.point]
        claimed = {j.quantity for j in each.judgements if j.verdict in (Verdict.MEASURED, Verdict.PASS, Verdict.FAIL)}
        if "efficiency" in claimed:
            assert each.kind == "strong scaling"
            assert base.identity == point.identity
            assert {"model", "hardware", "software"} <= base.identity.keys()
            assert base.global_batch == point.global_batch is not None
            assert base.sequence_length == point.sequence_length
            assert base.devices is not None
            assert point.devices is not None
            assert base.devices < point.devices
    assert len(result.figures) == len(result.order) == len(made)
    assert not [note for each in result.comparisons for note in each.notes if note.level == "suspect"]
