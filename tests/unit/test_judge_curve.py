from __future__ import annotations

import pytest

from pytest_clusterqual.judge.fabric.curve import alpha, plateau

KIB = 1024


def test_alpha_is_where_the_line_through_the_small_sizes_begins() -> None:
    sizes = [KIB, 2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB]
    end = alpha(sizes, [[20e-6 + size * 1e-9, 30e-6 + size * 1e-9] for size in sizes[:-1]] + [[1.0, 1.0]])
    assert end.rounds == (pytest.approx(20e-6), pytest.approx(30e-6))
    assert end.at == tuple(sizes[:-1])


def test_one_odd_size_does_not_move_alpha() -> None:
    sizes = [512, KIB, 2 * KIB, 4 * KIB, 8 * KIB]
    times = [20e-6 + size * 1e-9 for size in sizes]
    times[2] = 5e-3
    assert alpha(sizes, [[t] for t in times]).rounds == (pytest.approx(20e-6, rel=0.05),)


def test_times_that_fall_with_the_size_give_no_negative_slope() -> None:
    assert alpha([KIB, 4 * KIB], [[30e-6], [20e-6]]).rounds == (pytest.approx(25e-6),)


def test_one_small_size_stands_for_itself_and_none_for_nothing() -> None:
    assert alpha([4 * KIB, 16 * KIB], [[25e-6], [1.0]]).rounds == (25e-6,)
    assert alpha([16 * KIB], [[1.0]]).why == "the sweep has no size of 8 KiB or less"


def test_the_plateau_is_what_the_largest_sizes_reach_alike() -> None:
    sizes = [4 * KIB, 64 * KIB, 1024 * KIB, 4096 * KIB, 16384 * KIB]
    end = plateau(sizes, [[1e9, 1e9], [50e9, 51e9], [91e9, 92e9], [97e9, 98e9], [100e9, 90e9]])
    assert end.at == (1024 * KIB, 4096 * KIB, 16384 * KIB)
    assert end.rounds == (97e9, 92e9)


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ([10e9, 40e9, 100e9], "busbw has not levelled off at the largest size, 4 MiB: measure larger ones"),
        ([10e9, 100e9, 60e9], "busbw at the largest size, 4 MiB, is more than 10 % below the best"),
    ],
)
def test_without_a_level_there_is_no_plateau(rates: list[float], why: str) -> None:
    end = plateau([64 * KIB, 1024 * KIB, 4096 * KIB], [[rate] * 6 for rate in rates])
    assert (end.rounds, end.why) == ((), why)
