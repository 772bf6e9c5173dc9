"""Pipeline parallelism: stages of layers on different ranks, microbatches passed on from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.rank.clock import moment, seconds_between
from pytest_clusterqual.rank.meshes import Place

Loss = Callable[[Tensor, Tensor], Tensor]


class Pipeline:
    """Runs the microbatches of a step through the stages of this rank, as torch's schedules do it."""

    def __init__(
        self,
        place: Place,
        parts: Sequence[nn.Module],
        device: torch.device,
        *,
        tokens: Tensor,
        hidden: Tensor,
        microbatches: int,
        loss: Loss,
    ) -> None:
        """`parts` are the stages of this rank, in their order; `loss` gets logits and targets of one microbatch.

        `tokens` and `hidden` have the shape and type of what the first stage and the others are given of one
        microbatch.

        Raises:
            ClusterQualError: the schedule cannot be made with that many microbatches.
        """
        layout = place.layout
        self._first, self._last = place.stage == 0, place.stage == layout.pipeline - 1
        self._watch = StopWatch(device)
        self._stages = []
        for part, number in zip(parts, layout.stages_of(place.stage), strict=True):
            stage = PipelineStage(
                part, number, layout.stages, device, input_args=hidden if number else tokens,
                output_args=hidden, group=place.pipeline,
            )  # fmt: skip
            self._watch.follow(stage)
            self._stages.append(stage)
        # The loss is divided by us; torch would divide gradients after they are summed over copies.
        given: dict[str, Any] = {"n_microbatches": microbatches, "loss_fn": loss, "scale_grads": False}
        self._schedule: Any
        try:
            if layout.schedule == "interleaved":
                self._schedule = ScheduleInterleaved1F1B(self._stages, **given)
            else:
                made = ScheduleGPipe if layout.schedule == "gpipe" else Schedule1F1B
                self._schedule = made(self._stages[0], **given)
        except ValueError as error:
            raise ClusterQualError(
                f"layout {layout.name}: the {layout.schedule} schedule cannot be made for {microbatches} "
                f"microbatches a step: {error}"
            ) from None

    def run(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward and backward of all microbatches of a step, which lie one after the other in both."""
        given = [inputs] if self._first else []
        with self._watch.whole():
            self._schedule.step(*given, target=targets if self._last else None, return_outputs=False)

    @property
    def group(self) -> ProcessGroup:
        """Among whose ranks the stages exchange; another one of the same ranks may take its place."""
        group: ProcessGroup = self._stages[0].group
        return group

    @group.setter
    def group(self, group: ProcessGroup) -> None:
        for stage in self._stages:
            stage.group = group

    def times(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds that each step so far spent in the schedule, and of them computing stages of this rank."""
        return self._watch.times()


class StopWatch:
    """How long the stages of this rank compute. CUDA takes its own time: its events are read at the end."""

    def __init__(self, device: torch.device) -> None:
        self._moment = partial(moment, device)
        self._wholes: list[tuple[Any, Any]] = []
        self._computing: list[list[tuple[Any, Any]]] = []

    def follow(self, stage: Any) -> None:
        """Take the time of every forward and backward of the stage, waiting for other stages left out."""
        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(stage, name, self._timed(getattr(stage, name)))

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Take the time of a step."""
        self._computing.append([])
        start = self._moment()
        yield
        self._wholes.append((start, self._moment()))

    def times(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Seconds of each step, and of each step's computing."""
        wholes = tuple(starmap(seconds_between, self._wholes))
        return wholes, tuple(sum(starmap(seconds_between, spans)) for spans in self._computing)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._moment()
            answer = call(*args, **kwargs)
            self._computing[-1].append((start, self._moment()))
            return answer

        return timed
