"""Who or what is to be looked at when a run changes over time, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_clusterqual import units
from pytest_clusterqual.judge.full_run.frontier import Course
from pytest_clusterqual.judge.full_run.stages import BETWEEN, DATA, STEP
from pytest_clusterqual.judge.over_time.changes import Change
from pytest_clusterqual.judge.over_time.slow_ranks import SlowRank
from pytest_clusterqual.judge.over_time.stalls import Stalls
from pytest_clusterqual.model.record import Finding, Interval
from pytest_clusterqual.model.telemetry import NodeTelemetry

if TYPE_CHECKING:
    from pytest_clusterqual.judge.full_run.columns import Flags

_DOING = 0.7  # of what some steps take more than others: then it is one rank's
_EXPLAINED = 0.8  # of the stalls that a declared save or hook is met in
_COSTS, _LATE = 0.01, 0.03  # of the run, and of a step: less is worth a note
_EVERYWHERE = (
    "clocks and temperatures of the devices, another job on the same storage or network, a link that went down to a "
    "lower rate"
)
_NEXT = {
    BETWEEN: "what only this rank does between steps: logging, saving, evaluating",
    DATA: "how it reads its data: storage, cache and loader of that node",
    STEP: "what it computes with: cores, clock, power and temperature of its device, other work on its host",
}


class Suspects:
    """Findings on one run."""

    def __init__(self, course: Course, telemetry: Sequence[NodeTelemetry]) -> None:
        self._course = course
        self._nodes = {rank.rank: rank.node for rank in course.ranks}
        self._telemetry = {node.node: node for node in telemetry}

    def drift(self, drift: float, interval: Interval) -> Finding:
        low, high = sorted(map(abs, (interval.low, interval.high)))
        return Finding(
            suspect=self._whole, kind="drift", level="suspect" if drift > 0 else "note",
            interval=_as_ratio(interval),
            evidence=f"over {len(self._course.numbers)} steps their time has {'grown' if drift > 0 else 'shrunk'} by "
            f"{units.show_share(abs(drift))} [{units.show_share(low)}, {units.show_share(high)}], little by little"
            f"{self._throttled(list(self._telemetry))}",
            check_next="what grows with the run: memory and its fragmentation, caches, files, logs; clocks and "
            "temperatures of the devices",
        )  # fmt: skip

    def change(self, change: Change) -> Finding:
        import numpy as np

        course = self._course
        inside = np.zeros(len(course.numbers), dtype=np.bool_)
        inside[change.begin : change.end] = True
        first, last = course.numbers[change.begin], course.numbers[change.end - 1]
        when = f"from step {first} on" if change.for_good else f"from step {first} to {last}"
        before = np.zeros_like(inside)
        before[change.before : change.begin] = True
        blamed, stage, because = self._carrier(inside, before)
        following = _NEXT.get(stage, _NEXT[STEP]) if stage else _EVERYWHERE
        slower = change.ratio > 1
        within = f"[{change.interval.low:.3g}, {change.interval.high:.3g}]"
        nodes = [self._nodes[blamed]] if blamed is not None else list(self._telemetry)
        return Finding(
            suspect=self._whole if blamed is None else self._name(blamed), kind="change", interval=change.interval,
            level="suspect" if slower else "note",
            evidence=f"{when} a step takes {change.ratio:.3g} x {within} the time of those before{because}"
            f"{self._throttled(nodes, inside)}",
            check_next=f"what happened {self._moment(change.begin)}: {following}",
        )  # fmt: skip

    def stall(self, found: Stalls) -> Finding:
        import numpy as np

        course = self._course
        inside = np.zeros(len(course.numbers), dtype=np.bool_)
        inside[found.steps] = True
        every = f"{found.period:g} steps" if found.unit == "steps" else units.show(found.period, units.SECONDS)
        cost = found.excess * len(found.steps) / float(course.seconds.sum())
        blamed, _stage, because = self._carrier(inside, ~inside)
        known = self._declared(inside)
        told = f"; each of them with {known}" if known else because
        return Finding(
            suspect=self._whole if blamed is None or known else self._name(blamed), kind="periodic stall",
            level="note" if known or cost < _COSTS else "suspect",
            evidence=f"every {every} a step takes {units.show(found.excess, units.SECONDS)} longer, {len(found.steps)} "
            f"times, {units.show_share(cost)} of the time of all steps{told}",
            check_next=f"whether {known} may cost that much" if known else "what runs every so often: garbage "
            "collection, logging, a loader that opens its next file, daemons and monitors on the hosts",
        )  # fmt: skip

    def slow(self, found: Sequence[SlowRank]) -> Iterator[Finding]:
        """A finding a rank, or one for all ranks of a node that are late at the same stage."""
        by_node: dict[tuple[str, str], list[SlowRank]] = {}
        for rank in found:
            by_node.setdefault((rank.node, rank.stage), []).append(rank)
        for (node, stage), ranks in by_node.items():
            whole = len(ranks) == list(self._nodes.values()).count(node) > 1
            for group in [ranks] if whole else [[rank] for rank in ranks]:
                yield self._slow(node if whole else self._name(group[0].rank), stage, group)

    def _slow(self, suspect: str, stage: str, ranks: Sequence[SlowRank]) -> Finding:
        worst = max(ranks, key=lambda rank: rank.late.low)
        low, high = units.show_share(worst.late.low), units.show_share(worst.late.high)
        which = "all its ranks" if len(ranks) > 1 else "it"
        return Finding(
            suspect=suspect, kind="slow rank" if len(ranks) == 1 else "slow node", interval=_as_ratio(worst.late),
            level="suspect" if worst.late.low >= _LATE else "note",
            evidence=f"{which} reached the end of {stage!r} later than the others in {worst.count} of {worst.groups} "
            f"parts of the run, by [{low}, {high}] of a step, and was the last there in "
            f"{units.show_share(sum(rank.carried for rank in ranks))} of the steps"
            f"{self._throttled([worst.node])}",
            check_next=_NEXT.get(stage, _NEXT[STEP]),
        )  # fmt: skip

    @property
    def _whole(self) -> str:
        first = next(iter(self._nodes))
        return "all ranks" if len(self._nodes) > 1 else self._name(first) if self._nodes[first] else "the run"

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._nodes[rank]}" if self._nodes[rank] else f"rank {rank}"

    def _carrier(self, inside: Flags, others: Flags) -> tuple[int | None, str, str]:
        """The rank whose doing is most of what these steps take more than the others, the stage, and both in words.

        At the end of a step ranks have met, and who is the last there by some microseconds says nothing.
        """
        import numpy as np

        course = self._course
        change = course.increments[:, inside].mean(axis=1) - course.increments[:, others].mean(axis=1)
        stage = 1 + int(np.argmax(np.abs(change[1:])))
        name = course.stages[stage]
        where = f", most of it in {name!r}" if len(self._nodes) > 1 else ""
        if len(self._nodes) < 2 or name == STEP:
            return None, "", where
        mine = course.increments[stage] * (course.carrier[stage] == np.array(list(self._nodes))[:, None])
        shares = (mine[:, inside].mean(axis=1) - mine[:, others].mean(axis=1)) / change[stage]
        rank = list(self._nodes)[int(np.argmax(shares))]
        if shares.max() < _DOING:
            return None, "", where
        last = units.show_share(float((course.carrier[stage, inside] == rank).mean()))
        return rank, name, f"{where}, where this rank is the last in {last} of them"

    def _declared(self, inside: Flags) -> str:
        """The save or hook that these steps are with, or come right after, and most others are not."""
        import numpy as np

        for name, met in self._course.beside.items():
            near = met | np.concatenate([[False], met[:-1]])
            if near[inside].mean() >= _EXPLAINED and near[~inside].mean() <= 1 - _EXPLAINED:
                return f"the {name}" if name.startswith("hook ") else f"a {name}"
        return ""

    def _moment(self, step: int) -> str:
        passed = float(self._course.at[step] - self._course.at[0])
        return f"{units.show(passed, units.SECONDS)} after the first step"

    def _throttled(self, nodes: Sequence[str], inside: Flags | None = None) -> str:
        """What slowed the devices of these nodes down, in those steps if that is known."""
        told = []
        for node in nodes:
            seen = self._telemetry.get(node)
            for device, reasons in (seen.throttled if seen else {}).items():
                spells = seen.spells.get(device) if seen else None
                if inside is None or spells is None or self._meets(node, spells, inside):
                    told.append(f"{device} of {node} was throttled ({', '.join(reasons)})")
        return f"; meanwhile {', '.join(told)}" if told else ""

    def _meets(self, node: str, spells: Sequence[tuple[float, float]], inside: Flags) -> bool:
        """Whether one of these times, by the node's clock, lies within those steps."""
        numbers = self._course.numbers[inside]
        rank = next(rank for rank in self._course.ranks if rank.node == node)
        there = (rank.parts >= numbers[0] // self._course.size) & (rank.parts <= numbers[-1] // self._course.size)
        at = rank.at[there]
        return bool(len(at)) and any(begin <= at[-1] and end >= at[0] for begin, end in spells)


def _as_ratio(share: Interval) -> Interval:
    return Interval(
        low=1 + share.low, high=1 + share.high, kind=share.kind, level=share.level, samples=share.samples
    )  # fmt: skip
