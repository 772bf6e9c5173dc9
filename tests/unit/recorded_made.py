"""A run folder as a small run leaves it: one memory test, measured and judged by its own project file."""

from __future__ import annotations

from pathlib import Path

from made import RUN, memory_measurement

from pytest_clusterqual import __version__
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.recorded.judging import judge_again, own_project

PROJECT = """version: 1
project: small
workload:
  model: {layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, vocab: 256}
  optimizer: {name: adamw, lr: 3.0e-4}
  precision: fp32
  sequence_length: 32
  microbatch: 1
  global_batch: 4
  steps: 3
  seed: 1
  data: {path: not-on-this-machine.bytes}
layouts: [{name: ddp}]
memory: {require: [{peak: "<= 1 GiB"}]}
"""
TEST = "qualification/test_memory.py::test_memory[ddp-2nodes]"


def recorded(path: Path, *, project: str = PROJECT) -> RunFolder:
    environment = {
        "project": "small", "project_file": project, "nodes": 2, "nproc_per_node": 1, "package": __version__,
        "launcher": "local", "named_hosts": [], "argv": "pytest qualification/ --nodes 2", "variables": {},
    }  # fmt: skip
    folder = RunFolder.create(path, run=RUN, environment=environment, simulated=True)
    folder.add_measurement("memory", TEST, memory_measurement())
    for record in judge_again(folder, own_project(folder)):
        folder.add_record(record)
    return RunFolder.open(path)
