"""What was held when, and as what: on events made by hand, and on those of real steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rank_harness import DDP, FSDP, FSDP_AC, TINY, run_ranks

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.memory import RankMemory
from pytest_clusterqual.model.workload import ModelShape, Workload
from pytest_clusterqual.rank.memory import measure
from pytest_clusterqual.rank.memory_events import REPEATED, STEP, timeline

BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def event(name: str, start: int, end: int = 0, *, children: Any = ()) -> Any:
    return SimpleNamespace(
        name=name, start_time_ns=start, end_time_ns=end, children=list(children), tag=SimpleNamespace(name="TorchOp")
    )  # fmt: skip


def change(at: int, size: int, held: int, *, where: int = 0, device: str = "cpu") -> Any:
    fields = SimpleNamespace(
        ptr=where or at, alloc_size=size, total_allocated=held, device=SimpleNamespace(type=device)
    )  # fmt: skip
    return SimpleNamespace(
        name="[memory]", start_time_ns=at, end_time_ns=at, children=[], extra_fields=fields,
        tag=SimpleNamespace(name="Allocation"),
    )  # fmt: skip


def test_peaks_are_the_most_held_inside_each_step() -> None:
    seen = timeline([
        change(1, 100, 100),
        change(2, 900, 1000),  # before the steps: in no peak, for it is freed again
        change(3, -900, 100, where=2),
        event(STEP, 10, 20, children=[event("op", 11, 13, children=[change(12, 50, 150)]), change(14, -49, 101)]),
        change(25, 6, 107),
        event(STEP, 30, 40, children=[change(31, -100, 7)]),
    ], "cpu")  # fmt: skip
    assert seen.peaks() == (150, 107)
    assert seen.most == 1000


def test_a_step_without_any_allocation_still_holds_what_was_there() -> None:
    assert timeline([change(1, 100, 100), event(STEP, 10, 20), change(30, 5, 105)], "cpu").peaks() == (100,)


def test_no_events_are_no_measurement() -> None:
    with pytest.raises(MeasurementError, match="gave 1 steps and 0 memory events: memory cannot be counted here"):
        timeline([event(STEP, 1, 2), change(1, 4, 4, device="cuda")], "cpu")


def test_each_block_of_the_peak_has_a_name() -> None:
    seen = timeline([
        change(1, 1000, 1000),  # a parameter
        event(STEP, 10, 90, children=[
            change(11, 10, 1010),  # the forward pass keeps it
            event("aten::linear", 12, 13, children=[change(12, 20, 1030), change(13, -20, 1010, where=12)]),
            event("FSDP::all_gather", 14, 15, children=[change(14, 300, 1310)]),
            event(BACKWARD, 20, 40, children=[
                event(REPEATED, 21, 25, children=[change(22, 40, 1350)]),
                change(26, 500, 1850),  # a gradient
                change(27, 7, 1857),  # the peak
                change(30, -7, 1850, where=27),
            ]),
            change(41, -10, 1840, where=11),
            event("Optimizer.step#AdamW.step", 50, 60, children=[change(51, 10, 1850, where=11)]),
        ]),
    ], "cpu")  # fmt: skip
    # Where a block of the peak was freed lies another one at the end: the forward pass made the first.
    known = {"parameters": {1}, "gradients": {26}, "optimizer": {11}}
    assert seen.peaks() == (1857,)
    assert seen.parts(0, 1857, known) == {
        "parameters": 1000, "gradients": 500, "optimizer": 0, "activations": 10 + 40, "other": 300 + 7,
    }  # fmt: skip


def test_what_the_profiler_did_not_see_freed_is_no_activation() -> None:
    seen = timeline([change(1, 50, 50), event(STEP, 10, 20, children=[change(11, 80, 80)])], "cpu")
    assert seen.parts(0, 80, {"parameters": {1}}) == {"parameters": 50, "activations": 30, "other": 0}


def measured(folder: Path, ranks: int, layout: dict[str, Any], work: Workload = TINY) -> list[RankMemory]:
    answers = run_ranks(measure, folder, nodes=["a"] * ranks, workload=to_json(work), layout=layout, steps=3)
    return [from_json(RankMemory, answer) for answer in answers]


SELECTIVE = {"name": "ac", "activation_checkpointing": "selective"}
LAYOUTS = [
    DDP, FSDP, FSDP_AC, SELECTIVE, {"name": "tp", "tensor": 2}, {"name": "pp", "pipeline": 2},
    {"name": "cp", "context": 2, "fsdp": "full"},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=[str(layout["name"]) for layout in LAYOUTS])
def test_the_parts_of_every_rank_add_up_to_its_highest_peak(tmp_path: Path, layout: dict[str, Any]) -> None:
    for rank in measured(tmp_path, 2, layout):
        assert set(rank.parts) == {"parameters", "gradients", "optimizer", "activations", "other"}
        assert sum(rank.parts.values()) == max(rank.step_peaks)
        assert min(rank.parts.values()) >= 0
        assert rank.parts["activations"] > 0
        # Two moments a parameter, in the fullest step, which is not the first; beside them a counter each.
        moments = rank.parts["optimizer"] - 2 * rank.parts["parameters"]
        assert 0 <= moments < 0.01 * rank.parts["optimizer"]


@pytest.mark.slow
def test_parts_by_hand_on_one_rank(tmp_path: Path) -> None:
    (plain,) = measured(tmp_path, 1, DDP)
    (repeated,) = measured(tmp_path, 1, {"name": "ac", "activation_checkpointing": "full"})
    logits = TINY.microbatch * TINY.sequence_length * TINY.model.vocab * 4
    assert plain.parts["parameters"] == plain.parts["gradients"] == TINY.model.parameters * 4
    assert plain.parts["activations"] >= 2 * logits, "the logits and their logarithms, at least"
    assert repeated.parts["activations"] < plain.parts["activations"]
    # Exactly the parts that are no activation stay what they were.
    assert {n: repeated.parts[n] for n in ("parameters", "optimizer")} == {
        n: plain.parts[n] for n in ("parameters", "optimizer")
    }


@pytest.mark.slow
def test_what_a_repeated_forward_pass_makes_is_an_activation(tmp_path: Path) -> None:
    """The peak lies where the wide feed-forward of a layer is repeated in the backward pass."""
    wide = ModelShape(layers=4, hidden=64, heads=4, kv_heads=4, ffn=1024, vocab=256)
    work = replace(TINY, model=wide, sequence_length=64)
    (repeated,) = measured(tmp_path, 1, {"name": "ac", "activation_checkpointing": "full"}, work)
    one = work.microbatch * work.sequence_length * wide.ffn * 4
    assert repeated.parts["activations"] >= 3 * one, "gate, up, and their product, at least"
