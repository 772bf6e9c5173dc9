"""Step times that may be compared with each other: of the same work, or per work where batches differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_clusterqual.judge.full_run.columns import Counts, Floats

_SAME = 0.001  # of the work: less is a batch that is not quite full
_CLASSES = 16
_FITS = 0.03  # of a step time, between a class of steps and the line through all of them
_ALONG = 0.5  # correlation of work and time

NO_WORK = (
    "the work of a step is not known, and one that takes longer may just do more: name its tokens, as in "
    "probe.step(tokens=...)"
)
NO_LINE = "the work of a step varies, and its time does not follow it"
ALONG_TIME = "the work of a step changes along with the run, so nobody can tell what else does"


def logs_per_work(work: Counts | None, seconds: Floats) -> Floats | str:
    """The logarithm of each step's time; where work varies, of what it would be at the typical work. Or why not.

    The time is taken to be a straight line over the work: something that each step costs, and something that each
    token does. Where classes of steps with like work are off that line, nothing is said.
    """
    import numpy as np

    if work is None:
        return NO_WORK
    done = work.astype(np.float64)
    logs = np.log(np.maximum(seconds, 1e-9))
    if done.max() <= done.min() * (1 + _SAME):
        return logs
    if abs(_rank_correlation(done)) > _ALONG:
        return ALONG_TIME
    line = _line(done, seconds)
    if line is None:
        return NO_LINE
    fixed, each = line
    expected = fixed + each * done
    return np.asarray(logs - np.log(expected / np.median(expected)))


def _line(work: Floats, seconds: Floats) -> tuple[float, float] | None:
    """Seconds of a step, and of a unit of its work; None where classes of steps do not lie on such a line."""
    import numpy as np

    edges = np.unique(np.quantile(work, np.linspace(0, 1, _CLASSES + 1)[1:-1]))
    classes = np.searchsorted(edges, work, side="right")
    present = np.unique(classes)
    x = np.array([np.median(work[classes == one]) for one in present])
    y = np.array([np.median(seconds[classes == one]) for one in present])
    one, other = np.triu_indices(len(x), k=1)
    apart = x[one] != x[other]
    if not apart.any():
        return None
    each = float(np.median((y[other] - y[one])[apart] / (x[other] - x[one])[apart]))
    fixed = float(np.median(y - each * x))
    expected = fixed + each * x
    if each < 0 or expected.min() <= 0 or np.abs(y / expected - 1).max() > _FITS:
        return None
    return fixed, each


def _rank_correlation(work: NDArray[np.float64]) -> float:
    import numpy as np
    from scipy.stats import rankdata

    order = rankdata(work)
    return float(np.corrcoef(order, np.arange(len(order)))[0, 1])
