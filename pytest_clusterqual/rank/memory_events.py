"""What was held when, and as what: the allocations that torch's profiler saw in one kind of device memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.profiler import record_function

from pytest_clusterqual.errors import MeasurementError

STEP, REPEATED = "clusterqual.step", "clusterqual.repeated_forward"
# Who makes what is no activation: the backward pass, the optimizer, FSDP when it gathers and reduces, collectives.
_OTHERS = ("autograd::engine::evaluate_function", "Optimizer.", "FSDP::", "c10d::")


@dataclass(frozen=True, slots=True)
class Change:
    """`size` bytes were taken at address `where`, or given back where it is negative; `held` is the total after it.

    `forward`: by a forward pass, be it one that activation checkpointing repeats.
    """

    at: int
    where: int
    size: int
    held: int
    forward: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """All changes in order, and begin and end of each step, in nanoseconds."""

    steps: tuple[tuple[int, int], ...]
    changes: tuple[Change, ...]

    @property
    def most(self) -> int:
        """The most bytes held at any moment, inside steps or not."""
        return max(change.held for change in self.changes)

    def peaks(self) -> tuple[int, ...]:
        """The most bytes held at any moment of each step."""
        return tuple(self.changes[self._fullest(step)].held for step in self.steps)

    def parts(self, step: int, peak: int, known: Mapping[str, set[int]]) -> dict[str, int]:
        """What `peak`, the most held in one step, is made of; the parts add up to it.

        `known` are the addresses, by name, of what is still there when the step ends. A block that is there
        from the peak until then has that name. Any other one is an activation if a forward pass made it.
        `other` is all else, blocks that the profiler could not follow included.
        """
        start, end = self.steps[step]
        top = self._fullest((start, end))
        blocks: dict[int, Change] = {}
        for change in self.changes[: top + 1]:
            _apply(blocks, change)
        gone = {change.where for change in self.changes[top + 1 :] if change.at <= end}
        found = dict.fromkeys((*known, "activations"), 0)
        for where, block in blocks.items():
            name = next((name for name, places in known.items() if where in places and where not in gone), "")
            if name or block.forward:
                found[name or "activations"] += block.size
        # A thread that the profiler does not follow may have freed some: the total knows it.
        found["activations"] = min(found["activations"], peak - sum(found[name] for name in known))
        return {**found, "other": peak - sum(found.values())}

    def _fullest(self, step: tuple[int, int]) -> int:
        """The index of the change after which most was held in a step; what is held when it begins counts."""
        start, end = step
        first = 0
        for index, change in enumerate(self.changes):
            if change.at > end:
                break
            if change.at < start or change.held > self.changes[first].held:
                first = index
        return first


def _apply(blocks: dict[int, Change], change: Change) -> None:
    if change.size > 0:
        blocks[change.where] = change
    else:
        blocks.pop(change.where, None)


def timeline(events: Any, device: str) -> Timeline:
    """Read the profiler's event tree; `device` is a kind, such as ``cpu``.

    Raises:
        MeasurementError: the tree holds no step or no allocation there.
    """
    steps: list[tuple[int, int]] = []
    changes: list[Change] = []
    for event, forward in _walk(events):
        if event.name == STEP:
            steps.append((event.start_time_ns, event.end_time_ns))
        elif event.tag.name == "Allocation" and event.extra_fields.device.type == device:
            fields = event.extra_fields
            changes.append(
                Change(event.start_time_ns, fields.ptr, fields.alloc_size, fields.total_allocated, forward)
            )  # fmt: skip
    if not steps or not changes:
        raise MeasurementError(
            f"torch's profiler gave {len(steps)} steps and {len(changes)} memory events: memory cannot be counted here"
        )
    changes.sort(key=lambda change: change.at)  # a stable sort: equal times keep the profiler's order
    return Timeline(tuple(sorted(steps)), tuple(changes))


def _walk(events: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
    """Each event, and whether the nearest marked one around it is a forward pass."""
    waiting = [(event, False) for event in reversed(events)]
    while waiting:
        event, forward = waiting.pop()
        yield event, forward
        if event.name in (STEP, REPEATED):
            forward = True
        elif event.name.startswith(_OTHERS):
            forward = False
        waiting.extend((child, forward) for child in reversed(event.children))


def mark_repeated(model: nn.Module) -> None:
    """Have the profiler see where a forward pass is repeated for its gradients: that is inside the backward pass."""
    for wrapper in model.modules():
        if isinstance(wrapper, CheckpointWrapper):
            inside = wrapper._checkpoint_wrapped_module
            marks: list[AbstractContextManager[Any]] = []
            inside.register_forward_pre_hook(_enter(marks), prepend=True)
            inside.register_forward_hook(_leave(marks), always_call=True)


def _enter(marks: list[AbstractContextManager[Any]]) -> Any:
    def enter(*_: Any) -> None:
        marks.append(record_function(REPEATED))
        marks[-1].__enter__()

    return enter


def _leave(marks: list[AbstractContextManager[Any]]) -> Any:
    def leave(*_: Any) -> None:
        marks.pop().__exit__(None, None, None)

    return leave
