"""The nodes criterion as a user meets it: asked by the section `topology`, judged without starting a rank."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from sites import SUITE, Site


@pytest.fixture
def nodes_site(site: Site) -> Site:
    shutil.copy(SUITE / "test_nodes.py", site.path)
    return site


def run(site: Site, topology: dict[str, Any] | None) -> Any:
    site.configure({"topology": topology})
    return site.run("test_nodes.py::test_nodes")


def test_nodes_that_keep_every_promise_pass_and_no_rank_was_started(nodes_site: Site) -> None:
    done = run(nodes_site, {"memory": ">= 1 MB", "cores_per_node": None})
    assert done.code == 0, done.out
    assert set(done.verdicts("nodes")) == {"PASS"}
    assert list((done.folder / "ranks").iterdir()) == []
    assert json.loads((done.folder / "nodes" / "node0.json").read_text())["survey"] == 1
    assert {"memory", "version torch", "nics per node"} <= {r["judgement"]["quantity"] for r in done.records}
    assert "0 odd of 2 nodes" in done.out


def test_a_broken_promise_fails_with_its_line_and_the_nodes(nodes_site: Site) -> None:
    done = run(nodes_site, {"cores_per_node": 100_000})
    assert done.code == 1
    line = next(i for i, text in enumerate((nodes_site.path / "clusterqual.yaml").read_text().splitlines(), 1)
                if "cores_per_node" in text)  # fmt: skip
    assert "FAIL: node0 and node1 have " in done.out
    assert f"promised: 100000 (clusterqual.yaml:{line}: cores per node 100000)" in done.out
    (failed,) = [r["judgement"] for r in done.records if r["judgement"]["verdict"] == "FAIL"]
    assert (failed["value"], failed["findings"][0]["suspect"]) == (2.0, "all 2 nodes")


def test_without_the_section_nobody_asks_and_nothing_is_missing(nodes_site: Site) -> None:
    done = run(nodes_site, None)
    assert done.code == 0, done.out
    assert "no verdict was reached" not in done.out
    assert "1 skipped" in done.out
