"""Bus bandwidth: what the rate of a collective is multiplied by to compare it with a link's, as nccl-tests does."""

from __future__ import annotations

_SHARED = ("all_gather", "reduce_scatter", "all_to_all", "all_to_all_v")
_WHOLE = ("send_recv", "broadcast", "reduce")


def busbw_factor(collective: str, n: int) -> float:
    """What algbw is multiplied by to compare with a link's rate, for a group of `n` ranks.

    Raises:
        ValueError: an unknown collective, or a group of less than two.
    """
    if n < 2:
        raise ValueError(f"got a group of {n}, want at least 2 ranks")
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    if collective in _SHARED:
        return (n - 1) / n
    if collective in _WHOLE:
        return 1.0
    raise ValueError(f"got collective {collective!r}, want one of all_reduce, {', '.join(_SHARED + _WHOLE)}")
