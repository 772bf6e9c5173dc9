"""A collective that hangs with all nodes named: parts of them are tried, once, and the whole comes back into use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pairs_made import names

from pytest_clusterqual.errors import JobError, LaunchError
from pytest_clusterqual.measure.narrowing import narrowed
from pytest_clusterqual.session.session import Session

SIZES = (1024, 4096, 65536)


class Hanging:
    """A session of `count` nodes on which a job fails wherever all the guilty take part."""

    def __init__(
        self,
        count: int,
        *guilty: str,
        simulated: bool = False,
        error: Exception | None = None,
        apart: Exception | None = None,
    ) -> None:
        self.nodes: tuple[str, ...] = tuple(names(count))
        self.nproc_per_node = 1
        self.topology = SimpleNamespace(simulated=simulated)
        self.project = SimpleNamespace(launcher=SimpleNamespace(job_timeout=120.0), layouts=())
        self.asked: list[tuple[str, ...]] = []
        self._guilty = set(guilty)
        self._apart = apart
        self._error = error or JobError("it hangs")

    def use(self, nodes: Collection[str]) -> None:
        self.nodes = tuple(nodes)

    def rank_map(self, _arrangement: Any) -> Any:
        if self._apart:
            raise self._apart
        return SimpleNamespace(places=[SimpleNamespace(node=node) for node in self.nodes])

    def run(self, function: str, args: Mapping[str, Any], *, timeout: float, **_: Any) -> None:
        assert function == "pytest_clusterqual.rank.collectives:sweep"
        assert (args["sizes"], timeout) == ([1024, 65536], 30)
        assert args["groups"] == (tuple(range(len(self.nodes))),)
        self.asked.append(self.nodes)
        if self._guilty.issubset(self.nodes):
            raise self._error


def of(session: Hanging, culprits: Collection[str] = ()) -> JobError:
    error = JobError("all_reduce in world did not end", culprits=list(culprits))
    return narrowed(cast(Session, session), error, "all_reduce", SIZES)


def ranks(session: Hanging) -> list[str]:
    return [f"rank {rank} on {node}" for rank, node in enumerate(session.nodes)]


@pytest.mark.parametrize("error", [JobError("it hangs"), LaunchError("it does not start")])
@pytest.mark.parametrize("guilty", [("node5",), ("node2", "node7")])
def test_who_it_takes_to_fail_is_named_with_the_first_error(guilty: tuple[str, ...], error: Exception) -> None:
    session = Hanging(8, *guilty, error=error)
    told = of(session, ranks(session))
    assert told.culprits == (" - ".join(guilty),)
    assert str(told).startswith("all_reduce in world did not end\nafter ")
    assert f"after {len(session.asked)} tries on parts of the nodes: it fails where" in str(told)
    assert session.nodes == tuple(names(8))


def test_ranks_that_do_not_come_together_again_tell_who_is_cut_off() -> None:
    """Then no part of the nodes is tried, whatever the job would do there."""
    cut = LaunchError("the ranks cannot form a group: node3 - node4", culprits=["node3 - node4"])
    session = Hanging(8, "node5", apart=cut)
    told = of(session, ranks(session))
    assert told.culprits == ("node3 - node4",)
    assert str(told) == "all_reduce in world did not end\nthe ranks cannot form a group: node3 - node4"
    assert session.asked == []


def test_nobody_is_named_where_it_does_not_fail_again() -> None:
    told = of(Hanging(8, "somebody else"))
    assert told.culprits == ()
    assert "it comes and goes" in str(told)


@pytest.mark.parametrize(
    ("session", "culprits"),
    [
        (Hanging(8, "node5"), ["rank 4 on node5"]),
        (Hanging(8, "node5"), ["node5", "node6"]),
        (Hanging(8, "node5", simulated=True), []),
        (Hanging(3, "node3"), []),
    ],
)
def test_parts_are_not_tried_where_somebody_is_named_or_nodes_are_few_or_simulated(
    session: Hanging, culprits: list[str]
) -> None:
    assert str(of(session, culprits)) == "all_reduce in world did not end"
    assert session.asked == []


def test_it_is_done_once() -> None:
    session = Hanging(8, "node5")
    of(session)
    session.asked.clear()
    assert of(session).culprits == ()
    assert session.asked == []
