"""A world of real ranks, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import make_world

from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.session.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    made = make_world(launcher, 2, tmp_path_factory.mktemp("logs"))
    yield made
    made.close()
