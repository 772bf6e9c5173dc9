"""What the `qualify` fixture does: judge, record, and end the test accordingly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

import pytest

from pytest_clusterqual import criteria
from pytest_clusterqual.judge.decision.verdict import judge_decision
from pytest_clusterqual.judge.judgement import Case as Figure
from pytest_clusterqual.judge.judgement import judge_quantity
from pytest_clusterqual.judge.statistics import median, median_interval
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.measurement import Measurement
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Judgement, Verdict, worst
from pytest_clusterqual.model.requirement import own_requirement
from pytest_clusterqual.report import terminal
from pytest_clusterqual.run import Qualification, measurement_id


class Qualify:
    """Call it with a measurement, or use `samples` for figures of your own."""

    def __init__(self, qualification: Qualification, item: pytest.Item) -> None:
        self._qualification = qualification
        self._item = item

    def __call__(self, measurement: Measurement | Decision) -> tuple[Judgement, ...]:
        """Judge `measurement` against the project file; returns only if the verdict is PASS."""
        if isinstance(measurement, Decision):
            return self._expected(measurement)
        judgements = criteria.judge(self._qualification.project, measurement)
        self._qualification.record(
            self._item, judgements, measurement.conditions, measurement_id(self._item),
            started=measurement.started, seconds=measurement.seconds,
        )  # fmt: skip
        self._conclude(judgements, terminal.failure_message(judgements, measurement.conditions))
        return judgements

    def _expected(self, decision: Decision) -> tuple[Judgement, ...]:
        plan = self._qualification.project.decision or DecisionPlan()
        judgement = judge_decision(decision, plan)
        self._qualification.record(self._item, [judgement], started=time.time(), seconds=0.0)
        self._conclude([judgement], f"{judgement.verdict}: {judgement.reason}")
        return (judgement,)

    def samples(self, quantity: str, samples: Sequence[float], *, unit: str, require: str | None = None) -> Judgement:
        """Judge the median of your own samples, e.g. ``require="<= 5 ms"`` with ``unit="s"``.

        `samples` are independent, in the canonical unit: ``s``, ``B``, ``B/s``, ``tokens/s`` or ``1``.
        Without `require` the test is skipped as MEASURED, with the number.
        """
        requirement = own_requirement(quantity, require, unit, source=self._item.nodeid) if require else None
        figure = Figure(
            quantity=quantity, label="", value=median(samples), unit=unit, interval=median_interval(samples),
            samples=tuple(samples), timing=False,
        )  # fmt: skip
        judgement = judge_quantity(figure, requirement)
        session, nodes = self._qualification.session, self._qualification.nodes_of(self._item)
        conditions = session.conditions(nodes=nodes, telemetry=session.telemetry(nodes))
        self._qualification.record(self._item, [judgement], conditions, started=time.time(), seconds=0.0)
        self._conclude([judgement], terminal.failure_message([judgement], conditions))
        return judgement

    def _conclude(self, judgements: Sequence[Judgement], message: str) -> None:
        verdict = worst([judgement.verdict for judgement in judgements])
        if verdict is Verdict.PASS:
            return
        if verdict is Verdict.MEASURED:
            pytest.skip(message)
        if verdict in (Verdict.FAIL, Verdict.UNDECIDED):
            if reason := self._qualification.exception_for(self._item):
                pytest.xfail(f"{verdict}, excepted: {reason}")
            if expired := self._qualification.expired_exception(self._item):
                message += f"\n{expired}"
        self._fail(message)

    @staticmethod
    def _fail(message: str) -> NoReturn:
        pytest.fail(message, pytrace=False)
