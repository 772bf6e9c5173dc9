"""The figures of the checkpoints of a full run: the worst save counts, and in it the slowest rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pytest_clusterqual import units
from pytest_clusterqual.judge.full_run.figures import CLOCK, Figure
from pytest_clusterqual.judge.full_run.saves import Part, Save, inflation
from pytest_clusterqual.judge.judgement import rank_name
from pytest_clusterqual.model.full_run import FullRun


def save_figures(run: FullRun, saves: Sequence[Save]) -> Iterator[tuple[str, Figure]]:
    """Quantity and figure of all that is known of the saves."""
    if not saves:
        return
    how, where = _how(run)
    worst = max(saves, key=lambda save: save.blocking)
    note = f"{how}, worst of {len(saves)}, step {worst.step}, {where}"
    yield "checkpoint_blocking", _seconds(worst.blocking, note, _per_rank(saves, lambda part: part.blocking, max))
    if complete := [(save.completion, save.step) for save in saves if save.completion is not None]:
        slowest, step = max(complete)
        note = f"worst of {len(complete)}, step {step}, {where}"
        yield "checkpoint_completion", _seconds(slowest, note, _per_rank(saves, lambda part: part.completion, max))
    yield from _rate(run, saves, where)
    if told := [(part.extra, part.rank) for save in saves for part in save.parts if part.extra is not None]:
        most, rank = max(told)
        per_rank = _per_rank(saves, lambda part: part.extra, max)
        yield (
            "checkpoint_memory",
            Figure(value=most, low=most, high=most, note=rank_name(run.conditions, rank), per_rank=per_rank),
        )
    if how == "sync":
        yield "checkpoint_inflation", Figure(value=0.0, low=0.0, high=0.0, note="no step runs beside a save")
    elif (found := inflation(run)) is not None and found.interval is not None:
        yield "checkpoint_inflation", Figure(
            value=found.value, low=found.interval.low, high=found.interval.high, steps=found.interval.samples,
            note=f"{found.beside} steps beside a save against {found.free} others",
        )  # fmt: skip


def _how(run: FullRun) -> tuple[str, str]:
    """The mode and the place of the checkpoints, in words."""
    if run.checkpoints is None:
        return "as the command does", "where it saves"
    return run.checkpoints.mode, f"in {run.checkpoints.folder}" if run.checkpoints.folder else "in the run folder"


def _rate(run: FullRun, saves: Sequence[Save], where: str) -> Iterator[tuple[str, Figure]]:
    """Of each save that rank counts for which all wait: the one with the most to write."""
    largest = [max(save.parts, key=lambda part: part.size or 0) for save in saves]
    found = [(rate, part, save.step) for save, part in zip(saves, largest, strict=True) if (rate := _rate_of(part))]
    if not found:
        return
    rate, part, step = min(found, key=lambda each: each[0])
    assert part.size is not None and part.completion is not None
    size = units.show(part.size, units.BYTES)
    yield (
        "checkpoint_rate",
        Figure(
            value=rate,
            low=part.size / (part.completion + CLOCK),
            high=part.size / max(part.completion - CLOCK, CLOCK),
            note=f"{size} of {rank_name(run.conditions, part.rank)}, worst of {len(found)}, step {step}, {where}",
            per_rank=_per_rank(saves, _rate_of, min),
        ),
    )


def _rate_of(part: Part) -> float | None:
    """Bytes a second, from the beginning of the save until the rank's part is complete."""
    return part.size / part.completion if part.size and part.completion else None


def _per_rank(
    saves: Sequence[Save], of: Callable[[Part], float | None], worst: Callable[[float, float], float]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in (part for save in saves for part in save.parts):
        if (value := of(part)) is not None:
            found[str(part.rank)] = worst(found.get(str(part.rank), value), value)
    return found


def _seconds(value: float, note: str, per_rank: dict[str, float]) -> Figure:
    return Figure(value=value, low=max(value - CLOCK, 0.0), high=value + CLOCK, note=note, per_rank=per_rank)
