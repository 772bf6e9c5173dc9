"""The fixed work, timed step by step, on one number of nodes or on several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.fabric import RankLadder


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """Where a mixture of experts sent the tokens of all steps, warm-up included, on all ranks of the job.

    `tokens[l][e]` went to expert e of layer l; each token counts `top_k` times in a layer. `degree` is the
    number of ranks that the experts of a layer are spread over.
    """

    degree: int
    top_k: int
    tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineTimes:
    """The pipeline of a rank: `seconds[i]` of step i in its schedule, of which its stages were `computing`.

    `stages` are the ranks of the pipeline, each with `stages_per_rank`.
    """

    schedule: str
    stages: int
    stages_per_rank: int
    microbatches: int
    seconds: tuple[float, ...]
    computing: tuple[float, ...]


Unknown = Literal["losses", "data", "work", "ranks", "inside"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTraining:
    """Training steps on one rank, warm-up first: all steps are kept, the judge cuts.

    `step_seconds` is the wall time of each optimizer step, data included; `data_seconds` the part
    spent waiting for data; `tokens_per_step` and `sequences_per_step` are global, 0 where they are not known.
    `work_seconds` spans the fixed work's steps. `otherwise` says what of the layout was done by other means than
    torch's own, or how the figures were had.

    `unknown` is what could not be had of the job: its losses, its waiting for data, its work per step (neither tokens
    nor sequences), the steps of other ranks than 0, what happens inside a step. What is unknown is empty, or 0.
    """

    rank: int
    warmup_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    data_seconds: tuple[float, ...]
    work_seconds: float
    tokens_per_step: int
    losses: tuple[float, ...]
    data_digest: str
    routing: Routing | None = None
    pipeline: PipelineTimes | None = None
    otherwise: tuple[str, ...] = ()
    sequences_per_step: int = 0
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRun:
    """The fixed work done once on `conditions.nodes` nodes, in a process group of its own.

    Runs of one `launch` had the same processes.
    """

    conditions: Conditions
    ranks: tuple[RankTraining, ...]
    launch: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingMeasurement:
    """Runs in the order they were made: baseline and candidates interleaved.

    `apart` is the step on the most nodes taken apart, a round each with the result of every rank;
    `not_apart` says why it could not be. Without a barrier rung, that one is empty.
    """

    conditions: Conditions
    runs: tuple[ScalingRun, ...]
    started: float
    seconds: float
    apart: tuple[tuple[RankLadder, ...], ...] = ()
    not_apart: str = ""
