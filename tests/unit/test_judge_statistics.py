from __future__ import annotations

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clusterqual.judge.statistics import (
    _depth,
    apart_ratio_interval,
    mean_interval,
    median,
    median_interval,
    minimum_samples,
    ratio_interval,
    samples_needed,
    slowest,
    spread,
    spread_of_array,
    steady_start,
)

finite = st.floats(min_value=-1e9, max_value=1e9)


@pytest.mark.parametrize(
    ("samples", "expected"), [([3.0], 3.0), ([1.0, 4.0], 2.5), ([9.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 3.0], 2.5)]
)
def test_median(samples: list[float], expected: float) -> None:
    assert median(samples) == expected


@pytest.mark.parametrize("samples", [[], [1.0, math.nan, 2.0], [1.0, math.inf]])
def test_median_of_what_is_no_number_is_none(samples: list[float]) -> None:
    assert math.isnan(median(samples))


# (n, which order statistic counted from either end), from tables of the sign test at 95 %
@pytest.mark.parametrize(
    ("count", "depth"), [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6), (30, 10), (100, 40)]
)
def test_median_interval_takes_the_tabled_order_statistics(count: int, depth: int) -> None:
    samples = [float(i) for i in range(1, count + 1)]
    random.Random(count).shuffle(samples)
    interval = median_interval(samples)
    assert interval is not None
    assert (interval.low, interval.high) == (depth, count + 1 - depth)
    assert (interval.kind, interval.level, interval.samples) == ("median", 0.95, count)


@pytest.mark.parametrize("count", range(6))
def test_fewer_than_six_samples_give_no_interval(count: int) -> None:
    assert median_interval([1.0] * count) is None
    assert ratio_interval([1.0] * count, [1.0] * count) is None
    assert minimum_samples() == 6


def test_other_levels_need_other_numbers_of_samples() -> None:
    assert (minimum_samples(0.9), minimum_samples(0.99)) == (5, 8)
    assert median_interval([1.0] * 5, level=0.9) is not None
    assert median_interval([1.0] * 7, level=0.99) is None


@given(st.lists(finite, min_size=6, max_size=60))
def test_median_interval_encloses_the_median(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval is not None
    assert min(samples) <= interval.low <= median(samples) <= interval.high <= max(samples)


@given(st.lists(finite, min_size=6, max_size=20), st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 19))
def test_a_sample_that_is_not_finite_spoils_the_interval(samples: list[float], bad: float, at: int) -> None:
    samples[at % len(samples)] = bad
    interval = median_interval(samples)
    assert interval is not None
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize("count", [6, 9, 17, 30])
def test_median_interval_covers_the_true_median(count: int) -> None:
    noise = random.Random(count)
    covered = 0
    for _ in range(1000):
        interval = median_interval([noise.lognormvariate(0.0, 0.4) for _ in range(count)])
        assert interval is not None
        covered += interval.low <= 1.0 <= interval.high
    assert covered >= 920


@pytest.mark.parametrize("count", [6, 10, 30])
@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_ratio_interval_covers_the_true_ratio(count: int, sigma: float) -> None:
    noise = random.Random(1000 * count + int(100 * sigma))
    covered, trials = 0, 200
    for _ in range(trials):
        interval = ratio_interval(
            [1.8 * noise.lognormvariate(0.0, sigma) for _ in range(count)],
            [noise.lognormvariate(0.0, sigma) for _ in range(count)],
        )
        assert interval is not None
        covered += interval.low <= 1.8 <= interval.high
    assert covered / trials >= 0.9


@pytest.mark.parametrize("sigmas", [(0.01, 0.2), (0.2, 0.2), (0.3, 0.001)])
@pytest.mark.parametrize("counts", [(6, 6), (6, 11)])
def test_the_interval_of_a_ratio_of_runs_that_are_no_pairs_covers_it(
    sigmas: tuple[float, float], counts: tuple[int, int]
) -> None:
    noise = random.Random(7)
    covered = 0
    for _ in range(500):
        above, below = (
            [level * noise.lognormvariate(0.0, sigma) for _ in range(count)]
            for level, sigma, count in zip((1.8, 1.0), sigmas, counts, strict=True)
        )
        interval = apart_ratio_interval(above, below)
        assert interval is not None
        covered += interval.low <= 1.8 <= interval.high
    assert covered >= 475


def test_the_interval_of_a_ratio_needs_six_of_each_and_positive_runs() -> None:
    assert apart_ratio_interval([1.0] * 9, [1.0] * 5) is None
    interval = apart_ratio_interval([1.0] * 6, [*[1.0] * 5, 0.0])
    assert interval is not None
    assert math.isnan(interval.low)


def test_ratio_interval_narrows_with_the_number_of_pairs() -> None:
    noise = random.Random(5)
    widths = []
    for count in (6, 60):
        interval = ratio_interval(*([noise.lognormvariate(0.0, 0.2) for _ in range(count)] for _ in range(2)))
        assert interval is not None
        widths.append(interval.high - interval.low)
    assert widths[1] < widths[0] / 2


def test_ratio_interval_is_deterministic_and_cancels_drift() -> None:
    drift = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    noise = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98]
    baseline = [1.6 * d * n for d, n in zip(drift, noise, strict=True)]
    interval = ratio_interval(baseline, drift)
    assert interval == ratio_interval(baseline, drift)
    assert interval is not None
    assert 1.5 < interval.low < 1.6 < interval.high < 1.7
    assert (interval.kind, interval.samples) == ("bootstrap", 6)


def test_ratio_interval_wants_pairs_of_positive_runs() -> None:
    with pytest.raises(ValueError, match="got 6 baseline and 7 candidate runs, want pairs"):
        ratio_interval([1.0] * 6, [1.0] * 7)
    for bad in (0.0, math.nan, math.inf, -1.0):
        interval = ratio_interval([1.0] * 6, [*[1.0] * 5, bad])
        assert interval is not None
        assert math.isnan(interval.low)


def test_ratio_of_equal_runs_is_exact() -> None:
    interval = ratio_interval([2.0] * 6, [1.0] * 6)
    assert interval is not None
    assert (interval.low, interval.high) == (2.0, 2.0)


def noisy(levels: list[float], seed: int, sigma: float = 0.03) -> list[float]:
    noise = random.Random(seed)
    return [level * noise.lognormvariate(0.0, sigma) for level in levels]


@pytest.mark.parametrize("count", [0, 1, 3, 8, 20])
def test_a_flat_series_is_steady_from_the_start(count: int) -> None:
    assert steady_start([0.2] * count) == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("levels", "earliest", "latest"),
    [
        ([7.0, *[1.0] * 19], 1, 1),
        ([4.0, 3.0, 2.0, *[1.0] * 27], 3, 3),
        ([1.0 + 2.0 * 0.5**i for i in range(30)], 3, 9),
    ],
    ids=["first step slow", "three steps slow", "slow decay"],
)
def test_the_warm_up_is_cut(levels: list[float], earliest: int, latest: int, seed: int) -> None:
    assert earliest <= steady_start(noisy(levels, seed)) <= latest


def test_noise_alone_is_hardly_ever_taken_for_a_warm_up() -> None:
    cuts = [steady_start(noisy([1.0] * 20, seed, sigma=0.1)) for seed in range(200)]
    assert sum(cut > 0 for cut in cuts) <= 12
    assert sum(cut > 3 for cut in cuts) <= 4


def test_one_lucky_sample_does_not_end_the_warm_up() -> None:
    assert steady_start([3.0, 1.0, 3.0, 3.0, *[1.0] * 16]) == 4


@given(st.lists(finite, max_size=40))
def test_never_more_than_half_is_cut(samples: list[float]) -> None:
    assert 0 <= steady_start(samples) <= len(samples) // 2


def test_a_drift_without_end_cuts_about_half() -> None:
    assert 8 <= steady_start([100.0 * 0.8**i for i in range(20)]) <= 10


def test_steady_start_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="not finite"):
        steady_start([1.0, math.nan])


def test_slowest_is_the_maximum_over_ranks_sample_by_sample() -> None:
    assert slowest([[1.0, 5.0, 2.0], [4.0, 1.0, 2.0]]) == [4.0, 5.0, 2.0]


@pytest.mark.parametrize("row", [[math.nan, 1.0], [1.0, math.nan]])
def test_slowest_keeps_nan_whatever_the_order(row: list[float]) -> None:
    assert math.isnan(slowest([[row[0]], [row[1]]])[0])


@pytest.mark.parametrize("ragged", [[[1.0], [1.0, 2.0]], []])
def test_slowest_refuses_ragged_ranks(ragged: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="want the same number on every rank"):
        slowest(ragged)


def test_samples_needed_grows_with_the_square_of_the_closeness() -> None:
    samples = [0.9, 0.95, 1.0, 1.05, 1.1]
    # spread 1.4826 x 0.05; (1.96 x 1.2533 x 0.07413 / 0.02)^2 = 82.9
    assert samples_needed(samples, 1.02) == 83
    assert samples_needed(samples, 0.98) == 83
    assert samples_needed(samples, 1.01) == 332
    assert samples_needed(samples, 2.0) == 6


@pytest.mark.parametrize(("samples", "bound"), [([1.0], 2.0), ([], 1.0), ([1.0, 1.0], 1.0), ([1.0, math.nan], 2.0)])
def test_samples_needed_says_when_it_cannot_say(samples: list[float], bound: float) -> None:
    assert samples_needed(samples, bound) is None


def test_three_times_as_many_samples_as_said_mostly_clear_the_bound() -> None:
    noise, normal = random.Random(3), NormalDist(1.0, 0.1)
    needed = samples_needed([normal.inv_cdf((i + 0.5) / 30) for i in range(30)], 0.95)
    assert needed == pytest.approx(24, abs=3)  # (1.96 x 1.2533 x 0.1 / 0.05)^2
    cleared = 0
    for _ in range(100):
        interval = median_interval([noise.gauss(1.0, 0.1) for _ in range(3 * needed)])
        assert interval is not None
        cleared += interval.low > 0.95
    assert cleared >= 80


def test_spread_ignores_one_outlier() -> None:
    samples = [1.0, 2.0, 3.0, 4.0, 1e6]
    assert spread(samples) == spread_of_array(np.array(samples)) == pytest.approx(1.4826)
    assert spread([]) == 0.0


@pytest.mark.parametrize(("rounds", "least"), [(9, 0.88), (16, 0.92)])
def test_the_interval_of_a_mean_covers_rare_events(rounds: int, least: float) -> None:
    random_ = random.Random(1)
    covered = 0
    for _ in range(400):
        events = [sum(random_.random() < 0.05 for _ in range(12)) for _ in range(rounds)]  # 0.6 a round
        interval = mean_interval(events)
        assert interval is not None
        covered += interval.low <= 0.6 <= interval.high
    assert covered >= least * 400


def test_the_interval_of_a_mean_of_one_or_of_nan() -> None:
    assert mean_interval([1.0]) is None
    interval = mean_interval([1.0, math.nan, 2.0])
    assert interval is not None
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_the_depth_of_many_samples_is_that_of_counting(monkeypatch: pytest.MonkeyPatch, level: float) -> None:
    counts = (1, 5, 6, 40, 1001, 2500)
    counted = []
    for many in (-1, 10**9):
        monkeypatch.setattr("pytest_clusterqual.judge.statistics._MANY", many)
        counted.append([_depth(count, level) for count in counts])
    assert counted[0] == counted[1]
    monkeypatch.undo()
    assert 490_000 < _depth(10**6, level) < 500_000, "which is not counted out"
