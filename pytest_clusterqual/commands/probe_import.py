"""`clusterqual import probe`: the ledger of a training run, from what its own script wrote through a probe."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from pytest_clusterqual.judge.full_run.probe import Accounts, RankShare, account_rank
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.probe import ProbeLedger
from pytest_clusterqual.read.probe import ProbeFile, probe_files, probe_lines
from pytest_clusterqual.report.probe_table import probe_report

_ALONE = 64 * 2**20  # bytes: what one process has read before others are ready to help
_MOST = 32  # processes: each holds the steps of a rank
_Accounted = tuple[RankShare, list[str]]  # with what is to be told of its files


def import_probe(folder: Path, *, processes: int | None = None) -> ProbeLedger:
    """Every second of every rank in one state, and what is left for steps that count.

    Large folders are read by as many `processes` as there are cores, a rank each at a time.

    Raises:
        ClusterQualError: names the file and line that is of no probe, or the rank that contradicts itself.
    """
    torn: list[str] = []
    accounts = Accounts()
    for share, told in _accounted(probe_files(folder, torn.append), processes):
        accounts.take(share)
        torn += told
    ledger = accounts.ledger()
    return dataclasses.replace(ledger, warnings=(*torn, *ledger.warnings))


def _accounted(ranks: Mapping[int, tuple[ProbeFile, ...]], processes: int | None) -> Iterator[_Accounted]:
    size = sum(file.path.stat().st_size for files in ranks.values() for file in files)
    processes = processes or (1 if size < _ALONE else len(os.sched_getaffinity(0)))
    if (processes := min(processes, len(ranks), _MOST)) == 1:
        yield from (_account(rank, files) for rank, files in ranks.items())
        return
    # Not forked: who calls may have threads.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _leave_interrupts) as pool:
        begun: deque[Future[_Accounted]] = deque()
        try:
            for rank, files in ranks.items():
                begun.append(pool.submit(_account, rank, files))
                if len(begun) > 2 * processes:  # what is finished and not yet taken fills the memory
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _account(rank: int, files: tuple[ProbeFile, ...]) -> _Accounted:
    torn: list[str] = []
    return account_rank(rank, ((file.start, probe_lines(file, torn.append)) for file in files)), torn


def _leave_interrupts() -> None:
    """Ctrl-C is for the process that waits, which then ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def as_text(ledger: ProbeLedger, *, as_json: bool, width: int, color: bool) -> str:
    """A table, or all figures as JSON."""
    if as_json:
        return json.dumps({**to_json(ledger), "goodput": ledger.goodput}, indent=2)
    return probe_report(ledger, width=width, color=color)
