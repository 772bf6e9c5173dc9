"""Scaling points that somebody else measured: what a table tells of each, and what is said of two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.projection import Envelope
from pytest_clusterqual.model.record import Finding, Judgement

# What a rate counts. A peak is what one device could compute at most: a share of it times the devices.
Work = Literal["tokens", "samples", "steps", "epochs", "FLOP", "peaks"]
Kind = Literal[
    "strong scaling",  # the same job, and the same global batch, on more devices of the same nodes
    "weak scaling",  # the same batch for each device, so more work a step on more devices
    "other topology",  # the same job on other nodes x devices
    "same devices",  # what differs is how, not on how many
    "another regime",  # the job, the batch, the hardware or the versions differ
    "undecided",  # the table does not tell enough
]

# The columns that must be there to say of two points that they are the same job, by what they tell.
EVIDENCE: dict[str, re.Pattern[str]] = {
    "hardware": re.compile(r"system|hardware|device|gpu|accelerator|cluster|machine|platform"),
    "model": re.compile(r"model|parameters|params|size|model_size|network|benchmark"),
    "versions": re.compile(
        r"versions?|software|container|image|release|commit|framework|(?:py)?torch|nccl|rccl|cuda|rocm|driver|jax"
        r"|.+_(?:version|commit)"
    ),
}
PIPELINE = ("pipeline", "pipeline_stages", "pp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """All runs under the same conditions, one figure a run. None or empty where the table is silent.

    `rates` count `work` a second, of all devices together; `times_to_train` are seconds. `global_batch`
    is samples for an optimizer step, `microbatches` how many of them come one after the other on a
    device. `identity` holds every other column. `sources` are file and line of each run.
    """

    nodes: int | None
    devices: int | None
    global_batch: int | None
    sequence_length: int | None
    microbatches: int | None
    identity: dict[str, str]
    work: Work | None
    rates: tuple[float, ...]
    times_to_train: tuple[float, ...]
    samples_to_converge: tuple[float, ...]
    sources: tuple[str, ...]

    @property
    def devices_per_node(self) -> int | None:
        return self.devices // self.nodes if self.devices and self.nodes else None

    @property
    def label(self) -> str:
        """``4 x 8``: nodes x devices on each."""
        if self.nodes is None:
            return f"{self.devices} device{'s' * (self.devices != 1)}"
        if self.devices is None:
            return f"{self.nodes} node{'s' * (self.nodes != 1)}"
        return f"{self.nodes} x {self.devices_per_node}"

    def pipeline(self) -> int | None:
        """The stages of its pipeline."""
        told = next((self.identity[name] for name in PIPELINE if name in self.identity), "")
        return int(told) if told.isdecimal() and int(told) > 0 else None

    def scale(self, work: Work) -> float | None:
        """What its rates are multiplied with to count `work`; None where that is not known."""
        if self.work is None:
            return None
        return converted(self.work, work, global_batch=self.global_batch, sequence_length=self.sequence_length)


def converted(work: Work, into: Work, *, global_batch: int | None, sequence_length: int | None) -> float | None:
    """How many of `into` are in one of `work`; None where that is not known."""
    in_samples: dict[Work, float | None] = {
        "samples": 1.0,
        "tokens": 1 / sequence_length if sequence_length else None,
        "steps": float(global_batch) if global_batch else None,
    }
    if work == into:
        return 1.0
    one, other = in_samples.get(work), in_samples.get(into)
    return one / other if one and other else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What may be said of `point` beside `baseline`, places in the list of points.

    `would_be` is what an undecided one is if all that is `missing` in the table is the same.
    """

    baseline: int
    point: int
    kind: Kind
    why: str
    would_be: Kind | None = None
    differences: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Points of one job on growing numbers of nodes, baseline first, and what may be said beyond them.

    The envelope is of the time of fixed work, that on the baseline being 1; without one, `why_not` says why.
    """

    points: tuple[int, ...]
    envelope: Envelope | None
    why_not: str


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedPoints:
    """`figures[i]` are those of point i by itself; `unanswered` what is required and no point answers.

    `order` are the places of the points as they are best read: those of one identity together, smallest first.
    """

    points: tuple[Point, ...]
    order: tuple[int, ...]
    figures: tuple[tuple[Judgement, ...], ...]
    comparisons: tuple[Comparison, ...]
    curves: tuple[Curve, ...]
    unanswered: tuple[Judgement, ...] = ()

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        compared = [judgement for comparison in self.comparisons for judgement in comparison.judgements]
        return (*(judgement for figures in self.figures for judgement in figures), *compared, *self.unanswered)
