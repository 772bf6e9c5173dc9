"""A world of real ranks, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import make_world

from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.session.world import World


@pytest.fixture(scope="module")
def worlds() -> Iterator[list[World]]:
    made: list[World] = []
    yield made
    for each in made:
        each.close()


@pytest.fixture
def world(worlds: list[World], tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two nodes of one rank. The tests of a module share it, until one of them ends it: then there is another one."""
    if not worlds or not worlds[-1].usable:
        launcher = LocalLauncher(device="cpu", oversubscribe=True)
        worlds.append(make_world(launcher, 2, tmp_path_factory.mktemp("logs")))
    return worlds[-1]
