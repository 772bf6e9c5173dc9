"""How a launch ended: what its agents and guards told, and what goes on after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.session.launch_end import agents_began, agents_ended, of_both


def agent(node: str, **events: float) -> Any:
    """One that has left, and has told these events at these seconds of its host's clock."""
    told = {name: SimpleNamespace(data={"monotonic": at}) for name, at in events.items()}
    return SimpleNamespace(node=SimpleNamespace(name=node), poll=lambda: 0, event=told.get)


def test_agents_tell_when_they_began_and_ended_by_the_clock_of_their_host() -> None:
    agents = [agent("node0", began=5.0, ended=9.0), agent("node1", began=105.0, ended=108.0)]
    assert agents_began(agents) == {"node0": 5.0, "node1": 105.0}
    assert agents_ended(agents) == {"node0": 9.0, "node1": 108.0}


def test_a_run_whose_agent_did_not_end_has_no_end() -> None:
    agents = [agent("node0", began=5.0, ended=9.0), agent("node1", began=105.0)]
    with pytest.raises(MeasurementError, match=r"^the agent on node1 did not end within 60 s of its last rank"):
        agents_ended(agents)


def test_what_two_launches_told_of_a_node_is_kept_in_their_order() -> None:
    assert of_both({"node0": [1], "node1": [2]}, {"node0": [3], "spare": [4]}) == {
        "node0": [1, 3], "node1": [2], "spare": [4],
    }  # fmt: skip
