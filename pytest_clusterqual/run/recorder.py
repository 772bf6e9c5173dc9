"""From the judgements of a test to its records, in the run folder at once and in pytest's own JUnit file."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.record import SCHEMA, Judgement, Record, Verdict, worst
from pytest_clusterqual.recorded.judging import changes
from pytest_clusterqual.recorded.outcomes import earlier, with_exception
from pytest_clusterqual.report import junit
from pytest_clusterqual.run.items import GATES_NOT_RUN, RECORDED, name_of_criterion
from pytest_clusterqual.run.replay import Replay


class Recorder:
    """Writes what became of each test; `problem` says why a record is not on disk."""

    def __init__(self, folder: RunFolder, project: Project, replay: Replay | None) -> None:
        self.problem = ""
        self._folder, self._project, self._replay = folder, project, replay

    def add(
        self,
        item: pytest.Item,
        judgements: Sequence[Judgement],
        conditions: Conditions | None = None,
        measurement: str | None = None,
        *,
        started: float,
        seconds: float,
    ) -> list[Record]:
        """One record a judgement; `started` is of the wall clock."""
        before = self._earlier(item)
        # What is required comes first: it is what a reader of the test looks for.
        records = [
            Record(
                schema=SCHEMA,
                run=self._folder.run,
                test=item.nodeid,
                criterion=name_of_criterion(item),
                judgement=judgement,
                conditions=conditions,
                measurement=measurement,
                started=started,
                seconds=seconds,
                attempt=self._folder.attempt,
                earlier=before,
                gates_not_run=item.stash.get(GATES_NOT_RUN, ()),
            )
            for judgement in sorted(judgements, key=lambda judgement: judgement.verdict is Verdict.MEASURED)
        ]
        records = [with_exception(record, self._project) for record in records]
        # A resumed run judges again what it kept, and keeps the record, too, where that says the same.
        known = [each for each in self._folder.records() if (each.test, each.measurement) == (item.nodeid, measurement)]
        again = measurement is not None and not changes(known, records)
        self.keep([] if again else records)
        item.user_properties.extend(junit.numbered(records))
        before_it = [item.stash[RECORDED]] if RECORDED in item.stash else []
        item.stash[RECORDED] = worst([*before_it, *(record.judgement.verdict for record in records)])
        return records

    def keep(self, records: Sequence[Record]) -> None:
        """Write the records of a test as they are."""
        try:
            self._folder.add_records(records)
        except RunFolderError as error:
            self.problem = str(error)  # told at the end; the folder keeps the records and tries again

    def _earlier(self, item: pytest.Item) -> tuple[Verdict, ...]:
        """The verdicts of earlier attempts; the decision makes none, it follows from what others made."""
        if name_of_criterion(item) == "decision":
            return ()
        return earlier(self._folder, item.nodeid) if self._replay is None else self._replay.earlier(item.nodeid)
