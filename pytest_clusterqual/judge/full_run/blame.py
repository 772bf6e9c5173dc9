"""Who was hurt, by what the ranks wrote down, and who only noticed: torchrun names whoever reports first."""

from __future__ import annotations

from pytest_clusterqual.judge.full_run.outages import attempt_of, moments, noticed_at, struck
from pytest_clusterqual.judge.judgement import rank_name
from pytest_clusterqual.model.full_run import FullRun
from pytest_clusterqual.model.record import Finding

_CHECK = {
    "kill_rank": "what a real death costs beside this: whoever watches the job must see it, too",
    "hang_rank": "full_run.hang_timeout: every hang costs that much; it must be above the longest step",
    "raise_rank": "what a real error costs beside this: the time until somebody reads it",
    "fail_save": "with an asynchronous save the steps up to the next look at it are lost as well",
    "kill_node": "this package has launched again, at once: how long does it take until a lost node is replaced?",
    "sigterm": "is the time that the scheduler gives (30 s with torchrun) enough for the save?",
}


def failure_note(run: FullRun) -> Finding | None:
    """One note on the failure that was planned; None where nothing was to fail.

    Raises:
        MeasurementError: it did not happen, or more often than once.
    """
    victims = struck(run)
    if run.failure is None or not victims:
        return None
    return Finding(
        suspect=_suspects(run, sorted(victims)), kind="failure on purpose",
        evidence=f"{run.failure.told}; {_noticed(run, victims)}", check_next=_CHECK[run.failure.kind], level="note",
    )  # fmt: skip


def _suspects(run: FullRun, ranks: list[int]) -> str:
    """Those that were hurt, in few words."""
    assert run.failure is not None
    nodes = run.conditions.rank_nodes
    if run.failure.kind == "kill_node" and len(nodes) > ranks[0]:
        return nodes[ranks[0]]
    return "the job" if run.failure.kind == "sigterm" else rank_name(run.conditions, ranks[0])


def _noticed(run: FullRun, victims: dict[int, tuple[int, float]]) -> str:
    number = attempt_of(victims)
    seen = {clock: moment for clock, moment in moments(run).items() if moment.noticed}
    others = []
    for rank in run.ranks:
        if rank.rank not in victims and len(rank.processes) > number:
            process = rank.processes[number]
            at, moment = noticed_at(process), seen.get(process.start.clock)
            if at is not None and moment is not None:
                errors = [line.error for line in process.lines if line.error]
                others.append((at - moment.struck, rank.rank, errors[-1]))
    if others:
        seconds, first, error = min(others)
        return f"the first to notice was {rank_name(run.conditions, first)}, {seconds:.3g} s later, by {error}"
    return "those who were hit knew by themselves" if seen else "nobody wrote down that it noticed"
