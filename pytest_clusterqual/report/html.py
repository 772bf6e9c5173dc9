"""The page of a run: one file that asks for nothing else, runs no script and is read by people who were not there."""

from __future__ import annotations

import base64
import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

from pytest_clusterqual import __version__
from pytest_clusterqual.model.decision import Decision
from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.report import html_plots, html_sections, html_tables, html_top, text
from pytest_clusterqual.report.digest import by_criterion
from pytest_clusterqual.report.inventory import inventory
from pytest_clusterqual.report.overall import missing_tests, overall
from pytest_clusterqual.report.plots import Plot

_TEMPLATE, _STYLE = "page.html.j2", "page.css"
_UNSEEN = ("Cc", "Cf", "Cs")  # control, text direction, half a character


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """Everything that the page tells of a run.

    `environment` is that of the run folder. `note` says which plots are missing, `left_out` why a test does not apply
    here, and `asked` has the tests of each criterion that do. `nodes` are what they were found to be made of.
    """

    run: str
    simulated: bool
    environment: Mapping[str, Any]
    records: Sequence[Record]
    decision: Decision | None = None
    plots: Sequence[Plot] = ()
    note: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nodes: Sequence[NodeHardware] = ()


def html_report(told: Told) -> str:
    """The whole page. Every text that comes from elsewhere is escaped, and what could steer a terminal or turn the
    direction of writing is shown as its escape.
    """
    style = _read(_STYLE)
    criteria, missing = by_criterion(told.records), missing_tests(told.records, told.asked)
    pictures, left_out = html_plots.chosen(told.plots)
    return text.xml_safe(_template().render(
        version=__version__,
        style=html_plots.Markup(style),
        style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        title=told.environment.get("project") or told.run,
        simulated=told.simulated,
        overall=overall(told.records, told.asked, simulated=told.simulated),
        tiles=html_top.tiles(criteria, told.asked),
        outcome=html_top.outcome(told.decision),
        command=text.repeat_with(told.environment),
        facts=html_top.facts(told.run, told.environment, told.records, simulated=told.simulated),
        foremost=html_top.foremost(told.records),
        warnings=html_top.warnings(told.environment, told.records, missing, told.note),
        sections=[
            html_sections.section(name, group, pictures.get(name, ()), left_out.get(name, 0), told.asked)
            for name, group in criteria.items()
            if name != "decision"
        ],
        inventory=inventory(told.nodes),
        decision=html_tables.decision_tables(told.decision),
        symptoms=html_tables.symptoms(told.decision),
        telemetry=html_tables.telemetry(told.records),
        left_out=html_tables.counted(told.left_out.values()),
        environment=html_tables.environment(told.environment),
        project_file=_preformatted(str(told.environment.get("project_file", ""))),
    ))  # fmt: skip


def _preformatted(source: str) -> html_plots.Markup:
    """A text of several lines as it stands, what cannot be seen as its escape."""
    seen = (
        char.encode("unicode_escape").decode() if char not in "\n\t" and unicodedata.category(char) in _UNSEEN else char
        for char in source
    )
    return html_plots.Markup(escape("".join(seen)))


def _template() -> Any:
    import jinja2

    def shown(value: Any) -> Any:
        return text.visible(value) if type(value) is str else value

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=shown
    )
    return environment.from_string(_read(_TEMPLATE))


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
