"""A world of real ranks, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes import HERE

from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    made = World(
        launcher, launcher.nodes(2, 1), 1, device="cpu", logs=tmp_path_factory.mktemp("logs"), start_timeout=120,
        path=[HERE], tell=lambda progress: None,
    )  # fmt: skip
    yield made
    made.close()
