"""Who has the same experts, by dimension of their mesh."""

from __future__ import annotations

import pytest

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.groups import mesh
from pytest_clusterqual.model.workload import Layout
from pytest_clusterqual.rank.meshes import expert_dimensions


@pytest.mark.parametrize(
    ("fsdp", "degrees", "expected"),
    [
        (None, {"expert": 4}, {"replicate": 4}),
        ("full", {"expert": 4}, {"shard": 4}),
        ("hybrid", {"expert": 2}, {"replicate": 2, "shard": 4}),  # two groups with all experts in a node
        ("hybrid", {"expert": 8}, {"replicate": 2, "shard": 1}),
        ("hybrid", {"expert": 16}, {"replicate": 1, "shard": 1}),  # one group over both nodes
        ("hybrid", {"expert": 2, "tensor": 2, "context": 2}, {"replicate": 2, "shard": 4}),
    ],
)
def test_copies_of_experts_on_two_nodes_of_eight(
    fsdp: str | None, degrees: dict[str, int], expected: dict[str, int]
) -> None:
    layout = Layout(name="any", fsdp=fsdp, **degrees)  # type: ignore[arg-type]
    assert expert_dimensions(layout, mesh(layout, 16, 8)) == expected


def test_experts_that_cut_across_nodes_are_refused() -> None:
    layout = Layout(name="ep4", fsdp="hybrid", expert=4)
    with pytest.raises(ClusterQualError, match="layout ep4: the 6 data ranks that share a node are no multiple of"):
        expert_dimensions(layout, mesh(layout, 12, 6))
