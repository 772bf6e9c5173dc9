"""Which node, or which two, make a job fail that names nobody: found by trying about log N parts of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

LEAST_NODES = 4  # of fewer, trying parts says no more than looking at them
Group = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One node with which the job fails, or two that fail together; `because` says it, or why nobody is named."""

    nodes: Group
    because: str


def search(nodes: Sequence[str]) -> Generator[Group, bool, Found]:
    """Ask for groups to try, be told if the job failed in them, return what was found.

    The job failed on all `nodes`, at least `LEAST_NODES`, and is taken to fail wherever the guilty ones take part. The
    first nodes are tried, more or fewer, until one more makes the difference: that one is guilty, by itself or
    with one before it. A single node takes log2 N + 2 runs, two that fail together up to 2 log2 N + 3.
    """
    count = yield from _smallest(lambda count: tuple(nodes[:count]), passes=1, fails=len(nodes))
    if count == 2:
        return (yield from _of_the_first_two(nodes))
    one, before = nodes[count - 1], tuple(nodes[: count - 1])
    with_first = yield (before[0], one)
    with_second = yield (before[1], one)
    if with_first and with_second:
        return _node(one, before[:2])
    if with_first or with_second:
        return _pair(before[0] if with_first else before[1], one)
    reached = yield from _smallest(lambda count: (*before[:count], one), passes=2, fails=len(before))
    other = before[reached - 1]
    if (yield (other, one)):
        return _pair(other, one)
    return Found(nodes=(), because="it did not fail again in any two nodes: it comes and goes, or takes more of them")


def conclude(asked: Generator[Group, bool, Found], fails: Callable[[Group], bool]) -> Found:
    """Run a search to its end; `fails` tries the job on a group of nodes."""
    try:
        group = next(asked)
        while True:
            group = asked.send(fails(group))
    except StopIteration as end:
        found: Found = end.value
        return found


def _smallest(
    group: Callable[[int], Group], *, passes: int, fails: int
) -> Generator[Group, bool, int]:  # fmt: skip
    """The smallest count whose group fails, where the counts `passes` and `fails` are known."""
    while fails - passes > 1:
        middle = (passes + fails) // 2
        if (yield group(middle)):
            fails = middle
        else:
            passes = middle
    return fails


def _of_the_first_two(nodes: Sequence[str]) -> Generator[Group, bool, Found]:
    first, second, third = nodes[:3]
    with_first = yield (first, third)
    with_second = yield (second, third)
    if with_first and with_second:
        return Found(nodes=(), because=f"any two of {first}, {second} and {third} fail: there is more than one cause")
    if with_first or with_second:
        return _node(first if with_first else second, (second if with_first else first, third))
    return _pair(first, second)


def _node(node: str, partners: Sequence[str]) -> Found:
    return Found(
        nodes=(node,), because=f"it fails wherever {node} takes part, with {' and with '.join(partners)} alike"
    )


def _pair(one: str, other: str) -> Found:
    return Found(
        nodes=(one, other),
        because=f"it fails where {one} and {other} take part together, not with either of them alone",
    )
