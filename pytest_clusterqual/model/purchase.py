"""Before hardware is bought: node types that are considered, models to serve, and what arithmetic says of both.

Everything here is an estimate. None of it is a verdict, and none becomes a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_clusterqual.model.footprint import Footprint
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links

Weights = Literal["bf16", "fp8", "int4"]
WEIGHT_BYTES: dict[Weights, float] = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5}
CacheKind = Literal["bf16", "fp8"]
# fits: with what the file wants left free · tight: with less · no: not at all
Fit = Literal["fits", "tight", "no"]
# one device · one node: by tensor parallelism inside · replicas: copies that know nothing of each other ·
# cluster: one copy needs several nodes · no: not even that
Means = Literal["one device", "one node", "replicas", "cluster", "no"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeType:
    """A node that could be bought, `counts` of it considered.

    `flops` (FLOP/s, dense) and `memory_rate` (B/s) are those of one device, `compute_share` the part of
    `flops` that the training job reaches while it computes. None where the file does not say.
    """

    name: str
    devices: int
    device_memory: float
    links: Links
    counts: tuple[int, ...] = (1,)
    flops: float | None = None
    compute_share: float | None = None
    memory_rate: float | None = None
    price: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """A model to serve: `sequences` at a time, each of at most `context` tokens, `rate` tokens/s in all if wanted.

    `active` parameters are used by a token, fewer than all with experts. `latent` numbers a layer and token
    replace keys and values, whole on every tensor rank.
    """

    name: str
    parameters: float
    active: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    context: int
    sequences: int = 1
    rate: float | None = None
    kv_cache: CacheKind = "bf16"
    latent: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PurchasePlan:
    """`weights_share` is the part of a device that weights may take; its `source` is empty for the default."""

    nodes: tuple[NodeType, ...]
    models: tuple[ServedModel, ...]
    weights: tuple[Weights, ...]
    weights_share: Requirement
    training: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingRow:
    """One model in one precision on one node type. Bytes are those of one device.

    `fit` is about one node, where a copy takes `tensor` devices and holds `held` full sequences at a
    time (of as many as are wanted). With `means` cluster a copy takes `stages` nodes. `copies` and `nodes`
    are what is wanted in all, `rate` the tokens/s that they give at most; None and 0 where it cannot be said.
    """

    model: str
    weights: Weights
    node: str
    fit: Fit
    means: Means
    tensor: int
    stages: int
    weight_bytes: float
    weight_share: float
    cache_bytes: float
    held: int
    copies: int
    nodes: int
    rate: float | None
    price: float | None
    arithmetic: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow:
    """The exact job in one way: a rung of the memory ladder, or a layout of the file. `impossible` says why not."""

    node: str
    name: str
    ladder: bool
    nodes: int
    ranks: int
    fit: Fit
    footprint: Footprint | None = None
    impossible: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBounds:
    """A step of a layout on `nodes` nodes, in seconds; each pair has no overlap first, then full overlap.

    `inside` and `between` are the communication of groups within a node and of those that span nodes,
    `crossing` the bytes that a rank exchanges in the latter. `efficiency` is against `baseline` nodes.
    """

    node: str
    layout: str
    nodes: int
    devices: int
    compute: float | None
    inside: float | None
    between: float | None
    crossing: float
    step: tuple[float, float] | None
    rate: tuple[float, float] | None
    baseline: int
    efficiency: tuple[float, float] | None
    price: float | None
    arithmetic: tuple[str, ...]
    said: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Several small nodes against fewer large ones with as many devices in all, a sentence a difference."""

    small: str
    large: str
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """All estimates of a project file. `limits` are what they were held against, `unseen` what arithmetic leaves out.

    `walks` are the decision of each node type for training, a sentence each.
    """

    kind: Literal["estimate"] = "estimate"
    serving: tuple[ServingRow, ...]
    training: tuple[TrainingRow, ...]
    walks: tuple[str, ...]
    steps: tuple[StepBounds, ...]
    comparisons: tuple[Comparison, ...]
    limits: tuple[str, ...]
    unseen: tuple[str, ...]
