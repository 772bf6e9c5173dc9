"""Fixtures of the lab: several real hosts on this machine, for the tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest
from lab_host import Impossible
from lab_hosts import Lab


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "lab(hosts=2, slurm=False, pin=False): the lab that a test module wants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    yield from _told()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield from _told()


def _told() -> Generator[None, None, None]:
    """What is impossible here is a skip, or a failure where the environment says that the lab is required."""
    try:
        yield
    except Impossible as reason:
        if (asked := os.environ.get("CLUSTERQUAL_LAB")) in ("required", "full"):
            pytest.fail(f"CLUSTERQUAL_LAB={asked}, but {reason}", pytrace=False)
        raise


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab of this module, as ``pytestmark = pytest.mark.lab(...)`` asks for it."""
    marker = request.node.get_closest_marker("lab")
    with Lab(**(marker.kwargs if marker else {})) as made:
        yield made


@pytest.fixture
def healthy(lab: Lab) -> Iterator[Lab]:
    """The lab, in which hosts that the test leaves dead are booted again afterwards."""
    yield lab
    lab.revive()
