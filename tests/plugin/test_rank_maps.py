"""The same tests under several rank maps, on real ranks."""

from __future__ import annotations

from sites import SMALL, Site

OWN = """
import pytest

LISTED = ((1, 1), (0, 0), (0, 1), (1, 0))  # node, device of each rank

@pytest.mark.parametrize("rank_map", ["cyclic", LISTED], ids=["cyclic", "listed"], indirect=True)
def test_own(cluster, rank_map, request):
    told = cluster.run("own:where")
    assert told == [place.node for place in rank_map.places]
    want = ["node0", "node1"] * 2 if "cyclic" in request.node.name else ["node1", "node0", "node0", "node1"]
    assert told == want

def test_the_projects_own_map_is_back(cluster, rank_map):
    assert [place.node for place in rank_map.places] == ["node0", "node0", "node1", "node1"]
"""


def test_fabric_and_own_tests_run_under_the_maps_they_ask_for(site: Site) -> None:
    fabric = {**SMALL["fabric"], "collectives": ["all_reduce"], "groups": ["world"], "rank_maps": ["block", "cyclic"],
              "require": [{"busbw": ">= 1 B/s"}]}  # fmt: skip
    site.configure({"fabric": fabric, "memory": None, "scaling": None, "full_run": None})
    (site.path / "own.py").write_text("def where(ctx):\n    return ctx.node\n")
    (site.path / "test_own.py").write_text(OWN)
    run = site.run("test_fabric.py", "test_own.py", "--nproc-per-node=2", "-k", "not placement")
    assert run.code == 0, run.out
    maps = {
        r["test"].rpartition("[")[2]: r["conditions"]["rank_map"] for r in run.records if r["criterion"] == "fabric"
    }
    assert maps == {"all_reduce-world-block]": "block", "all_reduce-world-cyclic]": "cyclic"}
    nodes = {
        r["conditions"]["rank_map"]: r["conditions"]["rank_nodes"] for r in run.records if r["criterion"] == "fabric"
    }
    assert nodes == {"block": ["node0", "node0", "node1", "node1"], "cyclic": ["node0", "node1"] * 2}
