"""The commands on runs that are recorded: report, decide, judge, baseline, export, merge, compare, seal and verify."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.commands.arguments import add_option, width
from pytest_clusterqual.options import tolerance

if TYPE_CHECKING:
    from pytest_clusterqual.folder.runs import RunFolder, Selected
    from pytest_clusterqual.model.decision import Decision
    from pytest_clusterqual.model.record import Record


def add_to(commands: Any) -> None:
    """Add them to the subcommands of `clusterqual`."""
    for add in (
        _add_report, _add_decide, _add_judge, _add_baseline, _add_export, _add_merge, _add_compare, _add_seal,
        _add_verify,
    ):  # fmt: skip
        add(commands)


def _add_report(commands: Any) -> None:
    command = commands.add_parser(
        "report", help="print the verdicts of a run, write its junit.xml, plots and page again"
    )
    command.add_argument("run", type=Path, help="run folder")
    command.add_argument("--all-plots", action="store_true", help="however long that takes (default: for 10 s)")
    command.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the run folder)")
    command.set_defaults(function=_report)


def _report(arguments: argparse.Namespace) -> int:
    """As a run does at its end, without its limit on the time for plots; 4 if a report could not be written."""
    from pytest_clusterqual.folder.runs import RunFolder
    from pytest_clusterqual.recorded.deciding import DECISION, conclude, decision_of, plan_of
    from pytest_clusterqual.recorded.reporting import JUNIT, PAGE, check_place, write_junit, write_page
    from pytest_clusterqual.report import plots

    folder = RunFolder.open(arguments.run)
    if arguments.out:
        check_place(arguments.out, run=folder.path)
    records, plan = folder.records(), plan_of(folder)
    budget = math.inf if arguments.all_plots else plots.BUDGET
    drawn, missing = plots.write_plots(records, folder.measurements(quick=True), folder.path / "plots", budget=budget)
    if missing:
        print(missing, file=sys.stderr)
    decision, page = decision_of(folder, plan), arguments.out or folder.path / PAGE
    problems = _problems({
        folder.path / JUNIT: lambda: write_junit(folder),
        folder.path / DECISION: lambda: conclude(folder, plan),
        page: lambda: write_page(folder, page, plots=drawn, note=missing, decision=decision),
    })  # fmt: skip
    code = show(folder, records, plots=len(drawn), decision=decision, page=None if page in problems else page)
    for why in problems.values():
        print(why, file=sys.stderr)
    if problems:
        remedy = "free some space, make the folder writable, or report on a copy of it"
        print(f"{remedy}; --out FILE puts the page elsewhere", file=sys.stderr)
    # Who names another place for the page can do without what a read-only run folder does not take.
    return 4 if problems and (page in problems or not arguments.out) else code


def _problems(reports: Mapping[Path, Callable[[], object]]) -> dict[Path, str]:
    """Make each report; why some could not be written."""
    from pytest_clusterqual.errors import RunFolderError

    found = {}
    for path, make in reports.items():
        try:
            make()
        except RunFolderError as error:
            why = error.__cause__
            found[path] = f"{path}: cannot be written: {why.strerror}" if isinstance(why, OSError) else str(error)
    return found


def _add_decide(commands: Any) -> None:
    command = commands.add_parser("decide", help="the worksheet of a run: does the job need several nodes?")
    command.add_argument("run", type=Path, help="run folder")
    shown = command.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="as one JSON object")
    shown.add_argument("--markdown", action="store_true", help="as Markdown")
    add_option(
        command, "--qual-config", type=Path, metavar="FILE", help="project file that expects an outcome (the run's own)"
    )
    command.set_defaults(function=_decide)


def _decide(arguments: argparse.Namespace) -> int:
    """1 if the project file expects another outcome."""
    from pytest_clusterqual.folder.runs import RunFolder
    from pytest_clusterqual.judge.decision.verdict import decide
    from pytest_clusterqual.read.project import load_project
    from pytest_clusterqual.recorded.deciding import plan_of
    from pytest_clusterqual.report import worksheet

    folder, file = RunFolder.open(arguments.run), arguments.qual_config
    plan = load_project(file).decision if file else plan_of(folder)
    decision = decide(folder.numbered(), plan)
    if arguments.json:
        print(worksheet.as_json(decision, run=folder.run), end="")
    elif arguments.markdown:
        print(worksheet.markdown(decision, run=folder.run), end="")
    else:
        print(worksheet.worksheet(decision, run=folder.run, width=width(100), color=sys.stdout.isatty()))
    return 0 if plan is None or plan.expect in (None, decision.outcome) else 1


def _add_judge(commands: Any) -> None:
    command = commands.add_parser("judge", help="judge the raw measurements of a run again, and say what has changed")
    command.add_argument("run", type=Path, help="run folder")
    command.add_argument("--config", type=Path, help="project file with the requirements to apply (default: the run's)")
    command.set_defaults(function=_judge)


def _judge(arguments: argparse.Namespace) -> int:
    """The run folder is only read."""
    from pytest_clusterqual.folder.runs import RunFolder
    from pytest_clusterqual.judge.decision.verdict import decide
    from pytest_clusterqual.read.project import load_project
    from pytest_clusterqual.recorded.judging import (
        as_lines,
        asked,
        changes,
        decided,
        judge_again,
        other_job,
        own_project,
    )

    folder = RunFolder.open(arguments.run)
    told = folder.environment
    project = (
        load_project(
            arguments.config, nodes=told.get("nodes"), nproc_per_node=told.get("nproc_per_node"), data=False,
            option="--config",
        )
        if arguments.config else own_project(folder)
    )  # fmt: skip
    records = judge_again(folder, project)
    decision = decide(dict(enumerate(records, 1)), project.decision)
    tests = {
        test: selected for test, selected in folder.tests.items()
        if selected.criterion == "own" or asked(project, selected.criterion)
    }  # fmt: skip
    code = show(folder, [*records, *decided(folder, project, decision)], decision=decision, tests=tests)
    for line in as_lines(changes(folder.records(), records)):
        print(f"changed    {line}")
    if arguments.config and (keys := other_job(folder, project)):
        print(f"warning    {arguments.config} describes another job than was measured: {', '.join(keys)}")
    return code


def _add_baseline(commands: Any) -> None:
    command = commands.add_parser("baseline", help="a known good run as requirements, for a project file")
    command.add_argument("run", type=Path, help="run folder")
    command.add_argument(
        "--tolerance", type=tolerance, default="5 %", metavar="SHARE", help="how much worse is as good (default: 5 %%)"
    )
    command.set_defaults(function=_baseline)


def _baseline(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.recorded.baseline import as_yaml, requirements_of

    required = requirements_of(arguments.run, tolerance=arguments.tolerance)
    print(as_yaml(required, run=arguments.run.resolve().name, tolerance=arguments.tolerance), end="")
    return 0


def _add_export(commands: Any) -> None:
    command = commands.add_parser("export", help="the verdicts of a run for other programs to show")
    command.add_argument("run", type=Path, help="run folder")
    command.add_argument(
        "--format", choices=["markdown", "openmetrics"], required=True,
        help="for the summary of a CI job, or for what collects metrics",
    )  # fmt: skip
    command.set_defaults(function=_export)


def _export(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.folder.runs import RunFolder
    from pytest_clusterqual.recorded.deciding import decision_of, plan_of
    from pytest_clusterqual.recorded.outcomes import asked_of, unanswered
    from pytest_clusterqual.report.markdown import markdown
    from pytest_clusterqual.report.metrics import metrics

    folder = RunFolder.open(arguments.run)
    records = folder.records()
    if arguments.format == "openmetrics":
        if not records:
            print(f"{folder.path}: holds no record, so there is no metric", file=sys.stderr)
            return 1
        print(metrics(records), end="")
        return 0
    print(markdown(
        records, run=folder.run, simulated=folder.simulated, decision=decision_of(folder, plan_of(folder)),
        unanswered=unanswered(folder.tests, records, ended=folder.ended), asked=asked_of(folder.tests),
    ), end="")  # fmt: skip
    return 0


def _add_merge(commands: Any) -> None:
    command = commands.add_parser("merge", help="parts of one qualification that ran apart, as one run")
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="run folder to make")
    command.set_defaults(function=_merge)


def _merge(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.recorded.merging import merge

    folder = merge(arguments.runs, arguments.out)
    return _report(argparse.Namespace(run=folder.path, out=None, all_plots=False))


def _add_compare(commands: Any) -> None:
    command = commands.add_parser("compare", help="what has changed since an earlier run of the same tests")
    command.add_argument("old", type=Path, help="run folder to compare with")
    command.add_argument("new", type=Path, nargs="+", help="run folders; five runs in all, or more, become a trend")
    command.add_argument("--json", action="store_true", help="all figures instead of tables")
    command.add_argument("--plot", type=Path, metavar="FILE", help="three runs or more as an SVG file")
    command.set_defaults(function=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    """1 if something is worse."""
    from pytest_clusterqual.recorded.comparing import as_json, as_text, compare_runs, write_plot
    from pytest_clusterqual.recorded.reporting import check_place

    if arguments.plot:
        check_place(arguments.plot)
    found = compare_runs([arguments.old, *arguments.new])
    print(as_json(found) if arguments.json else as_text(found, width=width(100), color=sys.stdout.isatty()))
    if arguments.plot:
        write_plot(found, arguments.plot)
    return 1 if found.worse else 0


def _add_seal(commands: Any) -> None:
    command = commands.add_parser("seal", help="pack a run into one signed file that can be checked anywhere")
    command.add_argument("run", type=Path, help="run folder")
    command.add_argument("--key", type=Path, metavar="FILE", help="ssh key to sign with, such as ~/.ssh/id_ed25519")
    command.add_argument("--out", type=Path, metavar="FILE", help="the file to make (default: here, by the run's name)")
    command.set_defaults(function=_seal)


def _seal(arguments: argparse.Namespace) -> int:
    """What `verify` will not find to follow is told now, while the run is at hand."""
    from pytest_clusterqual.folder.runs import RunFolder
    from pytest_clusterqual.recorded.following import follow
    from pytest_clusterqual.recorded.following import problems as not_followed
    from pytest_clusterqual.recorded.sealing import default_name, seal
    from pytest_clusterqual.report.text import visible

    folder = RunFolder.open(arguments.run)
    key = arguments.key.expanduser() if arguments.key else None
    problems = list(not_followed(follow(folder)))  # what cannot be read must not leave a seal behind
    sealed = seal(folder, key=key, out=arguments.out or default_name(arguments.run))
    print(f"sealed     {sealed.file}" + ("" if key else "; nobody has signed it: name an ssh key with --key"))
    made = f"{', '.join(sealed.made)}: the run folder has none newer than its records"
    told = [("made", made)] if sealed.made else []
    told += [("left out", f"{link}: a link; copy what it points to into the run folder") for link in sealed.left_out]
    for about, text in (*told, *problems):
        print(f"{about:<10} {visible(text)}", file=sys.stderr)
    return 0


def _add_verify(commands: Any) -> None:
    command = commands.add_parser("verify", help="check a sealed run: its parts, its signature, its verdicts")
    command.add_argument("file", type=Path, help="what seal has made")
    command.add_argument("--signers", type=Path, metavar="FILE", help="keys you trust, as ssh's allowed_signers")
    command.add_argument("--extract", type=Path, metavar="DIR", help="run folder to make of it, if all is as sealed")
    command.set_defaults(function=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    """1 if anything is not as it was sealed, or was not shown to follow from what was measured."""
    from pytest_clusterqual.recorded.verifying import as_lines, verify
    from pytest_clusterqual.report.text import visible

    found = verify(arguments.file, signers=arguments.signers, extract=arguments.extract)
    for about, text in as_lines(found, extracted=arguments.extract):
        print(f"{about:<10} {visible(text)}")
    return 0 if found.holds else 1


def show(
    folder: RunFolder, records: Sequence[Record], *, numbers_do: bool = False, plots: int = 0,
    decision: Decision | None = None, page: Path | None = None, tests: Mapping[str, Selected] | None = None,
) -> int:  # fmt: skip
    """The verdicts as a table, and what keeps them from 0; of evidence without a project file MEASURED is enough
    (`numbers_do`).

    `tests` are those that were asked for, by default all that the run was asked for.
    """
    from pytest_clusterqual.recorded.outcomes import asked_of, exit_code, unanswered
    from pytest_clusterqual.report import terminal

    tests = folder.tests if tests is None else tests
    print(terminal.summary(
        records, run_folder=str(folder.path), simulated=folder.simulated, width=width(100), color=sys.stdout.isatty(),
        plots=plots, decision=decision, page=str(page or ""), asked=asked_of(tests),
        replay_of=str(folder.environment.get("replay_of", "")),
    ))  # fmt: skip
    for torn in folder.torn:
        print(f"{torn}: the last line was cut off by a kill and is left out", file=sys.stderr)
    for why in [] if numbers_do else unanswered(tests, records, ended=folder.ended):
        print(why)
    if folder.lost:
        print(folder.lost, file=sys.stderr)
        return 1
    if not (tests or records):
        print("nothing was asked of this run, and nothing was recorded")
        return 1
    return exit_code(tests, records, numbers_do=numbers_do, ended=folder.ended)
