"""What one run of a command has left behind, checked: the lines of its ranks, their memory, their steps."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_clusterqual.errors import MeasurementError, NoStepsError, ReadError
from pytest_clusterqual.measure.command_steps import PROBE_LINES, losses_of, training_of, training_of_log, work_of
from pytest_clusterqual.model.command import OUTPUT, PROBES, CommandJob, CommandProcess
from pytest_clusterqual.model.log import TrainingLog
from pytest_clusterqual.model.memory import RankMemory
from pytest_clusterqual.model.probe import ProbedProcess
from pytest_clusterqual.model.training import RankTraining
from pytest_clusterqual.read.probe import probed_processes
from pytest_clusterqual.read.training_log import read_training_log
from pytest_clusterqual.session.command_launch import CommandRun

Probed = dict[int, tuple[ProbedProcess, ...]]
_PATTERN = "workload.log.pattern"


def probed(run: CommandRun, job: CommandJob) -> Probed:
    """Every rank's own lines.

    Raises:
        MeasurementError: there are none, not of every rank, or of another world.
    """
    folder = run.folder / PROBES
    size = len(run.places)
    if not folder.is_dir():
        raise MeasurementError(
            f"{job.name}: {folder}, the folder of its probes, is gone: the command has removed or renamed it; have it "
            "tidy up in {run} only"
        )
    if not any(folder.iterdir()):
        raise MeasurementError(
            f"{job.name}: the command wrote nothing through a probe, so nothing is known of its steps; write "
            f"{PROBE_LINES}, or have its log read with workload.log: {{}}"
        )
    found = probed_processes(folder)
    if missing := sorted(set(range(size)) - set(found)):
        raise MeasurementError(
            f"{job.name}: {len(found)} of {size} ranks wrote through a probe, rank {missing[0]} did not; make a "
            "Probe() in each of them"
        )
    for rank, processes in found.items():
        if rank >= size or processes[-1].start.world not in (0, run.processes[rank][-1].start.world):
            world = processes[-1].start.world
            raise MeasurementError(
                f"{job.name}: a probe wrote as rank {rank} of {world}, asked were {size} ranks; leave Probe's rank and "
                "WORLD_SIZE to torchrun"
            )
        if len(processes) != len(run.processes[rank]):
            raise MeasurementError(
                f"{job.name}: {len(processes)} processes wrote as rank {rank}, torchrun started "
                f"{len(run.processes[rank])}; make one Probe() in each rank, and none in its workers"
            )
    return found


def rank_memory(
    run: CommandRun, process: CommandProcess, told: Sequence[ProbedProcess], gpu_memory: int | None
) -> RankMemory:
    """What the process beside the rank saw of it on the host, or its probe `told` of its device.

    Raises:
        MeasurementError: what is needed of the device is not known.
    """
    start, end = process.start, process.end
    assert end is not None  # a run that came to its end has one of every rank
    losses = losses_of(told)
    if start.device == "cpu":
        limit, origin = _host_limit(run, process)
        return RankMemory(
            rank=start.rank, step_peaks=(end.host_peak,), reserved_peaks=(), device_used=end.host_peak, limit=limit,
            limit_from=origin, counted="resident set of the largest process of the rank", parts={}, losses=losses,
            data_digest=start.script,
        )  # fmt: skip
    peaks = [line.device_peak for each in told for line in each.lines if line.what == "end" and line.device_peak]
    if not peaks:
        raise MeasurementError(
            f"{process}: its probe tells no peak of its device, which nobody else knows; make a Probe(), and have "
            "torch use the device"
        )
    if gpu_memory is None:
        raise MeasurementError(f"{process}: it is not known how much memory its GPU has")
    return RankMemory(
        rank=start.rank, step_peaks=(max(peaks),), reserved_peaks=(), device_used=0, limit=gpu_memory,
        limit_from="total memory of the GPU", counted="what torch reserved of the device", parts={}, losses=losses,
        data_digest=start.script,
    )  # fmt: skip


def _host_limit(run: CommandRun, process: CommandProcess) -> tuple[int, str]:
    """This rank's share of the machine or of its control group, whichever is less, and in words where it is from."""
    start = process.start
    starts = [each.start for each in run.last]
    beside = sum(each.host == start.host for each in starts)
    share = start.machine_memory // beside
    if start.group_memory is not None:
        sharing = sum(each.group == start.group for each in starts)
        if start.group_memory // sharing < share:
            return start.group_memory // sharing, f"control group limit / {sharing} ranks under it"
    return share, f"MemTotal / {beside} ranks on this machine"


def logged(run: CommandRun, job: CommandJob) -> TrainingLog:
    """What one rank printed: the first whose output tells of the most steps, as Megatron-LM's last does.

    Raises:
        ReadError: no line of any rank tells of a step, or one cannot be read.
    """
    return next(iter(_logged_ranks(run, job).values()))


def _logged_ranks(run: CommandRun, job: CommandJob, *, each_once: bool = False) -> dict[int, TrainingLog]:
    """Those whose output tells of the most steps; with `each_once` a step that stands twice is refused."""
    found: dict[int, TrainingLog] = {}
    refused: list[NoStepsError] = []
    for rank in range(len(run.places)):
        output = run.folder / OUTPUT / f"rank{rank}.log"
        if not output.exists():
            continue  # it printed nothing
        try:
            found[rank] = read_training_log([output], job.pattern, key=_PATTERN, one_rank=each_once)
        except NoStepsError as error:
            refused.append(error)
    if not found:
        raise ReadError(
            f"{job.name}: none of {len(run.places)} ranks printed a step that can be read; "
            f"{refused[0] if refused else 'nothing was printed at all'}"
        )
    most = max(map(_lines_of_steps, found.values()))
    return {rank: log for rank, log in found.items() if _lines_of_steps(log) == most}


def _lines_of_steps(log: TrainingLog) -> int:
    return sum(1 + step.copies for attempt in log.attempts for step in attempt)


def trained(run: CommandRun, job: CommandJob, *, warmup: int) -> tuple[RankTraining, ...]:
    """The steps of each rank, or those that the log of one rank tells: of several that tell as many the slowest.

    Raises:
        MeasurementError: of some rank they are not known.
        ReadError: the log cannot be read, or a line is of no probe.
    """
    script = run.last[0].start.script
    if job.log:
        told = [
            training_of_log(log, job, rank=rank, warmup=warmup, script=script)
            for rank, log in _logged_ranks(run, job, each_once=True).items()
        ]
        return (max(told, key=lambda each: each.work_seconds),)
    processes = {rank: each[-1] for rank, each in probed(run, job).items()}
    work = work_of(job, processes.values())
    return tuple(
        training_of(rank, process, warmup=warmup, work=work, script=script)
        for rank, process in sorted(processes.items())
    )
