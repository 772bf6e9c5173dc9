"""Hosts before anything is started there: what keeps ranks from running on them, and the remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pytest_clusterqual.model.hardware import NodeHardware
from pytest_clusterqual.model.host_check import Fact, HostCheck, HostProblem

OLDEST_PYTHON = (3, 10)  # as pyproject.toml says
CLOCK_NOTED = 1.0  # seconds: beyond it the logs of two hosts cannot be put in order
CLOCK_LIMIT = 10.0  # seconds: torch takes a node for dead whose heartbeat is 15 s old by another one's clock
LEAST_SHM = 2**30  # bytes: NCCL takes some MiB for each pair of ranks, data loaders whole batches
LEAST_SHM_FREE = 0.1  # share: what is fuller was filled by jobs that died
FEWEST_FILES = 4096  # NCCL opens several for each rank it talks to: the usual 1024 ends at some dozen nodes
LEAST_DISK = 5 * 2**30  # bytes: one checkpoint of a small job, its logs, and what torch compiles
SLOWEST_LOOKUP = 2.0  # seconds: torch's store makes such a lookup for every connection

_ANOTHER_PYTHON = "or name another Python with --python or launcher.python"
_WORLD_OF_ONE = (
    "torch may take the host for dead and train in a world of one; runs of this package survive that, other jobs do not"
)


def judge_hosts(
    checks: Mapping[str, HostCheck], hardware: Mapping[str, NodeHardware], silent: Mapping[str, str], *, package: str
) -> tuple[HostProblem, ...]:
    """All that is wrong, each thing once with the nodes it is wrong on; what keeps ranks from running comes first.

    `checks` and `hardware` are of the nodes that answered, `silent` says why the others did not.
    `package` is the version of this package here.
    """
    found = list(_silent(silent))
    found += _identities(checks, [*checks, *silent])
    for node, check in checks.items():
        found += _software(check, package)
        found += _system(check)
        found += _devices(check, hardware[node])
    found += _differences(checks, hardware)
    return tuple(sorted(_merged(found), key=lambda problem: problem.warning))


def _merged(found: Sequence[HostProblem]) -> Iterator[HostProblem]:
    """One problem of several nodes for several problems that are alike."""
    nodes: dict[tuple[Fact, str, str, bool], dict[str, None]] = {}
    for each in found:
        nodes.setdefault((each.fact, each.what, each.remedy, each.warning), {}).update(dict.fromkeys(each.nodes))
    for (fact, what, remedy, warning), those in nodes.items():
        yield HostProblem(fact=fact, nodes=tuple(those), what=what, remedy=remedy, warning=warning)


def _silent(silent: Mapping[str, str]) -> Iterator[HostProblem]:
    """Nodes whose reasons differ in nothing but the node's own name share a line."""
    groups: dict[str, list[str]] = {}
    for node, reason in silent.items():
        groups.setdefault(re.sub(rf"(?<![\w.-]){re.escape(node)}(?![\w-])", "*", reason), []).append(node)
    for common, nodes in groups.items():
        yield HostProblem(fact="host", nodes=tuple(nodes), what=silent[nodes[0]] if len(nodes) == 1 else common)


def _identities(checks: Mapping[str, HostCheck], asked: Sequence[str]) -> Iterator[HostProblem]:
    """Different names must be different machines, and each the one that calls itself so."""
    machines: dict[tuple[str, str], list[str]] = {}
    for node, check in checks.items():
        if check.boot:
            machines.setdefault((check.host, check.boot), []).append(node)
    twice = {node for nodes in machines.values() if len(nodes) > 1 for node in nodes}
    for (host, _boot), nodes in machines.items():
        if len(nodes) > 1:
            what = f"one and the same machine, {host}, whose devices would be used twice"
            yield HostProblem(fact="host", nodes=tuple(nodes), what=what, remedy="name each machine once")
    names = {_short(node) for node in asked}
    for node, check in checks.items():
        if node not in twice and _short(check.host) != _short(node) and _short(check.host) in names:
            yield HostProblem(
                fact="host", nodes=(node,), what=f"answers as {check.host}, which is another of the hosts asked",
                remedy="compare /etc/hosts, DNS and ssh's config with what the hosts call themselves",
            )  # fmt: skip


def _short(host: str) -> str:
    return host if host.replace(".", "").isdigit() else host.partition(".")[0]


def _software(check: HostCheck, package: str) -> Iterator[HostProblem]:
    if check.python is None:
        return  # the versions could not be told at all, which `unread` says
    problem = partial(HostProblem, nodes=(check.node,))
    python = check.executable or "the Python there"
    if tuple(map(int, re.findall(r"\d+", check.python)[:2])) < OLDEST_PYTHON:
        what = f"{python} is Python {check.python}, older than {'.'.join(map(str, OLDEST_PYTHON))}"
        yield problem(fact="python", what=what, remedy=f"install a newer one, {_ANOTHER_PYTHON}")
    if check.torch is None:
        remedy = f"install torch there, {_ANOTHER_PYTHON}"
        yield problem(fact="torch", what=f"{python} has no torch", remedy=remedy)
    if check.package != package:
        has = f"pytest-clusterqual {check.package}, here it is {package}" if check.package else "no pytest-clusterqual"
        remedy = f"install pytest-clusterqual {package} there, {_ANOTHER_PYTHON}"
        yield problem(fact="package", what=f"{python} has {has}", remedy=remedy)


def _system(check: HostCheck) -> Iterator[HostProblem]:
    problem = partial(HostProblem, nodes=(check.node,))
    for reason in check.unread:
        remedy = "a file system or a driver hangs there, or this user may not read it"
        yield problem(fact="host", what=f"cannot tell {reason}", remedy=remedy)
    if (away := abs(check.clock_offset or 0.0) - check.clock_error) > CLOCK_NOTED:
        fatal = away > CLOCK_LIMIT
        what = f"the clock is more than {CLOCK_LIMIT if fatal else CLOCK_NOTED:g} s away from this machine's"
        because = _WORLD_OF_ONE if fatal else "the logs of several hosts cannot be put in order"
        yield problem(fact="clock", what=what, remedy=f"let chrony or ntpd correct it; {because}", warning=not fatal)
    if check.shm and check.shm.total < LEAST_SHM:
        remedy = "mount it larger, a container with --shm-size: NCCL and data loaders share memory through it"
        yield problem(fact="shm", what="/dev/shm is smaller than 1 GiB", remedy=remedy)
    elif check.shm and check.shm.free < LEAST_SHM_FREE * check.shm.total:
        yield problem(fact="shm", what="/dev/shm is nearly full", remedy="remove what dead jobs have left there")
    if check.open_files is not None and check.open_files < FEWEST_FILES:
        where = "ulimit -n, limits.conf, LimitNOFILE of sshd or slurmd"
        remedy = f"allow {FEWEST_FILES} or more ({where}): NCCL opens several for each rank"
        yield problem(fact="files", what=f"only {check.open_files:g} open files are allowed", remedy=remedy)
    for space in dict.fromkeys(filter(None, (check.temp, check.cwd))):
        if space.free < LEAST_DISK:
            remedy = "free some, or point TMPDIR to a larger disk"
            yield problem(fact="disk", what=f"less than 5 GiB are free in {space.path}", remedy=remedy)
    if (check.reverse_dns or 0.0) >= SLOWEST_LOOKUP:
        remedy = "repair the resolver, or set `hosts: files` in /etc/nsswitch.conf: torch's store waits for it, up to "
        remedy += "10 s a connection"
        yield problem(fact="dns", what="a reverse lookup of the host's own address takes seconds", remedy=remedy)


def _devices(check: HostCheck, node: NodeHardware) -> Iterator[HostProblem]:
    problem = partial(HostProblem, nodes=(check.node,))
    if node.gpus and node.driver is None and all(gpu.memory is None for gpu in node.gpus):
        remedy = "install the GPU driver, or load its module"
        yield problem(fact="driver", what="GPUs are on the PCI bus, but no driver is loaded", remedy=remedy)
    if node.gpus and check.torch and check.torch.endswith("+cpu"):
        remedy = "install torch for the GPUs, unless the job is meant for CPUs"
        yield problem(fact="torch", what=f"torch {check.torch} cannot use the GPUs", remedy=remedy, warning=True)
    for reason in node.unread:
        if reason not in check.unread:  # what a tool printed, not what the host could not do
            yield problem(fact="gpus", what=reason, remedy="run it there by hand", warning=True)


def _differences(checks: Mapping[str, HostCheck], hardware: Mapping[str, NodeHardware]) -> Iterator[HostProblem]:
    """What all ranks must have alike; known values only."""
    same = "all ranks must run the same version"
    yield from _odd("python", "Python", {node: check.python for node, check in checks.items()}, same)
    yield from _odd("torch", "torch", {node: check.torch for node, check in checks.items()}, same)
    gpus = {node: str(len(found.gpus)) for node, found in hardware.items()}
    remedy = "nvidia-smi -L and the kernel's log there; repair or leave out the odd ones"
    # Where some have none, nobody can say what the ranks are to use.
    yield from _odd("gpus", "a number of GPUs of", gpus, remedy, warning="0" not in gpus.values())
    drivers = {node: found.driver for node, found in hardware.items()}
    yield from _odd("driver", "driver", drivers, "install one driver on all hosts", warning=True)
    cpus = {node: None if check.cpus is None else str(check.cpus) for node, check in checks.items()}
    remedy = "lscpu there, and what the scheduler or a container leaves to this user"
    yield from _odd("cpus", "a number of CPUs of", cpus, remedy, warning=True)


def _odd(
    fact: Fact, name: str, values: Mapping[str, str | None], remedy: str, *, warning: bool = False
) -> Iterator[HostProblem]:
    """The nodes that differ from the majority; all of them where there is none."""
    known = {node: value for node, value in values.items() if value is not None}
    counts = Counter(known.values()).most_common()
    if len(counts) < 2:
        return
    majority = counts[0][0] if 2 * counts[0][1] > len(known) else None
    for value, _count in counts:
        if value != majority:
            nodes = tuple(node for node, its in known.items() if its == value)
            what = f"{name} {value}, most have {majority}" if majority else f"{name} {value}, others have another"
            yield HostProblem(fact=fact, nodes=nodes, what=what, remedy=remedy, warning=warning)
