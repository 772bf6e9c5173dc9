"""The reference model is the one that `ModelShape` describes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rank_harness import TINY

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.workload import ModelShape
from pytest_clusterqual.rank.transformer import Transformer, rotate

SHAPE = TINY.model


def made(shape: ModelShape = SHAPE, seed: int = 1) -> Transformer:
    model = Transformer(shape, 16)
    model.initialize(seed)
    return model


@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        ModelShape(layers=3, hidden=48, heads=4, kv_heads=4, ffn=40, vocab=300),
        ModelShape(layers=1, hidden=64, heads=8, kv_heads=1, ffn=96, vocab=256),
        ModelShape(layers=2, hidden=32, heads=4, kv_heads=2, ffn=24, vocab=256, experts=3, top_k=2),
    ],
)
def test_it_has_the_parameters_that_the_shape_says(shape: ModelShape) -> None:
    model = made(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert [(name, tuple(p.shape)) for name, p in model.named_parameters()] == list(shape.shapes().items())


def test_a_token_sees_the_past_and_never_the_future() -> None:
    model = made()
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 256
    difference = (model(tokens) - model(changed)).abs().amax(dim=(0, 2))
    assert torch.all(difference[:8] == 0)
    assert torch.all(difference[8:] > 0)


def test_order_matters_through_rotary_positions() -> None:
    model = made()
    last = [model(torch.tensor([[1, 2, 3, 9]]))[0, -1], model(torch.tensor([[3, 2, 1, 9]]))[0, -1]]
    assert not torch.allclose(last[0], last[1])


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    model = made()
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 16, 8)
    query, key = rotate(query, model.cos, model.sin), rotate(key, model.cos, model.sin)
    scores = (query @ key.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[5, 2], scores[12, 9])
    assert abs(scores[5, 2] - scores[5, 4]) > 1e-3


def test_fewer_key_value_heads_equal_repeated_ones() -> None:
    grouped, full = made(), made(replace(SHAPE, kv_heads=SHAPE.heads))
    weights = grouped.state_dict()
    repeat = SHAPE.heads // SHAPE.kv_heads
    for name in [n for n in weights if ".key." in n or ".value." in n]:
        by_head = weights[name].unflatten(0, (SHAPE.kv_heads, -1))
        weights[name] = by_head.repeat_interleave(repeat, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(grouped(tokens), full(tokens))


def test_initial_values_depend_on_the_seed_alone() -> None:
    torch.manual_seed(99)
    first = made(seed=5).state_dict()
    torch.manual_seed(100)
    again, other = made(seed=5).state_dict(), made(seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert not torch.equal(first["head.weight"], first["embedding.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 2, "top_k": 3}, "workload.model.top_k: got 3, want at most experts = 2"),
        ({"heads": 5}, "workload.model.hidden: got 32, want a multiple of 2 x heads = 10"),
        ({"kv_heads": 3}, "workload.model.heads: got 4, want a multiple of kv_heads = 3"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ClusterQualError, match=message):
        Transformer(replace(SHAPE, **change), 16)
