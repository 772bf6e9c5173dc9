"""A job that failed on all nodes and named none of them: the same on parts of them, to see who it takes to fail."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from pytest_clusterqual.errors import ClusterQualError, JobError, LaunchError
from pytest_clusterqual.judge.fabric.bisection import LEAST_NODES, Group, conclude, search
from pytest_clusterqual.measure.fabric import SAMPLE_SECONDS, groups_in
from pytest_clusterqual.session.session import Session

_SHARE_OF_TIMEOUT = 1 / 4  # one pass over few sizes; on part of the nodes a job ends long before its limit, or never
_once: WeakSet[Session] = WeakSet()


def narrowed(session: Session, error: JobError, collective: str, sizes: Sequence[int]) -> JobError:
    """The error with the node or the two nodes that it takes for `collective` to fail, or with why nobody is named.

    Ranks that cannot even come together again tell who is cut off from whom; else parts of the nodes are tried.
    It is the same error where some nodes are named already, where nodes are few or simulated, and after
    the first time: each part of the nodes has ranks of its own, which takes seconds, and up to a
    quarter of the job timeout if it fails.
    """
    named = {culprit.rpartition(" on ")[2] for culprit in error.culprits}
    nodes = session.nodes
    if session in _once or len(nodes) < LEAST_NODES or session.topology.simulated or 0 < len(named) < len(nodes):
        return error
    _once.add(session)
    try:
        session.rank_map("block")
    except JobError:
        pass  # it names no way that is blocked, and parts of the nodes may do better
    except LaunchError as apart:
        return JobError(f"{error}\n{apart}", culprits=apart.culprits)
    tried = 0

    def fails(group: Group) -> bool:
        nonlocal tried
        tried += 1
        try:
            _try(session, group, collective, sizes)
        except (JobError, LaunchError):
            return True
        return False

    try:
        found = conclude(search(nodes), fails)
    except ClusterQualError:
        return error
    finally:
        session.use(nodes)
    culprits = [" - ".join(found.nodes)] if found.nodes else []
    return JobError(f"{error}\nafter {tried} tries on parts of the nodes: {found.because}", culprits=culprits)


def _try(session: Session, nodes: Group, collective: str, sizes: Sequence[int]) -> None:
    session.use(nodes)
    args = {
        "collective": collective, "groups": groups_in(session, "world", "block"), "sizes": [min(sizes), max(sizes)],
        "seconds": SAMPLE_SECONDS, "alone": False,
    }  # fmt: skip
    timeout = session.project.launcher.job_timeout * _SHARE_OF_TIMEOUT
    what = f"{collective} on {len(nodes)} nodes"
    session.run("pytest_clusterqual.rank.collectives:sweep", args, timeout=timeout, arrangement="block", what=what)
