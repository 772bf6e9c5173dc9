"""The public fixtures. `docs/own-tests.md` shows how to write qualification tests with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_clusterqual import plugin
from pytest_clusterqual.errors import ClusterQualError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_clusterqual.model.command import CommandJob
    from pytest_clusterqual.model.decision import Decision
    from pytest_clusterqual.model.measurement import Measurement
    from pytest_clusterqual.model.requirement import Requirement
    from pytest_clusterqual.model.topology import RankMap, Topology
    from pytest_clusterqual.model.workload import Workload
    from pytest_clusterqual.qualify import Qualify
    from pytest_clusterqual.session.world import RankResult


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Topology:
    """Nodes, ranks a node, device, promised links, and the hardware that was found on every node."""
    with _remembering(request):
        return plugin.qualification_of(request.config).session.topology


@pytest.fixture
def rank_map(request: pytest.FixtureRequest) -> RankMap:
    """rank -> node, device, NUMA node, nearest NIC and the class of that path; starts the ranks if need be.

    Parametrize it indirectly with ``block``, ``cyclic``, ``nic-near`` or a tuple of (node, device) of
    each rank, and the `cluster` of the same test runs under that map.
    """
    with _remembering(request):
        return plugin.qualification_of(request.config).session.rank_map(getattr(request, "param", None))


@pytest.fixture
def workload(request: pytest.FixtureRequest) -> Workload | CommandJob:
    """The exact job of the project file, or the user's own command that it names in the place of one."""
    return plugin.qualification_of(request.config).project.job


@pytest.fixture
def requirements(request: pytest.FixtureRequest) -> tuple[Requirement, ...]:
    """What the project file demands for the criterion this test declares; all demands if it declares none.

    A `value` is in the canonical `unit`: ``s``, ``B``, ``B/s``, ``tokens/s``, or ``1`` for shares and ratios.
    """
    from pytest_clusterqual.model.requirement import QUANTITIES

    project = plugin.qualification_of(request.config).project
    declared = plugin.criterion_of(request.node)
    names = [declared[0]] if declared else list(QUANTITIES)
    return tuple(requirement for name in names for requirement in project.requirements(name))


class Cluster:
    """All nodes of this run, for one test."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node
        self._session = plugin.qualification_of(request.config).session
        callspec = getattr(request.node, "callspec", None)
        self._arrangement = callspec.params.get("rank_map") if callspec else None

    def run(
        self,
        function: str,
        *,
        nodes: int | Sequence[str] | None = None,
        timeout: float | None = None,
        fresh: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run ``package.module:function`` on every rank and return what each rank returned, in rank order.

        The function gets a `pytest_clusterqual.rank.jobs.Context` first and `kwargs` after it;
        arguments and results are JSON values. `nodes` limits it to the first so many, or to those
        named; `timeout` is in seconds, `fresh` gives it new processes.

        Raises:
            JobError: a rank raised, died or did not answer in time; it names rank and node. Also if this run has no
                such `nodes`, or an argument is no JSON value.
            LaunchError: the ranks could not be started; it names the nodes.
        """
        __tracebackhide__ = True
        return [
            result.value for result in self.run_timed(function, nodes=nodes, timeout=timeout, fresh=fresh, **kwargs)
        ]

    def run_timed(
        self,
        function: str,
        *,
        nodes: int | Sequence[str] | None = None,
        timeout: float | None = None,
        fresh: bool = False,
        **kwargs: Any,
    ) -> list[RankResult]:
        """As `run`, with the seconds each rank spent inside the function.

        Raises:
            JobError, LaunchError: as `run`.
        """
        __tracebackhide__ = True
        try:
            return self._session.run(
                function, kwargs, nodes=nodes, timeout=timeout, fresh=fresh, arrangement=self._arrangement
            )
        except ClusterQualError as error:
            from pytest_clusterqual.run.items import ERROR

            self._item.stash[ERROR] = error
            raise error.with_traceback(None) from None  # the message tells all; how jobs are sent does not help


class Node:
    """One node of this run, for one test: `index` counts from 0, `name` is what reports call it."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._cluster = Cluster(request)
        self.index: int = request.param
        self.name = plugin.qualification_of(request.config).session.all_nodes[self.index]

    def run(self, function: str, *, timeout: float | None = None, fresh: bool = False, **kwargs: Any) -> list[Any]:
        """As `cluster.run`, on the ranks of this node alone, which are a group of their own."""
        __tracebackhide__ = True
        return self._cluster.run(function, nodes=[self.name], timeout=timeout, fresh=fresh, **kwargs)

    def run_timed(
        self, function: str, *, timeout: float | None = None, fresh: bool = False, **kwargs: Any
    ) -> list[RankResult]:
        """As `run`, with the seconds each rank spent inside the function."""
        __tracebackhide__ = True
        return self._cluster.run_timed(function, nodes=[self.name], timeout=timeout, fresh=fresh, **kwargs)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Lease the nodes; ``cluster.run("package.module:function", **kwargs)`` gives per-rank results."""
    return Cluster(request)


@pytest.fixture
def node(request: pytest.FixtureRequest) -> Node:
    """Each node of this run in turn: a test that uses it runs once a node, and under xdist beside those of others.

    A test that also uses `cluster`, `measurement`, `rank_map` or `topology` has all nodes.
    """
    return Node(request)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Any:
    """The parameters of this test, from the project file."""
    return request.param


@pytest.fixture
def measurement(request: pytest.FixtureRequest, case: Any) -> Measurement:
    """The measurement of this test's case; what goes wrong here is an ERROR, not a FAIL."""
    with _remembering(request):
        return plugin.qualification_of(request.config).measure(request.node, case)


@pytest.fixture
def decision(request: pytest.FixtureRequest, case: Any) -> Decision:
    """What follows from all records of this run so far; there is one test of it, after all others."""
    with _remembering(request):
        return plugin.qualification_of(request.config).decision()


@pytest.fixture
def qualify(request: pytest.FixtureRequest) -> Qualify:
    """Judge a measurement, record it, and end the test by its verdict.

    On PASS the test goes on. FAIL, UNDECIDED and ERROR fail it, or make it an xfail where the project file has an
    exception for it; MEASURED skips it.
    """
    from pytest_clusterqual.qualify import Qualify

    return Qualify(plugin.qualification_of(request.config), request.node)


class _remembering:
    """Turn this package's errors into one readable message, kept for the test's record."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, ClusterQualError):
            from pytest_clusterqual.run.items import ERROR

            self._item.stash[ERROR] = error
            raise pytest.fail.Exception(str(error), pytrace=False) from None  # told once, not with what led to it
