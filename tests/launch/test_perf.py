"""nccl-tests as the engine: the exact line for every way to the nodes, and a whole measurement by a stand-in."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import HERE, ours

from pytest_clusterqual.errors import ClusterQualError, JobError, LaunchError, ReadError
from pytest_clusterqual.judge.verdict import judge
from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.launch.mpi import MpiLauncher
from pytest_clusterqual.launch.perf import PROGRAMS, TETHER, commands, program, run, unable
from pytest_clusterqual.launch.plan import Launcher, NodePlan
from pytest_clusterqual.launch.slurm import SlurmLauncher
from pytest_clusterqual.launch.ssh import SshLauncher
from pytest_clusterqual.measure import criteria
from pytest_clusterqual.measure.cases import Case, cases
from pytest_clusterqual.model.fabric import ReportedMeasurement
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.read.project import load_project
from pytest_clusterqual.session.session import Session

NODES = (NodePlan(name="gpu001", host="gpu001"), NodePlan(name="gpu002", host="gpu002"))
SIZES = (1 << 20, 1 << 22, 1 << 24)
ALL_REDUCE = ["all_reduce_perf", "-b", "1048576", "-e", "16777216", "-f", "4", "-g"]
REST = ["-w", "5", "-n", "20", "-c", "1"]
SLURM = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[001-002]"}
MARK = "CLUSTERQUAL_TEST"


def line(launcher: Launcher, group: str, nodes: tuple[NodePlan, ...] = NODES) -> list[list[str]]:
    return commands(launcher, nodes, 8, collective="all_reduce", group=group, sizes=SIZES, limit=60.0)


def test_inside_a_node_one_process_drives_all_devices() -> None:
    first, second = line(SshLauncher(["gpu001", "gpu002"], python="/opt/python"), "intra_node")
    assert first[-2:] == ["gpu001", shlex.join(["/opt/python", *TETHER, "60", *ALL_REDUCE, "8", *REST])]
    assert second[-2] == "gpu002"
    here = NodePlan(name="node1", host="here", gpus=(4, 5))
    assert line(LocalLauncher(device="cpu"), "world", (here,)) == [
        [sys.executable, *TETHER, "60", "env", "CUDA_VISIBLE_DEVICES=4,5", *ALL_REDUCE, "8", *REST]
    ]


def test_mpirun_starts_a_process_for_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    launcher = MpiLauncher(["gpu001", "gpu002"], interface="ib0", address="10.0.0.9")
    assert line(launcher, "world") == [[
        sys.executable, *TETHER, "60", "mpirun", "--host", "gpu001:8,gpu002:8", "-np", "16", "--bind-to", "none",
        "--mca", "plm_rsh_args", "-o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10",
        "--mca", "oob_tcp_if_include", "ib0", "--mca", "btl_tcp_if_include", "ib0",
        "env", "NCCL_SOCKET_IFNAME=ib0", *ALL_REDUCE, "1", *REST,
    ]]  # fmt: skip
    (one_a_node,) = line(MpiLauncher(["gpu001", "gpu002"], address="10.0.0.9"), "inter_node")
    assert one_a_node[one_a_node.index("--host") : one_a_node.index("--bind-to")] == [
        "--host", "gpu001:1,gpu002:1", "-np", "2",
    ]  # fmt: skip


def test_srun_starts_them_as_one_step() -> None:
    assert line(SlurmLauncher(environ=SLURM, address="10.0.0.9"), "world") == [[
        sys.executable, *TETHER, "60", "srun", "--jobid=77", "--nodelist=gpu001,gpu002", "--nodes=2", "--ntasks=16",
        "--ntasks-per-node=8", "--mpi=pmix", "--overlap", "--cpu-bind=none", "--mem=0", "--unbuffered",
        "--job-name=clusterqual", *ALL_REDUCE, "1", *REST,
    ]]  # fmt: skip
    (other,) = line(SlurmLauncher(environ={**SLURM, "SLURM_MPI_TYPE": "pmi2"}, address="10.0.0.9"), "world")
    assert "--mpi=pmi2" in other


@pytest.mark.parametrize("launcher", [SshLauncher(["gpu001", "gpu002"]), LocalLauncher(device="cpu")])
def test_without_mpi_nothing_is_started_over_several_nodes(launcher: Launcher) -> None:
    with pytest.raises(LaunchError, match=r"needs MPI: launcher\.kind mpi or slurm"):
        line(launcher, "world")


@pytest.mark.parametrize(
    ("kind", "collective", "group", "nodes", "why"),
    [
        ("mpi", "all_reduce", "world", 2, ""),
        ("slurm", "broadcast", "inter_node", 2, ""),
        ("ssh", "all_reduce", "intra_node", 2, ""),
        ("local", "all_reduce", "world", 1, ""),
        ("ssh", "all_reduce", "world", 2, "world spans nodes, where nccl-tests needs MPI"),
        ("local", "all_reduce", "inter_node", 2, "inter_node spans nodes"),
        ("mpi", "all_reduce", "rails", 2, "cannot be run in rails"),
        ("mpi", "all_reduce", "tp2.tensor", 2, "cannot be run in tp2.tensor"),
        ("mpi", "all_to_all_v", "world", 2, "has no program for all_to_all_v"),
    ],
)
def test_what_cannot_be_measured_so_is_known_before(
    kind: str, collective: str, group: str, nodes: int, why: str
) -> None:
    said = unable(kind, collective, group, nodes=nodes)  # type: ignore[arg-type]
    assert (why in said) if why else said == ""


def test_sizes_that_are_no_steps_of_one_factor_are_refused() -> None:
    assert program("send_recv", [64], devices=2)[:7] == ["sendrecv_perf", "-b", "64", "-e", "64", "-f", "2"]
    with pytest.raises(LaunchError, match="by one factor"):
        program("all_reduce", [8, 16, 64], devices=2)
    with pytest.raises(LaunchError, match="no program for all_to_all_v"):
        program("all_to_all_v", [8], devices=2)


PROJECT = """\
version: 1
project: demo
launcher: {kind: local, nproc_per_node: 2, device: cpu, oversubscribe: true, job_timeout: 20 s}
workload:
  model: {layers: 4, hidden: 256, heads: 4, kv_heads: 2, ffn: 1024, vocab: 256}
  optimizer: {name: adamw, lr: 3e-4}
  precision: fp32
  sequence_length: 256
  microbatch: 1
  global_batch: 16
  steps: 20
  seed: 1
layouts: [{name: ddp}]
fabric:
  engine: nccl-tests
  collectives: [all_reduce]
  groups: [intra_node, world]
  sizes: {from: 1 MiB, to: 16 MiB, factor: 4}
  budget: 1 s
  require: [{busbw: ">= 40 GB/s"}]
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Two simulated nodes, on whose PATH the stand-in is; nothing of it is left at the end."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS.values():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {HERE}/fake_perf.py "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv(MARK, f"perf-{os.getpid()}")
    file = tmp_path / "clusterqual.yaml"
    file.write_text(PROJECT)
    project = load_project(file, nodes=2, nproc_per_node=2)
    launcher = LocalLauncher(device="cpu", oversubscribe=True)
    made = Session(
        project, launcher, launcher.nodes(2, 2), nproc_per_node=2, folder=tmp_path, path=[], tell=lambda progress: None
    )
    yield made
    made.close()
    assert ours(f"{MARK}=perf-{os.getpid()}") == []


def measured(session: Session, group: str = "intra_node") -> ReportedMeasurement:
    case = Case(criterion="fabric", nodes=2, collective="all_reduce", group=group)
    measurement = criteria.measure(session, case)
    assert isinstance(measurement, ReportedMeasurement)
    return measurement


def test_six_runs_in_every_node_make_a_measurement(session: Session, tmp_path: Path) -> None:
    m = measured(session)
    at = m.conditions
    assert (at.nodes, at.nproc_per_node, at.ranks, at.simulated) == (2, 2, 4, True)
    assert at.rank_nodes == ("node0", "node0", "node1", "node1")
    assert (at.collective, at.group, at.device_name) == ("all_reduce", "intra_node", "Fake")
    assert [sum(sweep.group == group for sweep in m.sweeps) for group in (0, 1)] == [6, 6]
    assert (tmp_path / "ranks" / m.sweeps[0].source.partition(":")[0]).is_file()
    judged = {(j.quantity, j.label): j.verdict for j in judge(session.project, m)}
    assert judged["busbw", "16 MiB"] is Verdict.PASS
    assert judged["wrong_elements", ""] is Verdict.MEASURED


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("alone", ReadError, "all_reduce-intra_node-run1-node0.log:5: this rank ran alone"),
        ("cut", ReadError, "no `Out of bounds values` follows"),
        ("crash", JobError, r"all_reduce_perf on node0 failed: it left with exit code 3 and said fake: Test CUDA"),
    ],
)
def test_a_run_that_is_none_is_an_error(
    session: Session, monkeypatch: pytest.MonkeyPatch, fault: str, kind: type[ClusterQualError], message: str
) -> None:
    monkeypatch.setenv("FAKE_PERF", fault)
    with pytest.raises(kind, match=message):
        measured(session)


def test_wrong_elements_fail(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PERF", "wrong")
    verdicts = {j.quantity: j.verdict for j in judge(session.project, measured(session))}
    assert verdicts["wrong_elements"] is Verdict.FAIL


def test_programs_that_are_not_there_are_named_with_the_remedy(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        LaunchError, match=r"all_reduce_perf on node0 was not found: .*; put the programs of nccl-tests"
    ):
        measured(session)


def test_one_that_hangs_is_ended_with_all_it_started(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PERF", "hang")
    argvs = commands(
        LocalLauncher(device="cpu"), session._nodes, 2, collective="all_reduce", group="intra_node", sizes=SIZES,
        limit=60.0,
    )  # fmt: skip
    outputs = run(argvs, timeout=1.5)
    assert [output.code for output in outputs] == [None, None]
    assert ours(f"{MARK}=perf-{os.getpid()}") == []


def test_the_tether_keeps_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, f"tether-{os.getpid()}")
    (output,) = run([[sys.executable, *TETHER, "0.5", "sleep", "1000"]], timeout=60.0)
    assert output.code == 143
    assert ours(f"{MARK}=tether-{os.getpid()}") == []


def test_cases_that_the_engine_cannot_measure_are_left_out_in_sight(session: Session) -> None:
    found = {case.group: case.inapplicable for case in cases(session.project, "fabric", nodes=2, nproc_per_node=2)}
    assert found["intra_node"] == ""
    assert "world spans nodes, where nccl-tests needs MPI" in (found["world"] or "")
