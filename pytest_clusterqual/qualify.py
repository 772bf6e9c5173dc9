"""What the `qualify` fixture does: judge, record, and end the test accordingly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

import pytest

from pytest_clusterqual import units
from pytest_clusterqual.errors import MeasurementError
from pytest_clusterqual.judge.decision.verdict import judge_decision
from pytest_clusterqual.judge.judgement import Case as Figure
from pytest_clusterqual.judge.judgement import judge_quantity
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Judgement, Record, Verdict, accepted, verdict_of
from pytest_clusterqual.model.requirement import Requirement, own_requirement
from pytest_clusterqual.report import terminal
from pytest_clusterqual.report.asides import exception_of
from pytest_clusterqual.run.items import MEASUREMENT
from pytest_clusterqual.run.qualification import Qualification

_UNITS = (units.SECONDS, units.BYTES, units.RATE, units.TOKEN_RATE, units.FLOP_RATE, units.RATIO)


class Qualify:
    """Call it with a measurement, or use `samples` for figures of your own.

    Both return if the verdict is PASS. They fail the test on FAIL, UNDECIDED and ERROR, or end it as xfailed where the
    project file has an exception for it; MEASURED skips it, with the number.
    """

    def __init__(self, qualification: Qualification, item: pytest.Item) -> None:
        self._qualification = qualification
        self._item = item

    def __call__(self, measurement: Measurement | Decision) -> tuple[Judgement, ...]:
        """Judge `measurement` against the project file; the worst of its verdicts counts.

        Raises:
            MeasurementError: it is none, or one that cannot be judged.
        """
        if isinstance(measurement, Decision):
            return self._expected(measurement)
        if not isinstance(measurement, Measurement):
            raise MeasurementError(
                f"qualify(measurement): got {type(measurement).__name__}, want what the fixture `measurement` gives; "
                "figures of your own are judged by qualify.samples(...)"
            )
        judgements = judge(self._qualification.project.of_test(self._item.nodeid), measurement)
        records = self._qualification.recorder.add(
            self._item, judgements, measurement.conditions, self._item.stash.get(MEASUREMENT, None),
            started=measurement.started, seconds=measurement.seconds,
        )  # fmt: skip
        self._conclude(records, terminal.failure_message(judgements, measurement.conditions))
        return judgements

    def _expected(self, decision: Decision) -> tuple[Judgement, ...]:
        plan = self._qualification.project.decision or DecisionPlan()
        judgement = judge_decision(decision, plan)
        records = self._qualification.recorder.add(self._item, [judgement], started=time.time(), seconds=0.0)
        self._conclude(records, f"{judgement.verdict}: {judgement.reason}")
        return (judgement,)

    def samples(self, quantity: str, samples: Sequence[float], *, unit: str, require: str | None = None) -> Judgement:
        """Judge the median of your own samples, e.g. ``require="<= 5 ms"`` with ``unit="s"``.

        `samples` are independent, in the canonical `unit`: ``s``, ``B``, ``B/s``, ``tokens/s``, ``FLOP/s`` or ``1``.
        Without `require` the verdict is MEASURED.

        Raises:
            MeasurementError: `unit` is another one, or `require` is no ``"<op> <number> <unit>"`` of its kind.
        """
        requirement = self._required(quantity, unit, require)
        figure = Figure(
            quantity=quantity, label="", value=median(samples), unit=unit, interval=median_interval(samples),
            samples=tuple(samples), timing=False,
        )  # fmt: skip
        judgement = judge_quantity(figure, requirement)
        session, nodes = self._qualification.session, self._qualification.nodes_of(self._item)
        conditions = session.conditions(nodes=nodes, telemetry=session.telemetry(nodes)) if session.places else None
        records = self._qualification.recorder.add(
            self._item, [judgement], conditions, started=time.time(), seconds=0.0
        )
        self._conclude(records, terminal.failure_message([judgement], conditions))
        return judgement

    def _required(self, quantity: str, unit: str, require: str | None) -> Requirement | None:
        if unit not in _UNITS:
            raise MeasurementError(
                f"qualify.samples({quantity!r}): unit: got {unit!r}, want what the samples are in, one of "
                f"{', '.join(map(repr, _UNITS))}; only `require` may say 5 ms"
            )
        if require is None:
            return None
        try:
            return own_requirement(quantity, require, unit, source=self._item.nodeid)
        except ValueError as error:
            raise MeasurementError(f"qualify.samples({quantity!r}): require: {error}") from None

    def _conclude(self, records: Sequence[Record], message: str) -> None:
        verdict = verdict_of(records)
        if verdict is Verdict.PASS:
            return
        if verdict is Verdict.MEASURED:
            pytest.skip(message)
        if accepted(records):
            pytest.xfail(exception_of(records))
        self._fail("\n".join(filter(None, (message, exception_of(records)))))

    @staticmethod
    def _fail(message: str) -> NoReturn:
        pytest.fail(message, pytrace=False)
