"""A workload that a factory makes: how it is read, what is refused of it, and what is said not to be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.commands.planning import parts
from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.measure.cases import cases
from pytest_clusterqual.measure.needs import Needs
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.project import Project
from pytest_clusterqual.model.rungs import rungs
from pytest_clusterqual.model.workload import Factory, Layout, Loader, Workload
from pytest_clusterqual.read.project import load_project

OWN = """\
version: 1
project: demo
workload:
  factory: job:make
  precision: fp32
  microbatch: 2
  global_batch: 8
  steps: 3
  seed: 0
layouts: [{name: ddp}]
"""
LAYOUTS = "layouts: [{name: ddp}]"
WHOLE = "the model of a factory is copied or sharded, it is not known how to cut it"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str, **options: int) -> Project:
    Path("clusterqual.yaml").write_text(text)
    return load_project(Path("clusterqual.yaml"), **options)


def problems(text: str, **options: int) -> list[str]:
    with pytest.raises(ProjectFileError) as caught:
        load(text, **options)
    return [problem.removeprefix("clusterqual.yaml:") for problem in caught.value.problems]


def with_keys(*keys: str) -> str:
    return OWN.replace("  precision", "".join(f"  {key}\n" for key in keys) + "  precision")


def test_the_least_that_a_factory_needs() -> None:
    assert load(OWN).workload == Workload(
        factory=Factory(name="job:make"), precision="fp32", microbatch=2, global_batch=8, steps=3, seed=0
    )


def test_all_that_can_be_said_of_it() -> None:
    work = load(with_keys(
        "arguments: {width: 64, rates: [0.1, 2], names: {first: a}, off: null}", "blocks: [Block, Stem]",
        "sequence_length: 128", "data: {workers: 3, prefetch: 4}",
    )).workload  # fmt: skip
    arguments = {"width": 64, "rates": [0.1, 2], "names": {"first": "a"}, "off": None}
    assert work.factory == Factory(name="job:make", arguments=arguments, blocks=("Block", "Stem"))
    assert work.loader == Loader(workers=3, prefetch=4)
    assert work.tokens_per_step == 8 * 128
    assert from_json(Workload, to_json(work)) == work, "as it goes to the ranks"


def test_readers_are_asked_for_in_any_workload() -> None:
    assert load(SMALL).workload.loader == Loader(workers=0, prefetch=2)
    assert load(SMALL.replace("  seed: 0\n", "  seed: 0\n  data: {prefetch: 0}\n")).workload.loader.prefetch == 0


def test_how_data_are_read_makes_no_other_job_but_a_factory_does() -> None:
    def fingerprint(work: Workload) -> str:
        return work.fingerprint(versions={}, data_digest="x")

    work = load(with_keys("blocks: [Block]")).workload
    assert work.factory is not None
    assert fingerprint(work) == fingerprint(replace(work, loader=Loader(workers=4)))
    for changed in (
        replace(work.factory, name="job:other"), replace(work.factory, arguments={"width": 1}),
        replace(work.factory, blocks=()),
    ):  # fmt: skip
        assert fingerprint(work) != fingerprint(replace(work, factory=changed))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OWN.replace("job:make", "job.make"),
         '4: workload.factory: got "job.make", want a module and a function in it such as job:make'),
        (OWN.replace("job:make", "job:make()"),
         '4: workload.factory: got "job:make()", want a module and a function in it such as job:make'),
        (with_keys("model: {layers: 1}"),
         "5: workload.model: unknown key; want one of precision, microbatch, global_batch, steps, seed, factory, "
         "arguments, blocks, sequence_length, data"),
        (with_keys("data: {path: images.bin}"),
         "5: workload.data.path: unknown key; want one of workers, prefetch"),
        (with_keys("data: {workers: 2, prefetch: 0}"),
         "5: workload.data.prefetch: got 0, want 1 or more: workers read ahead"),
        (with_keys("arguments: [64]"), "5: workload.arguments: got a list, want a mapping of keys to values"),
        (OWN.replace("  steps: 3\n", ""), "3: workload.steps: the key is missing"),
        (OWN.replace(LAYOUTS, "layouts: [{name: tp, tensor: 2}]"), f"10: layouts[0].tensor: got 2, want 1: {WHOLE}"),
        (OWN.replace(LAYOUTS, "layouts: [{name: pp, pipeline: 2}]"),
         f"10: layouts[0].pipeline: got 2, want 1: {WHOLE}"),
        (OWN.replace(LAYOUTS, "layouts: [{name: cp, context: 2}]"), f"10: layouts[0].context: got 2, want 1: {WHOLE}"),
        (OWN.replace(LAYOUTS, "layouts: [{name: ep, expert: 2}]"), f"10: layouts[0].expert: got 2, want 1: {WHOLE}"),
        (OWN.replace(LAYOUTS, "layouts: [{name: ac, activation_checkpointing: selective}]"),
         "10: layouts[0].activation_checkpointing: got selective, want full: it is not known which results are dear to "
         "repeat"),
        (OWN.replace(LAYOUTS, "layouts: [{name: ac, activation_checkpointing: full}]"),
         "10: layouts[0].activation_checkpointing: got full, want workload.blocks with the names of the classes whose "
         "forward is to be repeated"),
        (f"{OWN}fabric: {{}}\n",
         "11: fabric.collectives: which messages the model of a factory exchanges is not known, want a list such as "
         "[all_reduce, broadcast]"),
        (f'{OWN}scaling: {{require: [{{nodes: 2, throughput: ">= 1 tokens/s"}}]}}\n',
         "11: scaling.require[0].throughput: how many tokens a sample has is not known, want workload.sequence_length"),
        (f'{OWN}full_run: {{checkpoint: {{every: 1}}, require: [{{throughput: ">= 1 tokens/s"}}]}}\n',
         "11: full_run.require[0].throughput: how many tokens a sample has is not known, want "
         "workload.sequence_length"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_its_line(text: str, said: str) -> None:
    assert said in problems(text)


def test_tokens_can_be_asked_for_where_they_are_known() -> None:
    demand = 'scaling: {require: [{nodes: 2, throughput: ">= 1 tokens/s"}]}\n'
    assert load(with_keys("sequence_length: 64") + demand).scaling is not None


def test_a_batch_that_does_not_divide_is_told_as_of_any_job() -> None:
    assert problems(OWN.replace("global_batch: 8", "global_batch: 6"), nodes=2, nproc_per_node=1) == [
        "7: workload.global_batch: got 6, want a multiple of 4 = microbatch 2 x 2 node(s) x 1 rank(s)"
    ]


def test_what_it_exchanges_is_said_not_to_be_known() -> None:
    why = "the shape of its model is not known before job:make has made it"
    project = load(f"{OWN}memory: {{}}\nfabric: {{collectives: [all_reduce]}}\n")
    needs = Needs(project, nodes=2, nproc_per_node=1)
    assert needs.untold == {"ddp": why}
    found = cases(project, "fabric", nodes=2, nproc_per_node=1)
    assert [str(case) for case in found if not case.inapplicable] == ["all_reduce-world"]
    assert why in [case.inapplicable for case in found]
    (plan,) = parts(project, nodes=2)
    assert f"ddp: nothing can be derived: {why}" in plan.show(plan.found, width=100)


def test_of_the_ladder_those_rungs_remain_that_need_no_cut() -> None:
    work = load(with_keys("blocks: [Block]")).workload
    found = {rung.name: rung.impossible for rung in rungs(work, nodes=2, nproc_per_node=2)}
    assert [name for name, impossible in found.items() if not impossible] == [
        "one device", "microbatch 1", "recompute full", "shard", "shard, recompute", "2 nodes",
    ]  # fmt: skip
    assert found["tensor 2"] == f"tensor: got 2, want 1: {WHOLE}"


def test_a_factory_fits_any_way_of_copying_and_sharding() -> None:
    factory = Factory(name="job:make", blocks=("Block",))
    for fsdp in (None, "full", "grad-op", "hybrid"):
        for kind in ("none", "full"):
            layout = Layout(name="any", fsdp=fsdp, activation_checkpointing=kind)  # type: ignore[arg-type]
            assert list(factory.misfits(layout)) == []
