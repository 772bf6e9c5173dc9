"""Parts of one qualification become one run; parts of different ones are refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from junit_rules import problems
from made import conditions, without_value
from nodes_made import node
from recorded_made import PROJECT, TEST, recorded

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import RunFolderError
from pytest_clusterqual.folder.runs import RunFolder, Selected
from pytest_clusterqual.judge.decision.verdict import decide
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.conditions import Conditions
from pytest_clusterqual.model.measurement import NodesMeasurement
from pytest_clusterqual.model.project import DecisionPlan
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.recorded.judging import changes, judge_again, own_project
from pytest_clusterqual.recorded.merging import merge
from pytest_clusterqual.report.text import repeat_with

OTHER = "qualification/test_memory.py::test_memory[fsdp-2nodes]"
RACK = [f"gpu{number:03}" for number in (1, 2, 3, 4)]


def part(path: Path, test: str, *, under: Conditions | None = None, **environment: Any) -> Path:
    """A run of one test, `under` these conditions; what is None in the `environment` it does not say."""
    folder = recorded(path)
    told = {**folder.environment, **environment}
    (path / "environment.json").write_text(json.dumps({key: value for key, value in told.items() if value is not None}))
    for name in ("records.jsonl", "measurements.jsonl"):
        file = path / name
        file.write_text(file.read_text().replace(TEST, test))
    if under is not None:
        records = [replace(record, conditions=under) for record in RunFolder.open(path).records()]
        (path / "records.jsonl").write_text("")
        folder = RunFolder.open(path)
        for record in records:
            folder.add_record(record)
    RunFolder.open(path).select({test: Selected(criterion="memory", layout="ddp")})
    return path


def on(*hosts: str, **changes: Any) -> Conditions:
    return conditions(**{"hosts": hosts, "simulated": False, "layout": "ddp", **changes})


def real(path: Path, test: str, *hosts: str, named: list[str], **environment: Any) -> Path:
    """A part on real hosts, out of those that were named."""
    return part(
        path, test, under=on(*hosts), **{"launcher": "ssh", "simulated": False, "named_hosts": named, **environment}
    )


def test_two_parts_are_one_run(tmp_path: Path) -> None:
    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER, device="cpu")]
    merge(shards, tmp_path / "whole")
    whole = RunFolder.open(tmp_path / "whole")
    assert [test for test, _, _ in whole.measurements().values()] == [TEST, OTHER]
    assert {(record.test, record.measurement) for record in whole.records()} == {(TEST, "m0001"), (OTHER, "m0002")}
    assert {record.run for record in whole.records()} == {whole.run} == {"whole"}
    assert whole.tests.keys() == {TEST, OTHER}
    assert whole.environment["device"] == "cpu"
    assert changes(whole.records(), judge_again(whole, own_project(whole))) == []


def test_the_whole_says_what_each_part_was_asked(tmp_path: Path) -> None:
    one = {"CLUSTERQUAL_NODES": "2", "NCCL_ALGO": "Ring"}
    two = {"CLUSTERQUAL_NODES": "2", "NCCL_ALGO": "Tree"}
    shards = [part(tmp_path / "one" / "run", TEST, argv="pytest -k memory", variables=one),
              part(tmp_path / "two" / "run", OTHER, argv="pytest -k 'a b'", variables=two, attempts=3)]  # fmt: skip
    told = merge(shards, tmp_path / "whole").environment
    assert list(told["merged"]) == ["run", "run-2"]
    assert told["merged"]["run-2"]["variables"] == two and told["variables"] == {"CLUSTERQUAL_NODES": "2"}
    assert repeat_with(told) == "CLUSTERQUAL_NODES=2 pytest -k memory; CLUSTERQUAL_NODES=2 pytest -k 'a b'"
    assert "argv" not in told and told["attempts"] == 3
    more = merge([tmp_path / "whole", part(tmp_path / "c", f"{OTHER}-c", argv="pytest c")], tmp_path / "more")
    assert repeat_with(more.environment) == f"{repeat_with(told)}; pytest c"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"nodes": 4}, "nodes: 2 in .*a, 4 in .*b; leave one"),
        ({"project_file": PROJECT + "# other"}, "project_file: another one than in .*a; leave one"),
        ({"package": "0.0.9"}, "package: .* in .*a, 0.0.9 in .*b; leave one"),
        ({"simulated": False}, "simulated: True in .*a, False in .*b; leave one"),
        ({"launcher": "ssh"}, "launcher: local in .*a, ssh in .*b; leave one"),
        ({"baseline": {"run": "good"}}, "baseline: another one than in .*a; leave one"),
        ({"replay_of": "x"}, "replay_of: None in .*a, x in .*b; leave one"),
        ({"under": conditions(device_name="H200")}, "device_name: AMD EPYC 9654 in .*a, H200 in .*b; leave one"),
        ({"under": conditions(device="cuda")}, "device: cpu in .*a, cuda in .*b; leave one"),
        ({"under": conditions(versions={"torch": "2.12.0"})}, "versions: .*torch 2.13.0 in .*a, torch 2.12.0 in .*b"),
        ({"under": conditions(hosts=("another",))}, r"hosts: node\[0-1\] in .*a, another in .*b; name the same hosts"),
    ],
)
def test_parts_of_different_runs_are_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER, **changed)]
    with pytest.raises(RunFolderError, match=f"b: is no part of the same qualification: {words}"):
        merge(shards, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_parts_of_different_jobs_are_refused(tmp_path: Path) -> None:
    shards = [part(tmp_path / name, name, under=conditions(workload=name)) for name in ("a", "b")]
    with pytest.raises(RunFolderError, match=r"workload: a in .*a, b in .*b; leave one"):
        merge(shards, tmp_path / "whole")


@pytest.mark.parametrize("key", ["project_file", "package", "nodes", "launcher"])
def test_a_part_that_does_not_say_what_it_was_asked_is_refused(tmp_path: Path, key: str) -> None:
    shards = [part(tmp_path / "a", TEST, **{key: None}), part(tmp_path / "b", OTHER, **{key: None})]
    with pytest.raises(RunFolderError, match=f"a: does not say its {key}, so nobody knows"):
        merge(shards, tmp_path / "whole")


def test_another_rack_is_refused_by_its_hosts(tmp_path: Path) -> None:
    shards = [real(tmp_path / "a", TEST, "gpu001", "gpu002", named=["gpu001", "gpu002"]),
              real(tmp_path / "b", OTHER, "gpu101", "gpu102", named=["gpu101", "gpu102"])]  # fmt: skip
    with pytest.raises(RunFolderError, match=r"hosts: gpu\[001-002\] in .*a, gpu\[101-102\] in .*b; name the same"):
        merge(shards, tmp_path / "whole")


def test_parts_on_nodes_of_one_rack_have_met_them_all(tmp_path: Path) -> None:
    shards = [real(tmp_path / "a", TEST, "gpu001", "gpu002", named=RACK),
              real(tmp_path / "b", OTHER, "gpu003", "gpu002", named=RACK[::-1])]  # fmt: skip
    told = merge(shards, tmp_path / "whole").environment
    assert told["hosts"] == ["gpu001", "gpu002", "gpu003"]
    assert told["merged"]["b"]["hosts"] == ["gpu003", "gpu002"]


def test_who_met_the_same_hosts_need_not_have_named_them_alike(tmp_path: Path) -> None:
    shards = [real(tmp_path / "a", TEST, "gpu001", named=RACK), real(tmp_path / "b", OTHER, "gpu001", named=["gpu001"])]
    assert merge(shards, tmp_path / "whole").environment["hosts"] == ["gpu001"]


@pytest.mark.parametrize(
    ("nodes", "accepted"), [(("gpu[001-004]",) * 2, True), (("gpu[001-002]", "gpu[003-004]"), False), ((), False)]
)
def test_of_a_scheduler_one_allocation_is_one_machine(tmp_path: Path, nodes: tuple[str, ...], accepted: bool) -> None:
    variables = [{"SLURM_JOB_NODELIST": text} for text in nodes] or [{}, {}]
    shards = [
        real(tmp_path / name, name, host, named=["ignored"], launcher="slurm", variables=told)
        for name, host, told in zip("ab", ("gpu001", "gpu003"), variables, strict=True)
    ]
    if accepted:
        assert merge(shards, tmp_path / "whole").environment["hosts"] == ["gpu001", "gpu003"]
        return
    with pytest.raises(RunFolderError, match=r"hosts: gpu001 in .*a, gpu003 in .*b; .* one allocation"):
        merge(shards, tmp_path / "whole")


def unmeasured(path: Path, test: str, **environment: Any) -> Path:
    part(path, test, **environment)
    (path / "measurements.jsonl").write_text("")
    (path / "records.jsonl").write_text("")
    blocked = without_value("", "memory", Verdict.BLOCKED, "its gate failed")
    RunFolder.open(path).add_record(replace(blocked, test=test))
    return path


def test_a_part_that_measured_nothing_has_met_no_machine(tmp_path: Path) -> None:
    shards = [unmeasured(tmp_path / "a", TEST), part(tmp_path / "b", OTHER)]
    assert merge(shards, tmp_path / "whole").environment["hosts"] == ["node0", "node1"]


def test_a_part_that_measured_nothing_of_another_rack_is_refused(tmp_path: Path) -> None:
    there = {"launcher": "ssh", "simulated": False}
    shards = [unmeasured(tmp_path / "a", TEST, named_hosts=["gpu101"], **there),
              real(tmp_path / "b", OTHER, "gpu001", named=["gpu001"])]  # fmt: skip
    with pytest.raises(RunFolderError, match=r"hosts: gpu101 in .*a, gpu001 in .*b"):
        merge(shards, tmp_path / "whole")


def test_what_only_asked_the_nodes_has_met_their_hosts(tmp_path: Path) -> None:
    for path, host in ((tmp_path / "a", "gpu001"), (tmp_path / "b", "gpu101")):
        folder = RunFolder.open(unmeasured(path, path.name, launcher="slurm", simulated=False))
        asked = NodesMeasurement(nodes=(node(host),), started=1.0, seconds=1.0)
        name = folder.add_measurement("nodes", f"{path.name}-nodes", asked)
        told = without_value("", "nodes", Verdict.PASS, "alike")
        folder.add_record(replace(told, test=f"{path.name}-nodes", measurement=name))
    with pytest.raises(RunFolderError, match=r"hosts: gpu001 in .*a, gpu101 in .*b"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "whole")


def test_any_two_parts_must_be_of_one_machine_not_only_the_first_and_another(tmp_path: Path) -> None:
    shards = [unmeasured(tmp_path / "a", TEST), part(tmp_path / "b", OTHER, under=conditions(hosts=("one",))),
              part(tmp_path / "c", "t", under=conditions(hosts=("two",)))]  # fmt: skip
    with pytest.raises(RunFolderError, match=r"c: is no part of the same qualification: hosts: one in .*b, two in"):
        merge(shards, tmp_path / "whole")


@pytest.mark.parametrize("name", ["records.jsonl", "measurements.jsonl"])
def test_a_part_that_a_kill_has_cut_off_is_refused(tmp_path: Path, name: str) -> None:
    one = part(tmp_path / "a", TEST)
    (one / name).write_bytes((one / name).read_bytes()[:-9])
    with pytest.raises(RunFolderError, match=rf"a/{name}:\d: the last line was cut off by a kill; .*, or leave it out"):
        merge([one, part(tmp_path / "b", OTHER)], tmp_path / "whole")


def test_a_merge_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: RunFolder, _: object) -> None:
        raise RunFolderError(f"{folder.path}: cannot be written; give another folder with --qual-run-dir")

    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER)]
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_records", full)
        with pytest.raises(RunFolderError, match=f"^{tmp_path}/whole: .*; give another folder with --out"):
            merge(shards, tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    (tmp_path / "whole").mkdir()
    assert len(merge(shards, tmp_path / "whole").records()) == 4


def test_records_that_a_test_made_together_stay_so(tmp_path: Path) -> None:
    one = RunFolder.open(part(tmp_path / "a", TEST))
    made = one.records()
    one.begin_attempt()
    one.add_records([replace(record, attempt=2) for record in made * 2])
    whole = merge([one.path, part(tmp_path / "b", OTHER)], tmp_path / "whole")
    assert [record.of for record in whole.history() if record.test == TEST] == [2, 2, 4, 4, 4, 4]


def test_a_test_in_two_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"b: has .*ddp-2nodes\], which .*a has too"):
        merge([part(tmp_path / "a", TEST), part(tmp_path / "b", TEST)], tmp_path / "whole")


def test_of_a_part_that_was_resumed_all_attempts_are_kept_and_the_last_one_counts(tmp_path: Path) -> None:
    folder = RunFolder.open(part(tmp_path / "a", TEST))
    folder.begin_attempt()
    folder.add_record(replace(folder.records()[0], attempt=2))
    whole = merge([folder.path, part(tmp_path / "b", OTHER)], tmp_path / "whole")
    assert [(record.test, record.attempt) for record in whole.records()] == [(TEST, 2), (OTHER, 1), (OTHER, 1)]
    assert [record.attempt for record in whole.history()] == [1, 1, 2, 1, 1]
    whole.begin_attempt()
    assert whole.attempt == 3


def test_a_gate_that_another_part_ran_is_run(tmp_path: Path) -> None:
    gated = RunFolder.open(part(tmp_path / "a", TEST))
    kept = [replace(record, gates_not_run=("memory", "fabric")) for record in gated.records()]
    for record in kept:
        gated.add_record(replace(record, attempt=2))
    whole = merge([gated.path, part(tmp_path / "b", OTHER)], tmp_path / "whole")
    assert {record.gates_not_run for record in whole.records() if record.test == TEST} == {("fabric",)}


def test_the_decision_of_a_part_gives_way_to_that_of_the_whole(tmp_path: Path) -> None:
    project = PROJECT.replace("layouts: [{name: ddp}]", "layouts: [{name: ddp}, {name: fsdp, fsdp: full}]")
    plan = to_json(DecisionPlan(expect="not-qualified"))
    asked = {"project_file": project + "decision: {expect: not-qualified}\n", "decision": plan}
    one, other = part(tmp_path / "a", TEST, **asked), part(tmp_path / "b", OTHER, **asked)
    folder = RunFolder.open(one)
    told = replace(folder.records()[0], test="test_decision.py::test_decision", criterion="decision", measurement=None)
    said = replace(told.judgement, quantity="decision", label="performance", verdict=Verdict.FAIL)
    folder.add_record(replace(told, judgement=said))
    made = merge([one, other], tmp_path / "all")
    (decision,) = [record for record in made.records() if record.criterion == "decision"]
    outcome = decide(made.numbered(), DecisionPlan(expect="not-qualified")).outcome
    assert decision.judgement.label == outcome != "performance"
    assert decision.run == made.run


def test_logs_and_answers_of_the_parts_stand_beside_each_other(tmp_path: Path) -> None:
    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER)]
    for shard in shards:
        for folder, name in (("ranks", "node0.log"), ("nodes", "node0.json")):
            (shard / folder).mkdir()
            (shard / folder / name).write_text(shard.name)
    (shards[0] / "ranks" / "link.log").symlink_to("/etc/hostname")
    os.mkfifo(shards[0] / "ranks" / "pipe")
    (shards[1] / "network-map.txt").write_text("the map")
    merge(shards, tmp_path / "whole")
    assert (tmp_path / "whole" / "network-map.txt").read_text() == "the map"
    for shard in shards:
        assert (tmp_path / "whole" / "ranks" / shard.name / "node0.log").read_text() == shard.name
        assert (tmp_path / "whole" / "nodes" / shard.name / "node0.json").read_text() == shard.name
    assert [path.name for path in (tmp_path / "whole" / "ranks" / "a").iterdir()] == ["node0.log"]


def test_another_place_is_named_with_the_options_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="already holds a run; give another folder with --out"):
        merge([part(tmp_path / "a", TEST)], tmp_path / "a")


def test_the_command_writes_one_junit_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = [part(tmp_path / "a", TEST), part(tmp_path / "b", OTHER)]
    assert main(["merge", *map(str, shards), "--out", str(tmp_path / "whole")]) == 0
    assert "ddp-2nodes" in capsys.readouterr().out
    content = (tmp_path / "whole" / "junit.xml").read_bytes()
    assert problems(content) == []
    suite = ElementTree.fromstring(content)
    assert [each.get("name") for each in suite.iter("testcase")] == [
        "test_memory[ddp-2nodes]",
        "test_memory[fsdp-2nodes]",
    ]
    told = {each.get("name"): each.get("value") for each in suite.findall("testsuite/properties/property")}
    assert told == {f"clusterqual.{key}": value for key, value in
                    {"run": "whole", "project": "small", "simulated": "true"}.items()}  # fmt: skip
    assert "repeat with" in (tmp_path / "whole" / "report.html").read_text()
