"""The decision: does this exact training job need several nodes, and on what records does the answer rest?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# one-node: one node does the job, and more do not shorten it as asked · memory: it fits only on several ·
# performance: several nodes do it sooner, as asked, the full run included · replicas: one node does the job and
# what is wanted is more such work · peak-only: training steps scale, but what is left of a full run does not ·
# not-qualified: a criterion did not pass · undecided: something is missing
Outcome = Literal["one-node", "memory", "performance", "replicas", "peak-only", "not-qualified", "undecided"]
TITLES: dict[Outcome, str] = {
    "one-node": "one node suffices",
    "memory": "memory-driven scale-out",
    "performance": "performance-driven scale-out",
    "replicas": "replicas, not a cluster",
    "peak-only": "peak scales but the full run does not",
    "not-qualified": "not qualified",
    "undecided": "undecided",
}
Section = Literal["training identity", "parallelism", "single-node baseline", "multi-node candidate", "decision"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One statement of the worksheet. `records` are the lines of ``records.jsonl`` it rests on, counted from 1."""

    section: Section
    label: str
    text: str
    records: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """What was seen, and what to check first; a direction, no proof."""

    seen: str
    check_first: str
    records: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The worksheet of one run. `missing` is what an undecided one lacks, `why` one sentence."""

    outcome: Outcome
    why: str
    lines: tuple[Line, ...]
    missing: tuple[str, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
