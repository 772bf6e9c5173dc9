"""Parts of a step close, by union; ranks are aggregated by the furthest; kernels are compared with themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces_made import Spans, activity, trace

from pytest_clusterqual.judge.step.exposed import inflation, step_parts, together
from pytest_clusterqual.model.trace import Activity, Inflation, Parts, Together, Trace

SPANS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 100)).map(lambda pair: (pair[0], pair[0] + pair[1])))
NANO = 1e-9


def parts(compute: float, overlapped: float, exposed: float, memory: float, idle: float) -> Parts:
    return Parts(compute=compute, overlapped=overlapped, exposed=exposed, memory=memory, idle=idle)


def nanoseconds(made: Trace) -> list[tuple[int, ...]]:
    return [
        tuple(
            round(getattr(step.parts, name) / NANO) for name in ("compute", "overlapped", "exposed", "memory", "idle")
        )
        for step in step_parts(made)
    ]


def test_overlapping_and_nested_work_counts_once() -> None:
    made = trace(
        compute=[(0, 30), (10, 20), (25, 40), (90, 100)], communication=[(35, 60), (38, 50)],
        memory=[(55, 70), (0, 100), (95, 120)], steps=[(1, 0, 130)],
    )  # fmt: skip
    assert nanoseconds(made) == [(45, 5, 20, 50, 10)]
    assert step_parts(made)[0].parts.overlap == pytest.approx(5 / 25)


def test_a_trace_without_steps_is_one_whole_from_the_first_work_to_the_last() -> None:
    made = trace(compute=[(50, 60)], communication=[(80, 90)])
    assert [step.number for step in step_parts(made)] == [None]
    assert nanoseconds(made) == [(10, 0, 10, 0, 20)]


def test_without_communication_nothing_is_hidden_or_exposed() -> None:
    assert step_parts(trace(compute=[(0, 10)]))[0].parts.overlap is None


def test_a_step_begins_when_what_was_asked_for_before_is_computed() -> None:
    compute = activity([(0, 50), (100, 180), (180, 240), (260, 280)], steps=[-1, 0, 1, 1])
    made = trace(compute=compute, communication=activity([(170, 190)]), steps=[(7, 10, 100), (8, 100, 250)])
    # The host begins step 7 at 10 and step 8 at 100; the device is busy with earlier work until 50 and 180.
    assert [step.number for step in step_parts(made)] == [7, 8]
    assert nanoseconds(made) == [(70, 10, 0, 0, 50), (70, 10, 0, 0, 20)]


def brute(compute: Spans, communication: Spans, memory: Spans, until: int) -> tuple[int, ...]:
    """Instant by instant."""
    works, talks, copies = (
        {at for start, end in spans for at in range(start, end)} for spans in (compute, communication, memory)
    )
    sizes = [works - talks, works & talks, talks - works, copies - works - talks]
    return *map(len, sizes), until - len(works | talks | copies)


@settings(deadline=None)
@given(SPANS, SPANS, SPANS)
def test_parts_are_what_an_instant_by_instant_count_gives(compute: Spans, communication: Spans, memory: Spans) -> None:
    made = trace(compute, communication, memory, steps=[(0, 0, 600)])
    assert nanoseconds(made) == [brute(compute, communication, memory, 600)]


@settings(deadline=None)
@given(SPANS, SPANS, SPANS, st.lists(st.integers(0, 400), min_size=1, unique=True), st.integers(-(10**6), 10**12))
def test_sums_close_and_the_clock_does_not_matter(
    compute: Spans, communication: Spans, memory: Spans, begins: list[int], shift: int
) -> None:
    begins = sorted(begins)
    steps = [(number, begin, end) for number, (begin, end) in enumerate(zip(begins, [*begins[1:], 600], strict=True))]
    work = {
        "compute": activity(compute, steps=[sum(begin <= start for begin in begins) - 1 for start, _ in compute]),
        "communication": activity(communication), "memory": activity(memory),
    }  # fmt: skip
    made = trace(**work, steps=steps)
    found = nanoseconds(made)
    assert all(value >= 0 for row in found for value in row)
    before = max([begins[0], *(end for (_, end), step in zip(compute, work["compute"].step, strict=True) if step < 0)])
    assert sum(map(sum, found)) == max(600, before) - before
    for step in step_parts(made):
        assert step.parts.total == pytest.approx(sum(found[step.number or 0]) * NANO)
    moved = {
        name: replace(some, **{side: [at + shift for at in getattr(some, side)] for side in ("start", "end")})
        for name, some in work.items()
    }
    assert nanoseconds(trace(**moved, steps=[(n, a + shift, b + shift) for n, a, b in steps])) == found


@settings(deadline=None)
@given(SPANS, st.integers(1, 99), st.randoms(use_true_random=False))
def test_cutting_spans_and_their_order_change_nothing(spans: Spans, at: int, random: object) -> None:
    cut = [piece for a, b in spans for piece in ((a, a + (b - a) * at // 100), (a + (b - a) * at // 100, b))]
    random.shuffle(cut)  # type: ignore[attr-defined]
    other = [(200, 300)]
    assert nanoseconds(trace(spans, other, steps=[(0, 0, 600)])) == nanoseconds(trace(cut, other, steps=[(0, 0, 600)]))
    assert nanoseconds(trace(other, spans, steps=[(0, 0, 600)])) == nanoseconds(trace(other, cut, steps=[(0, 0, 600)]))


def test_a_fast_rank_that_waits_costs_nothing_more() -> None:
    slow, fast = parts(7, 1, 1, 0, 1), parts(5, 1, 3, 0, 1)
    assert together([[slow], [fast]]) == Together(compute=8, exposed=1, memory=0, idle=1)
    # Another rank is the slow one in another step: the job waits for each of them.
    assert together([[slow, fast], [fast, slow]]) == Together(compute=16, exposed=2, memory=0, idle=2)


@settings(deadline=None)
@given(st.lists(st.lists(st.lists(st.floats(0, 10), min_size=5, max_size=5), min_size=2, max_size=2), min_size=1))
def test_together_closes_to_the_slowest_rank_of_each_step(rows: list[list[list[float]]]) -> None:
    ranks = [[parts(*row) for row in steps] for steps in rows]
    found = together(ranks)
    assert found.total == pytest.approx(sum(max(step.total for step in of) for of in zip(*ranks, strict=True)))
    assert min(found.compute, found.exposed, found.memory, found.idle) >= -1e-9


def kernels(alone: list[int], under: list[int], kind: int = 0) -> Activity:
    """Spans of these lengths, first alone and then from 10000 on, where communication is."""
    starts = [100 * place for place in range(len(alone))] + [10_000 + 100 * place for place in range(len(under))]
    spans = [(start, start + length) for start, length in zip(starts, alone + under, strict=True)]
    return activity(spans, kinds=[kind] * len(spans))


TALK = [(10_000, 20_000)]


def test_compute_inflation_is_the_ratio_of_medians() -> None:
    made = trace(compute=kernels([10, 10, 11, 10, 90], [15, 15, 16, 15, 1]), communication=TALK)
    assert inflation(made) == Inflation(ratio=pytest.approx(1.5), kernels=1)


def test_each_kernel_is_compared_with_itself() -> None:
    short, long = kernels([10] * 5, [10] * 5), kernels([100] * 5, [130] * 5, kind=1)
    both = Activity(**{
        name: [*getattr(short, name), *getattr(long, name)] for name in ("start", "end", "step", "kind")
    })  # fmt: skip
    assert inflation(trace(both, TALK)) == Inflation(ratio=pytest.approx((50 + 650) / (50 + 500)), kernels=2)


@pytest.mark.parametrize(
    "made",
    [
        trace(compute=kernels([10] * 4, [15] * 9), communication=TALK),
        trace(compute=kernels([10] * 9, [15] * 4), communication=TALK),
        trace(compute=kernels([10] * 9, [15] * 9)),
        trace(compute=kernels([10] * 9, [15] * 9), communication=TALK, cpu=True),
        trace(communication=TALK),
    ],
)
def test_too_few_samples_give_no_inflation(made: Trace) -> None:
    assert inflation(made) is None
