"""For the project's own tests only: `pytester`, and the gating of what this machine cannot run."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: a test that runs only where everything is asked for")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("full") and os.environ.get("CLUSTERQUAL_LAB") != "full":
            item.add_marker(pytest.mark.skip(reason="part of the full lab: make lab"))
