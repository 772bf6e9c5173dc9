"""pytest hooks: gather, call, hand on. Loads in every pytest run, so it imports nothing heavy.

Everything a qualification run needs is made by `pytest_clusterqual.run.qualification`, which is imported when
the first qualification test is collected; in a controller of xdist, by `pytest_clusterqual.run.side_by_side`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_clusterqual.options import PROJECT_FILE, from_environment, positive

if TYPE_CHECKING:
    from pytest_clusterqual.model.project import Project
    from pytest_clusterqual.run.qualification import Qualification

pytest_plugins = ("pytest_clusterqual.fixtures",)

# Those of `model.measurement`, which is not loaded here; each is also the name of a marker.
_CRITERIA = ("nodes", "memory", "fabric", "scaling", "full_run", "decision")
_FIXTURES = {
    "cluster", "decision", "measurement", "node", "qualify", "rank_map", "requirements", "topology", "workload",
}  # fmt: skip
# Who uses one of these has all nodes of the run.
_OF_ALL_NODES = {"cluster", "measurement", "rank_map", "topology"}
# Any of these says that a run is about qualification, before anything is collected.
_OPTIONS = (
    "--nodes", "--nproc-per-node", "--qual-config", "--qual-hosts", "--qual-launcher", "--qual-replay",
    "--qual-report", "--qual-resume", "--qual-run-dir",
)  # fmt: skip
GIVEN = "clusterqual"  # what controller and workers of xdist hand each other stands under this name
_key = pytest.StashKey["Qualification"]()
_problem = pytest.StashKey[str]()
_selected = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("clusterqual", "qualification of clusters for distributed training")
    group.addoption("--nodes", type=positive, metavar="N", help="number of nodes to qualify")
    group.addoption("--nproc-per-node", type=positive, metavar="G", help="ranks on each node (default: from the file)")
    group.addoption("--qual-config", metavar="FILE", help=f"project file (default: {PROJECT_FILE} beside the tests)")
    group.addoption("--qual-launcher", metavar="KIND", help="local, ssh, slurm or mpi (default: from the file)")
    group.addoption(
        "--qual-hosts", metavar="HOSTS", help="hosts to reach by ssh: gpu[001-016],gpu020 or a file with one a line"
    )
    group.addoption("--qual-resume", metavar="DIR", help="go on with the run in this folder; what was measured is kept")
    group.addoption(
        "--qual-again", action="store_true", help="with --qual-resume: measure the selected tests once more"
    )
    group.addoption("--qual-replay", metavar="DIR", help="judge the run in this folder again; nothing is measured")
    group.addoption("--qual-baseline", metavar="DIR", help="nothing may be worse than in the run in this folder")
    group.addoption(
        "--qual-tolerance", metavar="SHARE", default=None, help="by how much it may be worse than the baseline (5 %%)"
    )
    group.addoption("--qual-run-dir", metavar="DIR", help="run folder (default: clusterqual-runs/<time>)")
    group.addoption("--qual-report", metavar="FILE", help="the page of the run (default: report.html in its folder)")
    group.addoption(
        "--qual-keep-going", action="store_true", help="run tests whose gate did not pass, instead of BLOCKED"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"criterion(name, needs=()): a qualification test of one of {', '.join(_CRITERIA)}, parametrized from the "
        "project file; it is BLOCKED unless the criteria in `needs` passed, as far as they are selected",
    )
    for name in _CRITERIA:
        config.addinivalue_line("markers", f"{name}: what criterion({name!r}) marks, for -m {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """A controller of xdist has the nodes and the run folder before it starts its workers."""
    config = session.config
    if not distributes(config) or not _is_asked_for(config):
        return
    from pytest_clusterqual.errors import ClusterQualError
    from pytest_clusterqual.run.side_by_side import Controller

    try:
        config.pluginmanager.register(Controller(config))
    except ClusterQualError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.getoption("looponfail", False) and _is_asked_for(config):
        raise pytest.UsageError("qualification tests are not run in a loop; leave out --looponfail")


def _is_asked_for(config: pytest.Config) -> bool:
    return any(option(config, name) for name in _OPTIONS)


def distributes(config: pytest.Config) -> bool:
    """True in a process that hands the tests to xdist workers."""
    wanted = config.getoption("dist", "no") != "no" and config.getoption("tx", None)
    return bool(wanted) and not config.getoption("collectonly")


def given(config: pytest.Config) -> dict[str, Any] | None:
    """In an xdist worker, what the controller has handed to it."""
    return getattr(config, "workerinput", {}).get(GIVEN)


def qualification_of(config: pytest.Config) -> Qualification:
    """The run's qualification, made on first use.

    Raises:
        ClusterQualError: the project file or the options do not allow a run.
    """
    if _key not in config.stash:
        from pytest_clusterqual.run.qualification import Qualification

        config.stash[_key] = Qualification(config)
    return config.stash[_key]


def criterion_of(item: Any) -> tuple[str, tuple[str, ...]] | None:
    """The criterion a test declares, and the criteria it needs first."""
    marker = item.get_closest_marker("criterion")
    if marker is None:
        return None
    name = marker.args[0] if len(marker.args) == 1 else None
    if name not in _CRITERIA:
        raise pytest.UsageError(f"{item.nodeid}: criterion{marker.args!r}: want one of {', '.join(_CRITERIA)}")
    needs = marker.kwargs.get("needs", ())
    needs = (needs,) if isinstance(needs, str) else tuple(needs)
    if unknown := [needed for needed in needs if needed not in _CRITERIA]:  # a gate that is misspelt is never closed
        raise pytest.UsageError(f"{item.nodeid}: needs: got {unknown[0]!r}, want one of {', '.join(_CRITERIA)}")
    return name, needs


def qualifies(item: Any) -> bool:
    """True of a test that declares a criterion or uses one of our fixtures."""
    return item.get_closest_marker("criterion") is not None or _uses(item, _FIXTURES)


def single_node(item: Any) -> int | None:
    """The index of the one node that a test has for itself; None if it has all nodes of the run."""
    alone = _uses(item, {"node"}) and not _uses(item, _OF_ALL_NODES)
    index = item.callspec.params.get("node") if alone and hasattr(item, "callspec") else None
    return index if isinstance(index, int) else None


def _uses(item: Any, names: set[str]) -> bool:
    """True if a test uses our fixture of one of these names, and not one of its own that only has the same name."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return any(_ours(found[name]) for name in names & found.keys())


def _ours(definitions: Sequence[Any]) -> bool:
    """True if the last definition is ours, or is made from ours."""
    *others, last = definitions
    return last.func.__module__ in pytest_plugins or (last.argname in last.argnames and bool(others) and _ours(others))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wants_case, wants_node = "case" in metafunc.fixturenames, _uses(metafunc.definition, {"node"})
    if not wants_case and not wants_node:
        return
    config = metafunc.config
    from pytest_clusterqual.errors import ClusterQualError

    try:
        declared = criterion_of(metafunc.definition) if wants_case else None
        if declared is not None:
            qualification_of(config).parametrize(metafunc, declared[0])
        if wants_node:
            qualification_of(config).parametrize_node(metafunc)
    except (ClusterQualError, pytest.UsageError) as error:
        # Told once, for the selected tests only, when collection is over: a UsageError raised
        # here would become a collection error of this one file.
        config.stash.setdefault(_problem, str(error))
        metafunc.parametrize("case" if wants_case else "node", [pytest.param(None, id="no-project")], indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """`-m memory` selects what is marked criterion("memory")."""
    marker = item.get_closest_marker("criterion")
    if marker is not None and marker.args and marker.args[0] in _CRITERIA:
        item.add_marker(marker.args[0])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if qualifies(item)]
    if not chosen:
        return
    from pytest_clusterqual.errors import ClusterQualError

    if _problem in config.stash:
        return _refuse(config, config.stash[_problem])
    try:
        in_order = iter(qualification_of(config).select(chosen))
    except (ClusterQualError, pytest.UsageError) as error:
        return _refuse(config, str(error))
    # All other tests keep their places.
    items[:] = [next(in_order) if qualifies(item) else item for item in items]
    config.stash[_selected] = True


@pytest.hookimpl(tryfirst=True)  # before a worker tells its controller that it has collected
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config  # this hook runs even if the one above refused the run
    if _selected in config.stash and not config.getoption("collectonly"):
        from pytest_clusterqual.errors import ClusterQualError

        try:
            config.stash[_key].open()
        except ClusterQualError as error:
            _refuse(config, str(error))


def _refuse(config: pytest.Config, why: str) -> None:
    """End the run before it begins; in a worker, where that would look like a crash, let the tests tell it."""
    if not hasattr(config, "workerinput"):
        raise pytest.UsageError(why)
    config.stash[_problem] = why


def pytest_report_header(config: pytest.Config) -> list[str]:
    nodes, hosts = config.getoption("--nodes"), config.getoption("--qual-hosts")
    if hasattr(config, "workerinput") or not (nodes or hosts):
        return []
    return [f"clusterqual: {nodes or 'all'} nodes asked for" + (f" of {hosts}" if hosts else "")]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """What the tests are judged by, once it is read."""
    if _selected not in config.stash or config.get_verbosity() < 0:
        return []
    return [judged_by(config.stash[_key].project)]


def judged_by(project: Project) -> str:
    """The line of pytest's header that names the project and its file."""
    here, path = Path.cwd(), project.path
    return f"clusterqual: project {project.name}, {path.relative_to(here) if path.is_relative_to(here) else path}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    done = yield
    if _key in item.config.stash:
        item.config.stash[_key].give_nodes(nextitem)
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    stash = item.config.stash
    if (_key not in stash and _problem not in stash) or not qualifies(item):
        return
    if _problem in stash:
        pytest.fail(stash[_problem], pytrace=False)
    from pytest_clusterqual.errors import ClusterQualError

    try:
        stash[_key].take_nodes(item)
    except ClusterQualError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None
    if item.get_closest_marker("criterion"):
        stash[_key].check_gate(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if _key in item.config.stash and qualifies(item):
        item.config.stash[_key].note_report(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _key in session.config.stash:
        try:
            session.exitstatus = session.config.stash[_key].finish(int(session.exitstatus))
        except KeyboardInterrupt:
            pytest.exit(
                "interrupted while the reports were written; the records are kept: clusterqual report makes the rest",
                returncode=2,
            )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _key in config.stash:
        config.stash[_key].print_summary(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _key in config.stash:
        qualification = config.stash[_key]
        qualification.close()
        qualification.remember_blocked()
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # pytest leaves its summary out after some exits, SIGTERM among them
            qualification.print_summary(reporter)
        qualification.restore()


def option(config: pytest.Config, name: str) -> Any:
    """An option's value: the command line first, then the environment (``CLUSTERQUAL_NODES`` and so on)."""
    value = config.getoption(name)
    return from_environment(name) if value is None else value
