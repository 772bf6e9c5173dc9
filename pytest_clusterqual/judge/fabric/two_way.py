"""What is the sender's, what the receiver's and what the pair's own: a robust fit of times between pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_clusterqual.judge.statistics import spread_of_array

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Numbers = NDArray[np.int64]

Way = Literal["both", "forth", "back"]

_POLISHES, _REFINEMENTS = 8, 20
_SETTLED = 0.01  # times the scale
_BISQUARE = 4.685  # times the scale: 95 % as efficient as a mean where the noise is normal
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, normal noise
_MEDIAN_OF_DEGREES = 2 / 9  # of a chi-square: its median is about d (1 - 2 / 9d)^3


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoWay:
    """``log seconds = level + sending[i] + receiving[j] + rest``, in natural logarithms: 0.05 is 5 % slower.

    `sending` and `receiving`, (ends,), have the median 0: they are what an end differs from its
    peers. `rest`, (pairs,), is a pair's own. The errors are standard ones, with `degrees` of
    freedom, from what repeats and pairs differ by; that of an end, (ends,), is infinite if it met
    fewer than two others.
    """

    level: float
    sending: Floats
    receiving: Floats
    rest: Floats
    end_error: Floats
    rest_error: float
    level_error: float
    degrees: float

    def effect(self, way: Way) -> Floats:
        """What each end differs from its peers, (ends,): in sending (forth), in receiving (back), or on average."""
        return {"both": (self.sending + self.receiving) / 2, "forth": self.sending, "back": self.receiving}[way]

    def error(self, way: Way) -> Floats:
        """The standard error of the effects, (ends,): no less than what peers differ by."""
        import numpy as np

        # Of three ends, one of them odd, two are left: they do not say what peers differ by.
        peers = spread_of_array(self.effect(way)) if len(self.sending) > 3 else 0.0
        return np.maximum(self.end_error / (math.sqrt(2) if way == "both" else 1), peers)


def fit(senders: Numbers, receivers: Numbers, seconds: Floats) -> TwoWay:
    """Fit times of some or all pairs of the ends 0 .. n - 1.

    `senders` and `receivers`, (pairs,), are ends; `seconds`, (pairs, repeats), with 3 repeats or more.
    Up to half of an end's pairs may be odd without a trace in its own figure.
    """
    import numpy as np

    logs = np.log(seconds)
    times = np.median(logs, axis=1)
    ends, pairs, repeats = int(max(senders.max(), receivers.max())) + 1, *logs.shape
    noise = _noise(logs)
    sending, receiving = _polished(senders, receivers, times, ends)
    sending, receiving, level = _refined(senders, receivers, times, sending, receiving, noise)
    rest = times - level - sending[senders] - receiving[receivers]
    free = pairs - 2 * ends + 1
    # Of few nodes nearly every pair is explained by its ends: what is left then says nothing of the pairs.
    scale = max(noise, spread_of_array(rest) * math.sqrt(pairs / free)) if free > pairs / 4 else noise
    return TwoWay(
        level=level, sending=sending, receiving=receiving, rest=rest,
        end_error=_end_errors(senders, ends, scale),
        rest_error=scale * math.sqrt(1 + (2 * ends - 1) / pairs), level_error=scale * _MEDIAN_ERROR / math.sqrt(ends),
        degrees=max(0.4 * pairs * (repeats - 1), 2.0),  # a median of variances is that much less sure than their mean
    )  # fmt: skip


def _noise(logs: Floats) -> float:
    """Standard error of a pair's median, from what its repeats differ by; the middle one of all pairs."""
    import numpy as np

    repeats = logs.shape[1]
    degrees = repeats - 1
    usual = np.median(logs.var(axis=1, ddof=1)) / (1 - _MEDIAN_OF_DEGREES / degrees) ** 3
    return float(np.sqrt(usual / repeats)) * _MEDIAN_ERROR


def _polished(senders: Numbers, receivers: Numbers, times: Floats, ends: int) -> tuple[Floats, Floats]:
    """Sending and receiving by medians in turn. No link is too fast, so of two middle times the shorter counts."""
    import numpy as np

    sending, receiving = np.zeros(ends), np.zeros(ends)
    for _ in range(_POLISHES):
        before, sending = sending, _low_medians(senders, times - receiving[receivers], ends)
        receiving = _low_medians(receivers, times - sending[senders], ends)
        if np.array_equal(before, sending):
            break
    return sending, receiving


def _refined(
    senders: Numbers, receivers: Numbers, times: Floats, sending: Floats, receiving: Floats, noise: float
) -> tuple[Floats, Floats, float]:
    """The same by weighted means, which are sharper; what is far off has no weight. Then sending and receiving
    are told against their medians, and the level apart."""
    import numpy as np

    ends = len(sending)
    for _ in range(_REFINEMENTS):
        rest = times - sending[senders] - receiving[receivers]
        scale = max(noise, spread_of_array(rest), 1e-9)
        weights = np.clip(1 - (rest / (_BISQUARE * scale)) ** 2, 0, None) ** 2 + 1e-12
        before, sending = sending, _means(senders, times - receiving[receivers], weights, ends, sending)
        receiving = _means(receivers, times - sending[senders], weights, ends, receiving)
        if np.max(np.abs(sending - before)) < _SETTLED * scale:
            break
    level = float(np.median(sending) + np.median(receiving))
    return sending - np.median(sending), receiving - np.median(receiving), level


def _low_medians(groups: Numbers, values: Floats, count: int) -> Floats:
    """The lower median of the values of each group 0 .. count - 1; 0 for a group without any."""
    import numpy as np

    order = np.lexsort((values, groups))
    sizes = np.bincount(groups, minlength=count)
    middles = np.cumsum(sizes) - sizes + np.maximum(sizes - 1, 0) // 2
    return np.where(sizes > 0, values[order][np.minimum(middles, len(values) - 1)], 0.0)


def _means(groups: Numbers, values: Floats, weights: Floats, count: int, before: Floats) -> Floats:
    import numpy as np

    total = np.bincount(groups, weights, count)
    return np.where(total > 1e-6, np.bincount(groups, weights * values, count) / np.maximum(total, 1e-12), before)


def _end_errors(senders: Numbers, ends: int, scale: float) -> Floats:
    """Standard errors of ends that each met `k` others, which are known from as many pairs themselves."""
    import numpy as np

    met = np.bincount(senders, minlength=ends).astype(float)
    met[met < 2] = np.nan
    errors = scale * np.sqrt(met / (met**2 - 1)) * math.sqrt(1 + _MEDIAN_ERROR**2 / ends)
    return np.where(np.isnan(errors), np.inf, errors)
