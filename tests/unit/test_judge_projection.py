"""Beyond measured sizes: an envelope that holds the truth of every model, widens with noise, and knows its limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_clusterqual.judge.scaling.projection import project, why_not_projected
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.projection import Envelope, SizeTime

MODELS = {
    "Amdahl": lambda n, serial, cost: serial + (1 - serial) / n,
    "Amdahl + logarithmic communication": lambda n, serial, cost: serial + (1 - serial) / n + cost * math.log2(n),
    "Amdahl + linear communication": lambda n, serial, cost: serial + (1 - serial) / n + cost * n / 4,
    "power law": lambda n, serial, cost: n ** -(1 - serial),
}
SIZES = ([1, 2, 4, 8], [1, 2, 4, 8, 16, 32], [4, 8, 12, 16])


def measured(model: str, sizes: list[int], serial: float, cost: float, noise: float, seed: int = 0) -> list[SizeTime]:
    """Six runs of each size."""
    rng = np.random.default_rng(seed)
    times = []
    for nodes in sizes:
        runs = [100 * MODELS[model](nodes, serial, cost) * float(np.exp(rng.normal(0, noise))) for _ in range(6)]
        times.append(SizeTime(nodes=nodes, seconds=median(runs), interval=median_interval(runs)))
    return times


def holds(envelope: Envelope, truth: float) -> bool:
    return envelope.low * (1 - 1e-6) <= truth <= envelope.high * (1 + 1e-6)


@settings(deadline=None, max_examples=40)
@given(
    model=st.sampled_from(list(MODELS)), sizes=st.sampled_from(SIZES), serial=st.floats(0, 0.5),
    cost=st.floats(0, 0.05), further=st.floats(1.01, 2),
)  # fmt: skip
def test_without_noise_the_truth_of_each_model_is_inside(
    model: str, sizes: list[int], serial: float, cost: float, further: float
) -> None:
    nodes = math.ceil(sizes[-1] * further)
    envelope = project(measured(model, sizes, serial, cost, 0), nodes)
    assert holds(envelope, 100 * MODELS[model](nodes, serial, cost))
    low, high = envelope.models[model]
    assert envelope.low <= low <= high <= envelope.high
    assert set(envelope.models) == set(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_with_noise_it_is_inside_in_nearly_all_cases(model: str) -> None:
    rng = np.random.default_rng(2)
    inside = []
    for number in range(54):
        sizes, noise = SIZES[number % 3], (0.005, 0.02, 0.05)[number // 3 % 3]
        serial, cost = rng.uniform(0, 0.4), rng.uniform(0, 0.05)
        envelope = project(measured(model, sizes, serial, cost, noise, seed=number), 2 * sizes[-1])
        inside.append(holds(envelope, 100 * MODELS[model](2 * sizes[-1], serial, cost)))
    assert sum(inside) >= 0.95 * len(inside)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("known", [True, False], ids=["intervals", "one run of each"])
def test_noise_widens_it(model: str, known: bool) -> None:
    def width(noise: float) -> float:
        widths = []
        for seed in range(8):
            times = measured(model, [1, 2, 4, 8, 16], 0.1, 0.01, noise, seed=seed)
            if not known:
                times = [SizeTime(nodes=time.nodes, seconds=time.seconds) for time in times]
            envelope = project(times, 32)
            widths.append(math.log(envelope.high / envelope.low))
        return median(widths)

    assert width(0) < width(0.05) < width(0.2)


def test_it_is_wider_than_any_one_model_and_the_same_every_time() -> None:
    times = measured("Amdahl + logarithmic communication", [1, 2, 4, 8, 16], 0.05, 0.02, 0.01)
    envelope = project(times, 32)
    assert envelope == project(list(reversed(times)), 32)
    assert all(high / low < envelope.high / envelope.low for low, high in envelope.models.values())
    assert (envelope.nodes, envelope.sizes) == (32, (1, 2, 4, 8, 16))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("slow", [1, 2, 4, 8])
def test_no_single_size_decides(model: str, slow: int) -> None:
    """One size was slow for a reason of its own, and all its runs agree on that."""
    times = measured(model, [1, 2, 4, 8], 0.02, 0.002, 0)
    times = [replace(time, seconds=time.seconds * (1.5 if time.nodes == slow else 1)) for time in times]
    assert holds(project(times, 16), 100 * MODELS[model](16, 0.02, 0.002))


@pytest.mark.parametrize(
    ("sizes", "nodes", "why"),
    [
        ([], 2, "0 sizes were measured, and nothing is predicted from fewer than 4"),
        ([1], 2, "1 size was measured"),
        ([1, 2, 4], 8, "3 sizes were measured, and nothing is predicted from fewer than 4: too many models go through"),
        ([1, 2, 4, 8], 17, "17 nodes are not more than the 8 measured and at most 2 times as many"),
        ([1, 2, 4, 8], 8, "8 nodes are not more than the 8 measured"),
        ([1, 2, 4, 8, 8], 16, "a number of nodes is there twice"),
    ],
)
def test_what_is_not_predicted(sizes: list[int], nodes: int, why: str) -> None:
    times = [SizeTime(nodes=size, seconds=100 / size) for size in sizes]
    assert why_not_projected(times, nodes).startswith(why)
    with pytest.raises(ValueError, match=why):
        project(times, nodes)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    times = [SizeTime(nodes=nodes, seconds=seconds if nodes == 4 else 100 / nodes) for nodes in (1, 2, 4, 8)]
    assert why_not_projected(times, 16) == "a time is not above 0"
