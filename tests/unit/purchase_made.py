"""Made nodes, models and plans of a purchase, for tests of what arithmetic says of them."""

from __future__ import annotations

from typing import Any

from pytest_clusterqual import units
from pytest_clusterqual.model.purchase import NodeType, PurchasePlan, ServedModel, Weights
from pytest_clusterqual.model.requirement import own_requirement
from pytest_clusterqual.model.topology import Links

GB = 1e9
# 80 layers, each token of which keeps 2 x 8 x 128 numbers: 327,680 B in bf16.
SEVENTY = ServedModel(
    name="seventy", parameters=70e9, active=70e9, layers=80, hidden=8192, heads=64, kv_heads=8, head_size=128,
    context=4096,
)  # fmt: skip


def node(name: str = "eight", **changes: Any) -> NodeType:
    fields: dict[str, Any] = {
        "devices": 8, "device_memory": 80 * GB, "links": Links(intra_node=450 * GB, nic=50 * GB, nics_per_node=8),
    }  # fmt: skip
    return NodeType(name=name, **{**fields, **changes})


def plan(
    *models: ServedModel,
    nodes: tuple[NodeType, ...] = (),
    weights: tuple[Weights, ...] = ("bf16",),
    share: str = "<= 65 %",
) -> PurchasePlan:
    bound = own_requirement("weights_share", share, units.RATIO, source="clusterqual.yaml:9")
    return PurchasePlan(nodes=nodes or (node(),), models=models, weights=weights, weights_share=bound)
