"""From what a command wrote of itself to the steps of a measurement: through its probe, or in its own log."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.full_run.logged import step_samples, work_of_step
from pytest_clusterqual.model.command import CommandJob
from pytest_clusterqual.model.log import TrainingLog
from pytest_clusterqual.model.probe import Line, ProbedProcess
from pytest_clusterqual.model.training import RankTraining, Unknown

# What a script declares to be no part of its steps; in a step's time all else counts that lies between two of them.
_APART = ("save", "load", "compile", "hook")
_DIVERGED = (
    "the loss of step {step} is no finite number: the training diverged and is not the work to be judged; look at its "
    "learning rate, precision and data"
)
PROBE_LINES = "with probe.step(tokens=...): around each optimizer step, see docs/own-job.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one step does on all ranks together; 0 where it is not known."""

    tokens: int = 0
    sequences: int = 0

    @property
    def known(self) -> bool:
        return bool(self.tokens or self.sequences)


def work_of(job: CommandJob, processes: Iterable[ProbedProcess]) -> Work:
    """As the lines tell it, else as the file does.

    Steps that differ in it, as those of packed sequences do, have no work that is one number.

    Raises:
        MeasurementError: lines and file contradict each other.
    """
    steps = [line for process in processes for line in process.lines if _is_step(line)]
    told = {
        unit: {getattr(line, unit) for line in steps if getattr(line, unit) is not None}
        for unit in ("tokens", "sequences")
    }
    file = {"tokens": job.tokens_per_step, "sequences": job.sequences_per_step}
    found = {}
    for unit, counts in told.items():
        if len(counts) == 1 and file[unit] not in (None, *counts):
            raise MeasurementError(
                f"{job.name}: its lines tell {counts.pop()} {unit} a step, workload.{unit}_per_step is {file[unit]}: "
                "one of them is wrong; both are of the whole job, over all ranks"
            )
        found[unit] = 0 if len(counts) > 1 else next(iter(counts), file[unit]) or 0
    return Work(**found)


def training_of(rank: int, process: ProbedProcess, *, warmup: int, work: Work, script: str) -> RankTraining:
    """The steps of one process, the first `warmup` of them apart.

    A step lasts from the end of the one before; the first from where its data were asked for. What the script declares
    as something else is left out.

    Raises:
        MeasurementError: too few steps are left, one is told twice, or a loss is no finite number.
    """
    _check_numbers(rank, process)
    steps, waits = _timed(process.lines)
    if len(steps) <= warmup:
        raise MeasurementError(
            f"rank {rank} did {len(steps)} steps, want more than the {warmup} of scaling.warmup_steps"
            + ("" if steps else f": its probe tells of none; write {PROBE_LINES}")
        )
    check_losses(rank, process)
    losses = losses_of([process])
    known = len(losses) == len(steps)
    has_data = any(line.what == "data" for line in process.lines)
    told: dict[Unknown, bool] = {"losses": known, "data": has_data, "work": work.known, "inside": False}
    return RankTraining(
        rank=rank, warmup_seconds=tuple(steps[:warmup]), step_seconds=tuple(steps[warmup:]),
        data_seconds=tuple(waits[warmup:]) if has_data else (), work_seconds=sum(steps[warmup:]),
        tokens_per_step=work.tokens, sequences_per_step=work.sequences, losses=losses if known else (),
        data_digest=script, unknown=tuple(what for what, is_told in told.items() if not is_told),
        otherwise=("as the command's own probe tells, without the checkpoints and hooks that it declares",),
    )  # fmt: skip


def _timed(lines: Sequence[Line]) -> tuple[list[float], list[float]]:
    """Seconds of each step that ended well, and those of them spent waiting for data."""
    seconds, waits = [], []
    since: float | None = None
    apart = wait = 0.0
    for line in lines:
        if line.background or line.error:
            continue
        if line.what in _APART:  # also inside a step, as a Trainer's callbacks have it
            apart += line.seconds if line.own is None else line.own
        elif line.what == "data":
            wait += line.seconds
            since = line.at if since is None else since
        elif line.what == "step":
            since = line.at if since is None else min(since, line.at)
            end = line.at + line.seconds
            seconds.append(max(end - since - apart, 0.0))
            waits.append(wait)
            since, apart, wait = end, 0.0, 0.0
        if since is None and not line.nested:
            apart = 0.0  # before the first step everything is start-up
    return seconds, waits


def training_of_log(log: TrainingLog, job: CommandJob, *, warmup: int, script: str, rank: int = 0) -> RankTraining:
    """The steps of the rank that logs, as the log tells their times: and of a line for several their mean.

    Raises:
        MeasurementError: the log tells no time of a step, or too few steps, or a loss that is no finite number, or
            other work of a step than the file.
    """
    check_logged_losses(log, job.name)
    tokens = work_of_step(log, "tokens", job.tokens_per_step, key=f"{job.name}: workload.tokens_per_step")
    sequences = work_of_step(log, "sequences", job.sequences_per_step, key=f"{job.name}: workload.sequences_per_step")
    attempts = step_samples(log, tokens)
    if len(attempts) != 1:
        place = min(log.attempts[1], key=lambda step: step.place.line).place
        raise MeasurementError(
            f"{job.name}: the log tells of {len(attempts)} attempts of a run in which nothing failed: at "
            f"{place.file}:{place.line} its steps go back; have them count on, over epochs too"
        )
    times = list(itertools.chain.from_iterable([sample.seconds] * sample.over for sample in attempts[0]))
    if len(times) <= warmup:
        raise MeasurementError(
            f"{job.name}: the log tells the time of {len(times)} steps, want more than the {warmup} of "
            f"scaling.warmup_steps; or write {PROBE_LINES}"
        )
    work = Work(tokens=round(tokens or 0), sequences=round(sequences or 0))
    steady = times[warmup:]
    unknown: tuple[Unknown, ...] = ("losses", "data", *(() if work.known else ("work",)), "ranks", "inside")
    return RankTraining(
        rank=rank, warmup_seconds=tuple(times[:warmup]), step_seconds=tuple(steady), data_seconds=(),
        work_seconds=sum(steady), tokens_per_step=work.tokens, sequences_per_step=work.sequences, losses=(),
        data_digest=script, unknown=unknown, otherwise=(f"as the log of rank {rank} tells them ({log.family})",),
    )  # fmt: skip


def _check_numbers(rank: int, process: ProbedProcess) -> None:
    """A step that is a microbatch is not the work that the file tells of."""
    done: set[int | None] = set()
    for line in process.lines:
        if line.what == "resumed":
            done.clear()
        elif line.what == "step" and not line.error and not line.background:
            if line.step in done:
                raise MeasurementError(
                    f"rank {rank} did step {line.step} more than once and had not called resumed(): number each "
                    "optimizer step once, not each microbatch and not anew in each epoch"
                )
            done.add(line.step)


def check_losses(rank: int, process: ProbedProcess) -> None:
    """Raises MeasurementError where training diverged: what it took then is no time of the work."""
    for line in process.lines:
        # What is no finite number comes through a probe as none at all.
        if line.what == "loss" and (line.value is None or not math.isfinite(line.value)):
            raise MeasurementError(f"rank {rank}: {_DIVERGED.format(step=line.step)}")


def check_logged_losses(log: TrainingLog, name: str) -> None:
    """As `check_losses`; steps that the trainer itself has skipped have none."""
    for step in itertools.chain.from_iterable(log.attempts):
        if step.loss is not None and not math.isfinite(step.loss) and step.skipped < step.over:
            where = f"{step.place.file}:{step.place.line}"
            raise MeasurementError(f"{name}: {where}: {_DIVERGED.format(step=step.step)}")


def losses_of(processes: Iterable[ProbedProcess]) -> tuple[float, ...]:
    """Those that a rank told, in their order."""
    marks = (line for process in processes for line in process.lines if line.what == "loss")
    return tuple(float("nan") if line.value is None else line.value for line in marks)


def steps_of(processes: Iterable[ProbedProcess]) -> set[int]:
    """The numbers of the steps that a rank has done."""
    return {line.step for process in processes for line in process.lines if _is_step(line)}


def _is_step(line: Line) -> bool:
    return line.what == "step" and not line.error and not line.background
