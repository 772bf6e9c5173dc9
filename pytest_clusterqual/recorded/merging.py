"""`clusterqual merge`: parts of one qualification that ran apart, such as jobs of a CI pipeline, as one run.

One qualification is one project file, judged by one release of this package, held against one baseline, on one machine:
the same hosts, or hosts of one inventory that every part named. What the parts did on them may differ.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, NoReturn

from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.places import refuse_taken
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.judge.decision.verdict import decide, judge_decision
from pytest_clusterqual.judge.gates import not_run
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.record import Record
from pytest_clusterqual.read.hosts import fold_hosts
from pytest_clusterqual.recorded.deciding import plan_of
from pytest_clusterqual.recorded.outcomes import layout_params

# What every run records of what it was asked for, and what it records where there is something to say.
_ASKED = ("project_file", "package", "nodes", "nproc_per_node", "simulated", "launcher")
_ALSO = ("baseline", "replay_of")
_LONG = ("project_file", "baseline")  # nothing that a message could show
# What the conditions of records say of the machine and the job on it. A part that measured nothing has met neither.
_MET = ("device", "device_name", "backend", "versions", "workload")
_OF_A_PART = ("run", "argv", "variables", "attempts", "merged")
_FOLDERS = ("ranks", "nodes")  # logs, and what the nodes answered: of each part apart, for they have the same names
_MAP = "network-map.txt"  # of the project file and the number of nodes, so one is that of all


def merge(shards: Sequence[Path], out: Path) -> RunFolder:
    """Make one run folder of several, each test from the one that has it, with all its attempts; and decide anew.

    Raises:
        RunFolderError: they are parts of different qualifications, two of them have the same test, one cannot be read,
            or `out` not be written.
    """
    parts = [RunFolder.open(path) for path in shards]
    for part in parts:
        _refuse_torn(part)
    for one, other in combinations(parts, 2):
        _refuse_other(one, other)
        _refuse_other_hosts(one, other)
    _refuse_twice(parts)
    labels, here = _labels(parts), out
    try:
        refuse_taken(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as place:
            here = Path(place) / "run"
            folder = RunFolder.create(
                here, run=out.resolve().name, environment=_environment(labels), simulated=parts[0].simulated
            )
            folder.select({test: selected for part in parts for test, selected in part.tests.items()})
            if all(part.ended for part in parts):
                folder.end()
            _add_lines(folder, parts)
            _decide(folder, parts)
            _copy_files(folder, labels)
            here.rename(out)  # a merge that is cut short leaves no half of a run there
    except RunFolderError as error:
        told = str(error).replace(str(here), str(out)).replace("--qual-run-dir", "--out")
        raise RunFolderError(told) from error
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be written: {error.strerror}; give another folder with --out") from error
    return RunFolder.open(out)


def _refuse_torn(part: RunFolder) -> None:
    """A measurement that a kill has cut off would leave records of nothing, and a record no trace."""
    if part.torn:
        raise RunFolderError(
            f"{part.torn[0]}: the last line was cut off by a kill; resume that run with --qual-resume {part.path}, or "
            "leave it out"
        )


def _add_lines(folder: RunFolder, parts: Sequence[RunFolder]) -> None:
    """All measurements and records; a gate that another part ran is none that was not run."""
    tests = folder.tests
    ran = [(record.criterion, layout_params(tests.get(record.test))) for part in parts for record in part.records()]
    for part in parts:
        names = {
            name: folder.add_measurement(criterion, test, measurement)
            for name, (test, criterion, measurement) in part.measurements().items()
        }
        attempts: dict[tuple[str, int], list[Record]] = {}
        for record in part.history():
            if record.criterion == "decision":
                continue
            gates = not_run(record.gates_not_run, ran, layout_params(tests.get(record.test)))
            measured = names.get(record.measurement or "")
            attempt = attempts.setdefault((record.test, record.attempt), [])
            attempt.append(replace(record, run=folder.run, measurement=measured, gates_not_run=gates))
        for records in attempts.values():
            folder.add_records(records)


def _decide(folder: RunFolder, parts: Sequence[RunFolder]) -> None:
    """A part decided by what it had: what follows from the whole takes the place of that."""
    told = [record for part in parts for record in part.records() if record.criterion == "decision"]
    plan = plan_of(folder)
    if told and plan is not None:
        judgement = judge_decision(decide(folder.numbered(), plan), plan)
        for record in told:
            folder.add_record(replace(record, run=folder.run, judgement=judgement))


# -- what is one qualification -----------------------------------------------------------------------


def _refuse_other(one: RunFolder, other: RunFolder) -> None:
    for part, key in product((one, other), _ASKED):
        if part.environment.get(key) is None:
            raise RunFolderError(
                f"{part.path}: does not say its {key}, so nobody knows what it is part of; leave it out"
            )
    for key in (*_ASKED, *_ALSO):
        values = [part.environment.get(key) for part in (one, other)]
        if values[0] != values[1]:
            _refuse(one, other, key, *([] if key in _LONG else values))
    for key in _MET:
        met = [_met(part, key) for part in (one, other)]
        if all(met) and not any(value in met[1] for value in met[0]):
            _refuse(one, other, key, *(values[0] for values in met))


def _met(part: RunFolder, key: str) -> list[Any]:
    """What the conditions of a part's records have under this key; the nodes of one machine may differ in it."""
    found: list[Any] = []
    for record in part.records():
        value = getattr(record.conditions, key, None)
        if value is not None and value not in found:
            found.append(value)
    return found


def _refuse_other_hosts(one: RunFolder, other: RunFolder) -> None:
    named, met = ([look(part) for part in (one, other)] for look in (_named_hosts, _hosts))
    if all(named) and set(named[0]) == set(named[1]):
        return
    if set(met[0]) != set(met[1]) if all(met) else all(named):
        told = (fold_hosts(hosts or names) for hosts, names in zip(met, named, strict=True))
        _refuse(one, other, "hosts", *told, remedy="name the same hosts for all parts, or have one allocation for them")


def _named_hosts(part: RunFolder) -> list[str]:
    """The inventory that a part took its nodes from, where somebody named one: a list, or an allocation of Slurm."""
    told = part.environment
    if told["launcher"] == "slurm":
        return list(filter(None, [told.get("variables", {}).get("SLURM_JOB_NODELIST")]))
    return [] if part.simulated else list(told.get("named_hosts") or ())


def _hosts(part: RunFolder) -> list[str]:
    """The hosts that a part has met."""
    found, records, measurements = [*part.environment.get("hosts", ())], part.records(), part.measurements()
    for record in records:
        found += record.conditions.hosts if record.conditions else ()
    asked = {record.measurement or "" for record in records if record.criterion == "nodes"}
    for name in sorted(asked & measurements.keys()):
        made = measurements[name][2]
        found += [node.host for node in made.nodes] if isinstance(made, NodesMeasurement) else []
    return list(dict.fromkeys(found))


def _refuse(
    one: RunFolder, other: RunFolder, key: str, *values: Any, remedy: str = "leave one of them out"
) -> NoReturn:
    told = [f"{_shown(value)} in {part.path}" for value, part in zip(values, (one, other), strict=False)]
    what = ", ".join(told) or f"another one than in {one.path}"
    raise RunFolderError(f"{other.path}: is no part of the same qualification: {key}: {what}; {remedy}")


def _shown(value: Any) -> str:
    return (
        ", ".join(f"{name} {each}" for name, each in sorted(value.items())) if isinstance(value, dict) else f"{value}"
    )


def _refuse_twice(parts: Sequence[RunFolder]) -> None:
    whose: dict[str, RunFolder] = {}
    for part in parts:
        for test in dict.fromkeys(record.test for record in part.records()):
            if test in whose:
                raise RunFolderError(
                    f"{part.path}: has {test}, which {whose[test].path} has too: leave one of them out"
                )
            whose[test] = part


# -- what is said of the whole -----------------------------------------------------------------------


def _labels(parts: Sequence[RunFolder]) -> dict[str, RunFolder]:
    """Each part by the name of its folder; of two with the same name the second gets a number."""
    labels: dict[str, RunFolder] = {}
    for part in parts:
        name = label = part.path.resolve().name
        count = 1
        while label in labels:
            count += 1
            label = f"{name}-{count}"
        labels[label] = part
    return labels


def _environment(labels: Mapping[str, RunFolder]) -> dict[str, Any]:
    """What all parts say, and what each says of itself; what only one has met, all have."""
    parts = list(labels.values())
    hosts = list(dict.fromkeys(host for part in parts for host in _hosts(part)))
    whole = {key: value for part in reversed(parts) for key, value in part.environment.items() if key != "argv"}
    variables = [part.environment.get("variables", {}) for part in parts]
    return {
        **whole,
        **({"hosts": hosts} if hosts else {}),
        "variables": {k: v for k, v in variables[0].items() if all(each.get(k) == v for each in variables)},
        "attempts": max(part.attempt for part in parts),
        "merged": {
            label: {
                **{key: part.environment[key] for key in _OF_A_PART if key in part.environment}, "hosts": _hosts(part),
            }
            for label, part in labels.items()
        },
    }  # fmt: skip


def _copy_files(folder: RunFolder, labels: Mapping[str, RunFolder]) -> None:
    """What people read when something failed; links are no part of a run."""
    try:
        for label, part in labels.items():
            for name in _FOLDERS:
                if (part.path / name).is_dir():
                    shutil.copytree(part.path / name, folder.path / name / label, ignore=_no_files)
            if (part.path / _MAP).is_file() and not (folder.path / _MAP).exists():
                shutil.copyfile(part.path / _MAP, folder.path / _MAP)
    except OSError as error:
        raise RunFolderError(
            f"{folder.path}: the logs of its parts cannot be copied: {error}; free some space, or give another --out"
        ) from error


def _no_files(place: str, names: list[str]) -> list[str]:
    modes = {name: os.lstat(os.path.join(place, name)).st_mode for name in names}
    return [name for name, mode in modes.items() if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)]
