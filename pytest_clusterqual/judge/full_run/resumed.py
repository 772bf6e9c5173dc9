"""Whether training that went on after a failure is the same training: the losses tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_clusterqual import units
from pytest_clusterqual.model.full_run import FullRun, FullRunMeasurement
from pytest_clusterqual.model.probe import ProbedProcess
from pytest_clusterqual.model.record import Finding, Interval, Judgement, Verdict

QUANTITY = "resumed_loss"
# The same ranks on CPU add in the same order, whatever the precision. Others do not, and then it counts how much a
# rounding shifts a mean over a whole batch; of a precision that is not known the most.
SAME = 1e-6
OTHERWISE = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
UNKNOWN = 1e-2
_NEAR = 20  # steps before and after the failure that are held against the run on one node
_APART = 10.0  # so many times further from it than before is another training


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    """Two losses of one step, and by what share of the larger one they may differ."""

    before: float
    after: float
    tolerance: float
    told: str

    @property
    def apart(self) -> float:
        return apart(self.before, self.after)


def apart(one: float, other: float) -> float:
    """The difference as a share of the larger one."""
    return abs(one - other) / max(abs(one), abs(other), 1e-12)


def judge_resumed(m: FullRunMeasurement) -> Judgement | None:
    """Hold every step that was done twice against itself, and the run against the undisturbed one beside it.

    None where nothing was done twice. A difference is an ERROR: what came after the failure is not the work that was
    to be measured. Of a command of the user's own it is told only, for its script decides what it restores.
    """
    pairs = [*_done_twice(m.run), *_beside(m)]
    if not pairs:
        return None
    worst = max(pairs, key=lambda pair: pair.apart / pair.tolerance)
    broken = worst.apart > worst.tolerance
    reason = f"{worst.told}, {worst.apart:.2g} of it apart"
    if broken:
        reason = f"resumed training is not the same training: {reason}, more than {worst.tolerance:g}"
    else:
        reason = f"the losses of {len(pairs)} steps after the failure are those that they must be: at worst {reason}"
    return Judgement(
        quantity=QUANTITY, label="", value=worst.apart, unit=units.RATIO,
        interval=Interval(low=worst.apart, high=worst.apart, kind="count"),
        verdict=Verdict.ERROR if broken and m.run.precision else Verdict.MEASURED, reason=reason,
        findings=(_suspect(reason),) if broken else (),
    )  # fmt: skip


def _done_twice(run: FullRun) -> Iterator[_Pair]:
    for rank in run.ranks:
        first: dict[int, tuple[float, int]] = {}
        for process in rank.processes:
            world = process.start.world
            for step, loss in _losses(process).items():
                if step not in first:
                    first[step] = (loss, world)
                    continue
                before, then = first[step]
                told = (
                    f"step {step} had loss {before:.7g} of {then} ranks, and {loss:.7g} of {world} when it came again"
                )
                yield _Pair(before=before, after=loss, tolerance=_tolerance(run, same=world == then), told=told)


def _beside(m: FullRunMeasurement) -> Iterator[_Pair]:
    """The steps after the failure against the run on one node: no further apart than those before it were."""
    if m.alone is None or m.run.failure is None:
        return
    since = m.run.failure.step
    here, there = _kept_losses(m.run), _kept_losses(m.alone)
    both = sorted(here.keys() & there.keys())
    before = [apart(here[step], there[step]) for step in both if since - _NEAR <= step < since]
    if not before:
        return
    tolerance = max(_tolerance(m.run, same=False), _APART * max(before))
    for step in both:
        if since <= step < since + _NEAR:
            told = f"step {step} has loss {here[step]:.7g}, and {there[step]:.7g} on one node"
            yield _Pair(before=there[step], after=here[step], tolerance=tolerance, told=told)


def _losses(process: ProbedProcess) -> dict[int, float]:
    return {line.step: line.value for line in process.lines if line.what == "loss" and line.value is not None}


def _kept_losses(run: FullRun) -> dict[int, float]:
    """Step -> its loss where it was done last; the mean over all ranks, so any rank tells it."""
    rank = max(run.ranks, key=lambda rank: len(rank.processes))
    return {step: loss for process in rank.processes for step, loss in _losses(process).items()}


def _tolerance(run: FullRun, *, same: bool) -> float:
    if same and run.conditions.device == "cpu" and run.precision:
        return SAME
    return OTHERWISE.get(run.precision, UNKNOWN)


def _suspect(reason: str) -> Finding:
    return Finding(
        suspect="checkpoint", kind="resumed training", evidence=reason,
        check_next="does the checkpoint hold the model, the optimizer, the place in the data and every random state; "
        "is what the storage gives back what was written?",
    )  # fmt: skip
