"""The `clusterqual` command: what comes before a qualification run, and what can be done with a recorded one."""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_clusterqual import __version__
from pytest_clusterqual.commands import recorded_runs
from pytest_clusterqual.commands.arguments import PROJECT_FILES, add_option, add_project_file, file_of, width
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.options import PROJECT_FILE, positive

if TYPE_CHECKING:
    from pytest_clusterqual.model.project import LauncherOptions
    from pytest_clusterqual.session.hosts import Answers


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 all is well, 1 not all, 2 usage, 4 something could not be read, written or asked."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.function(arguments))
    except ClusterQualError as error:
        print(f"clusterqual: {error}", file=sys.stderr)
        return 4
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="clusterqual", description="Before and after a qualification run.")
    parser.add_argument("--version", action="version", version=f"clusterqual {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="ask every host whether ranks can run there, before any is started")
    add_project_file(doctor)
    _add_hosts(doctor, _doctor)
    plan = commands.add_parser("plan", help="what a project file asks of network and memory, and what could be bought")
    add_project_file(plan)
    add_option(plan, "--nodes", type=positive, metavar="N", help="number of nodes (default: the file's hosts)")
    add_option(plan, "--nproc-per-node", type=positive, metavar="G", help="ranks on each node (default: the file's)")
    plan.add_argument("--json", action="store_true", help="all figures, in bytes, instead of tables")
    plan.set_defaults(function=_plan, refuse=plan.error)
    init = commands.add_parser("init", help="write the qualification tests, and a project file for what is found")
    init.add_argument(
        "folder", type=Path, nargs="?", default=Path(), metavar="DIR", help="where qualification/ is made"
    )
    _add_hosts(init, _init)
    tools = commands.add_parser("import", help="read what another tool has measured").add_subparsers(
        required=True, metavar="TOOL"
    )
    _add_import(tools.add_parser("nccl-tests", help="judge it as if it were measured here; also of rccl-tests"))
    trace = tools.add_parser("trace", help="where the time of each rank went, from traces of the PyTorch profiler")
    trace.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".json or .json.gz, one a rank")
    trace.add_argument("--json", action="store_true", help="all figures, seconds, instead of a table")
    trace.set_defaults(function=_import_trace)
    _add_import_log(tools.add_parser("log", help="steps, pauses and restarts of a training job, from what it printed"))
    _add_import_points(tools.add_parser("points", help="scaling points of a CSV table, judged by the same rules"))
    probe = tools.add_parser("probe", help="where the time of a training run went, from what its script wrote")
    probe.add_argument("folder", type=Path, metavar="DIR", help="the folder that CLUSTERQUAL_PROBE named")
    probe.add_argument("--json", action="store_true", help="all figures, seconds, instead of a table")
    probe.set_defaults(function=_import_probe)
    recorded_runs.add_to(commands)
    completion = commands.add_parser("completion", help="what makes a shell complete this command: source its output")
    completion.add_argument("shell", choices=["bash", "zsh", "tcsh"])
    completion.set_defaults(function=_completion)
    return parser


def _completion(arguments: argparse.Namespace) -> int:
    import shtab  # on first use

    parser = _parser()
    for each in _with_subparsers(parser):
        for action in each._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
    print(shtab.complete(parser, arguments.shell))
    return 0


def _with_subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _with_subparsers(each)


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", type=Path, nargs="+", metavar="FILE", help="its output, or its JSON (-J)")
    add_project_file(command)
    add_option(command, "--qual-run-dir", type=Path, metavar="DIR", help="run folder to make (default: by the time)")
    unlisted = "where the files do not list them"
    command.add_argument("--nodes", type=positive, metavar="N", help=f"number of nodes, {unlisted}")
    command.add_argument("--nproc-per-node", type=positive, metavar="G", help=f"ranks on each node, {unlisted}")
    command.add_argument(
        "--group", choices=["world", "intra_node", "inter_node"], default="world", help="what the ranks were (world)"
    )
    command.add_argument("--collective", metavar="NAME", help="what the files are of, where their text does not say")
    command.set_defaults(function=_import)


def _add_import_log(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", type=Path, nargs="+", metavar="FILE", help="of one run, in the order of its restarts")
    command.add_argument("--pattern", metavar="REGEX", help="a line of a step, with groups: step, seconds, ...")
    command.add_argument("--tokens-per-step", type=positive, metavar="N", help="work of a step, on all devices")
    command.add_argument("--json", action="store_true", help="all figures, lines and pauses instead of a table")
    command.set_defaults(function=_import_log)


def _add_import_points(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="CSV with a header, a line a run")
    add_project_file(command)
    command.add_argument(
        "--same", type=_name_and_value, action="append", default=[], metavar="NAME=VALUE",
        help="a column that the table lacks, the same on all its lines, such as software=ngc24.09",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="all figures instead of a table")
    command.set_defaults(function=_import_points)


def _add_hosts(command: argparse.ArgumentParser, function: Callable[[argparse.Namespace], int]) -> None:
    """The options that say which hosts are meant."""
    hosts = "gpu[001-016],gpu020 or a file with one a line (default: the project file's, else this machine)"
    add_option(command, "--qual-hosts", metavar="HOSTS", help=hosts)
    add_option(command, "--qual-launcher", metavar="KIND", help="ssh, mpi, slurm or local (ssh if hosts are named)")
    add_option(command, "--nodes", type=positive, metavar="N", help="how many of the hosts, or of Slurm's nodes")
    command.add_argument("--python", metavar="PATH", help="the Python on the hosts (default: the one that runs this)")
    command.add_argument(
        "--timeout", type=_seconds, metavar="S", help="seconds until a host must have answered (default: 30)"
    )
    command.set_defaults(function=function, refuse=command.error)


def _name_and_value(text: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in text.partition("="))
    if not name or not value:
        raise argparse.ArgumentTypeError(f"want NAME=VALUE, got {text!r}")
    return name, value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"want a number of seconds, got {text!r}")
    return seconds


def _launcher(arguments: argparse.Namespace, options: LauncherOptions) -> LauncherOptions:
    """The launcher that the options name, or usage and exit code 2."""
    from pytest_clusterqual.session.hosts import launcher_options, to_ask

    try:
        chosen = launcher_options(options, kind=arguments.qual_launcher, hosts=arguments.qual_hosts)
        return to_ask(chosen, count=arguments.nodes, python=arguments.python)
    except ClusterQualError as error:
        arguments.refuse(str(error))  # leaves
        raise


def _ask(arguments: argparse.Namespace, options: LauncherOptions) -> Answers:
    from pytest_clusterqual.session.hosts import ask

    timeout = arguments.timeout or options.survey_timeout
    tell = functools.cache(lambda text: print(text, file=sys.stderr))  # a scheduler says the same again and again
    return ask(options, count=arguments.nodes, timeout=timeout, tell=tell)


def _doctor(arguments: argparse.Namespace) -> int:
    """1 if some host cannot run ranks as it is."""
    from pytest_clusterqual.judge.nodes.hosts import judge_hosts
    from pytest_clusterqual.model.project import LauncherOptions
    from pytest_clusterqual.read.hosts import fold_hosts
    from pytest_clusterqual.read.project import load_project
    from pytest_clusterqual.report.doctor import doctor_report

    file = file_of(arguments)
    answers = _ask(arguments, _launcher(arguments, load_project(file).launcher if file else LauncherOptions()))
    problems = judge_hosts(answers.checks, answers.hardware, answers.silent, package=__version__)
    print(doctor_report(
        answers.asked, answers.checks, answers.hardware, problems, fold=fold_hosts, width=width(120),
        color=sys.stdout.isatty(),
    ))  # fmt: skip
    return 0 if all(problem.warning for problem in problems) else 1


def _plan(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.commands.planning import parts
    from pytest_clusterqual.model.codec import to_json
    from pytest_clusterqual.read.project import load_project

    file = file_of(arguments) or PROJECT_FILES[0]
    nodes = arguments.nodes or len(load_project(file).launcher.hosts) or None
    project = load_project(file, nodes=nodes, nproc_per_node=arguments.nproc_per_node)
    if nodes is None and project.purchase is None:
        arguments.refuse("say how many nodes to plan for, e.g. --nodes 2")  # leaves
    found = parts(project, nodes=nodes)
    if arguments.json:
        print(json.dumps({part.key: to_json(part.found) for part in found}, indent=1))
        return 0
    for number, part in enumerate(found):  # each as soon as it is there: an estimate takes its time
        print(("\n" if number else "") + part.show(part.found, width=width(120), color=sys.stdout.isatty()), flush=True)
    return 0


def _init(arguments: argparse.Namespace) -> int:
    """What the file cannot tell goes to standard error: hosts of which it knows nothing."""
    from pytest_clusterqual.commands.init import check_free, suite, write
    from pytest_clusterqual.judge.nodes.properties import with_fabric_nics
    from pytest_clusterqual.model.project import LauncherOptions
    from pytest_clusterqual.report.project_file import project_file
    from pytest_clusterqual.session.hosts import in_short

    folder, files = arguments.folder / "qualification", {PROJECT_FILE: "", **suite()}
    check_free(folder, files)
    options = _launcher(arguments, LauncherOptions())
    answers = _ask(arguments, options)
    for node, reason in answers.silent.items():
        print(f"{node}: {reason}; the project file is made without it", file=sys.stderr)
    if not answers.hardware:
        raise ClusterQualError("no host has answered, so there is nothing to write about; see `clusterqual doctor`")
    nodes = arguments.nodes or (2 if options.kind == "local" else len(answers.asked))
    files[PROJECT_FILE] = project_file(
        options, with_fabric_nics(answers.hardware.values(), None), name=arguments.folder.resolve().name or "/",
        hosts=in_short(options.hosts), nodes=nodes,
    )  # fmt: skip
    write(folder, files)
    print(f"wrote {', '.join(files)} to {folder}")
    print(f"read {folder / PROJECT_FILE}, then: pytest {folder} --nodes {nodes}")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    """Without a project file nothing is required, so figures alone are no failure."""
    from pytest_clusterqual.commands.nccl_tests_import import import_nccl_tests

    config = file_of(arguments)
    folder = import_nccl_tests(
        arguments.files, group=arguments.group, collective=arguments.collective, nodes=arguments.nodes,
        nproc_per_node=arguments.nproc_per_node, config=config, run_dir=arguments.qual_run_dir,
    )  # fmt: skip
    return recorded_runs.show(folder, folder.records(), numbers_do=not config)


def _import_trace(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.commands.trace_import import import_traces

    print(import_traces(arguments.files, as_json=arguments.json, width=width(120), color=sys.stdout.isatty()))
    return 0


def _import_log(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.commands.log_import import import_logs

    print(import_logs(
        arguments.files, pattern=arguments.pattern, tokens_per_step=arguments.tokens_per_step,
        as_json=arguments.json, width=width(100), color=sys.stdout.isatty(),
    ))  # fmt: skip
    return 0


def _import_points(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.commands.points_import import as_text, import_points
    from pytest_clusterqual.model.record import Verdict, worst

    config = file_of(arguments)
    judged = import_points(arguments.file, config=config, same=arguments.same)
    print(as_text(judged, as_json=arguments.json, width=width(140), color=sys.stdout.isatty()))
    enough = Verdict.PASS if config else Verdict.MEASURED
    return 0 if worst([judgement.verdict for judgement in judged.judgements]) in (Verdict.PASS, enough) else 1


def _import_probe(arguments: argparse.Namespace) -> int:
    from pytest_clusterqual.commands.probe_import import as_text, import_probe

    ledger = import_probe(arguments.folder)
    print(as_text(ledger, as_json=arguments.json, width=width(100), color=sys.stdout.isatty()))
    return 0
