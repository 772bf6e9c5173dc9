"""A user's own job does the same work in every layout that applies, and says what else is wrong with it."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_made
import pytest
import torch
from rank_harness import DDP, FSDP, run_ranks
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.model.codec import from_json, to_json
from pytest_clusterqual.model.fabric import RankLadder
from pytest_clusterqual.model.full_run import Checkpoints
from pytest_clusterqual.model.memory import RankMemory
from pytest_clusterqual.model.workload import Factory, Layout, Workload
from pytest_clusterqual.rank.factory import OwnData, made
from pytest_clusterqual.rank.full_run import run
from pytest_clusterqual.rank.ladder import climb
from pytest_clusterqual.rank.layouts import build
from pytest_clusterqual.rank.memory import measure
from pytest_clusterqual.rank.recipe import recipe_of
from pytest_clusterqual.rank.training import global_losses

STEPS = 10
OWN = Workload(
    factory=Factory(name="own_made:make", blocks=("Block",)), precision="fp32", microbatch=2, global_batch=16,
    steps=STEPS, seed=3,
)  # fmt: skip
META = replace(OWN, factory=Factory(name="own_made:on_meta", blocks=("Block",)))
WHOLE = replace(OWN, factory=Factory(name="own_made:make"))
CPU = torch.device("cpu")
FSDP_AC = {"name": "fsdp-ac", "fsdp": "full", "activation_checkpointing": "full"}
SPREAD: dict[str, tuple[Workload, dict[str, Any]]] = {
    "ddp": (OWN, DDP),
    "ddp-ac": (OWN, {"name": "ddp-ac", "activation_checkpointing": "full"}),
    "fsdp": (OWN, FSDP),
    "fsdp-whole": (WHOLE, FSDP),
    "fsdp-ac": (OWN, FSDP_AC),
    "grad-op": (OWN, {"name": "grad-op", "fsdp": "grad-op"}),
    "hybrid": (OWN, {"name": "hybrid", "fsdp": "hybrid"}),
    "meta-ddp": (META, DDP),
    "meta-fsdp": (META, FSDP),
    "meta-fsdp-ac": (META, FSDP_AC),
}


@functools.cache
def plain(*, on_meta: bool) -> tuple[list[float], float]:
    """The job as anybody would write it: one process, the whole batch at once. Losses, norm of the last gradient."""
    torch.manual_seed(OWN.seed)
    model = own_made.Net(15, 2, 0.0)
    if on_meta:
        for number, (name, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
            torch.manual_seed(OWN.seed * 100_003 + number)
            with torch.no_grad():
                own_made.fill(name, tensor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(1, STEPS + 1):
        samples = [own_made.sample(step * OWN.global_batch + index) for index in range(OWN.global_batch)]
        batch = (torch.stack([features for features, _ in samples]), torch.tensor([kind for _, kind in samples]))
        optimizer.zero_grad()
        loss = own_made.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, norm(model)


def norm(model: nn.Module) -> float:
    found = [parameter.grad for parameter in model.parameters()]
    whole = [gradient.full_tensor() if isinstance(gradient, DTensor) else gradient for gradient in found]
    return float(torch.stack([gradient.norm() for gradient in whole if gradient is not None]).norm())


def train(ctx: Any, *, jobs: dict[str, Any], steps: int = STEPS) -> dict[str, Any]:
    found = {}
    for name, (workload, layout) in jobs.items():
        work = from_json(Workload, workload)
        data, job = recipe_of(work).data(ctx), build(ctx, work, from_json(Layout, layout))
        local = [
            job.step(data.batches(step, rank=job.data_rank, world_size=job.data_ranks)) for step in range(1, steps + 1)
        ]
        sharded = [module for module in job.model.modules() if isinstance(module, FSDPModule)]
        found[name] = {
            "losses": global_losses(ctx, local), "norm": norm(job.model), "parts": job.parts(),
            "units": (len(sharded), sum(isinstance(module, CheckpointWrapper) for module in sharded)),
        }  # fmt: skip
    return found


@functools.cache
def spread(scratch: Path) -> list[dict[str, Any]]:
    jobs = {name: (to_json(workload), layout) for name, (workload, layout) in SPREAD.items()}
    return run_ranks(train, scratch, nodes=["a", "a", "b", "b"], jobs=jobs)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREAD)
def test_losses_in_every_layout_are_those_of_one_process(scratch: Path, name: str) -> None:
    losses, gradient = plain(on_meta=name.startswith("meta"))
    assert losses[-1] < 0.9 * losses[0], "it learns"
    for answer in spread(scratch):
        assert answer[name]["losses"] == pytest.approx(losses, rel=1e-5)
        assert answer[name]["norm"] == pytest.approx(gradient, rel=1e-4)


@pytest.mark.slow
def test_what_is_sharded_is_a_part_only(scratch: Path) -> None:
    parameters = 4 * sum(parameter.numel() for parameter in own_made.Net(15, 2, 0.0).parameters())
    for answer in spread(scratch):
        assert answer["ddp"]["parts"] == dict.fromkeys(("parameters", "gradients", "optimizer"), parameters)
        for name in ("fsdp", "fsdp-whole", "meta-fsdp"):
            assert all(parameters / 8 < size < parameters / 2 for size in answer[name]["parts"].values())


@pytest.mark.slow
def test_blocks_are_sharded_and_repeated_each_by_itself_and_the_rest_as_one(scratch: Path) -> None:
    units = {name: told["units"] for answer in spread(scratch) for name, told in answer.items()}
    assert units["ddp"] == units["ddp-ac"] == (0, 0)
    assert units["fsdp-whole"] == (1, 0)
    assert units["fsdp"] == units["grad-op"] == units["hybrid"] == units["meta-fsdp"] == (3, 0)
    assert units["fsdp-ac"] == units["meta-fsdp-ac"] == (3, 2), "what is gathered is there while it is repeated"


def with_dropout(ctx: Any) -> list[Any]:
    told = []
    for layout in ({"name": "ddp"}, {"name": "ac", "activation_checkpointing": "full"}):
        work = replace(OWN, factory=Factory(name="own_made:make", arguments={"dropout": 0.5}, blocks=("Block",)))
        told.append(train(ctx, jobs={"one": (to_json(work), layout)})["one"])
    return told


@pytest.mark.slow
def test_a_repeated_forward_drops_what_the_first_one_dropped(scratch: Path) -> None:
    (told,) = run_ranks(with_dropout, scratch, nodes=["a"])
    assert told[1]["losses"] == pytest.approx(told[0]["losses"], rel=1e-5)
    assert told[1]["norm"] == pytest.approx(told[0]["norm"], rel=1e-5)


LOWER = {
    "ddp": (replace(OWN, precision="bf16"), DDP), "fsdp": (replace(OWN, precision="bf16"), FSDP),
}  # fmt: skip


@pytest.mark.slow
def test_in_lower_precision_it_learns_as_well(scratch: Path) -> None:
    jobs = {name: (to_json(workload), layout) for name, (workload, layout) in LOWER.items()}
    losses, _ = plain(on_meta=False)
    for answer in run_ranks(train, scratch, nodes=["a", "b"], jobs=jobs):
        for name in LOWER:
            assert answer[name]["losses"] != pytest.approx(losses, rel=1e-5), "another precision"
            assert answer[name]["losses"] == pytest.approx(losses, rel=0.05)


def measured(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Memory, the step taken apart, and a full run, of one job."""
    job = {"workload": to_json(OWN), "layout": FSDP_AC}
    saving = to_json(Checkpoints(every=4, mode="sync"))
    limits = {"rounds": 2, "least": 1, "seconds": 1.0, "limit": 60.0}
    whole = run(ctx, **job, steps=8, checkpoints=saving, failure=None, folder=folder)
    longer = run(ctx, **job, steps=STEPS, checkpoints=saving, failure=None, folder=folder)
    return {
        "memory": measure(ctx, **job, steps=2), "ladder": climb(ctx, **job, **limits),
        "hybrid": climb(ctx, workload=to_json(OWN), layout=SPREAD["hybrid"][1], whole=False, **limits),
        "runs": [whole, longer],
    }  # fmt: skip


@pytest.mark.slow
def test_every_criterion_measures_it(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    answers = run_ranks(measured, tmp_path, nodes=["a", "b"], folder=str(tmp_path / "saved"))
    losses, _ = plain(on_meta=False)
    for answer in answers:
        memory = from_json(RankMemory, answer["memory"])
        assert memory.losses == pytest.approx(losses[:2], rel=1e-5)
        assert sum(memory.parts.values()) == max(memory.step_peaks)
        assert memory.parts["parameters"] > 0
        assert memory.parts["optimizer"] > 0
        ladder = from_json(tuple[RankLadder, ...], answer["ladder"])
        assert all(rung for one in ladder for rung in (one.compute, one.barrier, one.payload, one.step))
        assert all(one.compute and one.step for one in from_json(tuple[RankLadder, ...], answer["hybrid"]))
        again = answer["runs"][1][0]["processes"][-1]["lines"]
        assert [line["step"] for line in again if line["what"] == "resumed"] == [8], "the checkpoint is complete"
        resumed = [line["value"] for line in again if line["what"] == "loss"]
        assert resumed == pytest.approx(losses[8:], rel=1e-5), "momentum was saved, too"
        assert {line.get("tokens") for line in again if line["what"] == "step"} == {None}
        assert {line["sequences"] for line in again if line["what"] == "step"} == {OWN.global_batch}


REFUSED = {
    "no module": (Factory(name="no_such:make"), "no_such:make: cannot import 'no_such' on this node"),
    "no function": (Factory(name="own_made:no"), "own_made:no: the module 'own_made' has no function 'no'"),
    "argument": (
        Factory(name="own_made:known", arguments={"shfit": 1}),
        "workload.arguments: own_made:known does not take them: got an unexpected keyword argument 'shfit'",
    ),
    "result": (
        Factory(name="own_made:another_thing"), "own_made:another_thing returned a str, want a pytest_clusterqual.own",
    ),
    "model": (Factory(name="own_made:wrong_model"), "own_made:wrong_model: the model is a str, want a torch Module"),
    "blocks": (
        Factory(name="own_made:make", blocks=("Blok",)),
        "workload.blocks: got Blok, want classes of modules in the model of own_made:make: Block, Dropout, LayerNorm",
    ),
    "optimizer": (
        Factory(name="own_made:wrong_optimizer"), "own_made:wrong_optimizer: the optimizer is a list, want a torch Opt",
    ),
    "shape": (Factory(name="own_made:wrong_loss"), "own_made:wrong_loss: the loss has the shape (2, 4), want a scalar"),
    "loss": (Factory(name="own_made:no_loss"), "own_made:no_loss: the loss is a float, want a torch Tensor"),
}  # fmt: skip


def refused(ctx: Any) -> dict[str, str]:
    told = {}
    for name, (factory, _) in REFUSED.items():
        try:
            train(ctx, jobs={name: (to_json(replace(OWN, factory=factory)), DDP)}, steps=1)
        except ClusterQualError as error:
            told[name] = str(error)
    return told


@pytest.fixture(scope="module")
def refusals(scratch: Path) -> dict[str, str]:
    (told,) = run_ranks(refused, scratch, nodes=["a"])
    return dict(told)


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_factory_is_told(refusals: dict[str, str], name: str) -> None:
    assert refusals[name].startswith(REFUSED[name][1])


def numbers(factory: Factory, workload: Workload, world_size: int, step: int = 1) -> list[int]:
    """Sample numbers of a global batch, sorted."""
    data = OwnData(made(factory), factory, workload, CPU)
    batches = [batch for rank in range(world_size) for batch in data.batches(step, rank=rank, world_size=world_size)]
    return sorted(number for batch in batches for number in batch["number"].tolist())


def test_a_data_set_is_read_in_the_order_of_the_seed_by_any_number_of_ranks() -> None:
    known = Factory(name="own_made:known")
    alone = numbers(known, OWN, 1)
    assert len(alone) == OWN.global_batch
    assert set(alone) <= set(range(10))
    assert [numbers(known, OWN, ranks) for ranks in (2, 4)] == [alone, alone]
    assert numbers(known, OWN, 1, step=2) != alone
    assert numbers(known, replace(OWN, seed=4), 1) != alone


def test_a_data_set_without_samples_is_told() -> None:
    empty = Factory(name="own_made:make", arguments={"data": []})
    job = own_made.make(data=[])
    with pytest.raises(ClusterQualError, match="own_made:make: data is a data set without samples, want at least one"):
        OwnData(job, empty, OWN, CPU)


def test_other_samples_and_another_source_have_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(name: str, **arguments: Any) -> str:
        factory = Factory(name=name, arguments=arguments)
        return OwnData(made(factory), factory, OWN, CPU).digest

    assert digest("own_made:known") == digest("own_made:known", shift=0)
    assert digest("own_made:known") != digest("own_made:known", shift=1)
    source = Path(own_made.__file__).read_text()
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_same.py").write_text(source)
    (tmp_path / "own_changed.py").write_text(source + "\nRATE = 2\n")
    try:
        assert digest("own_same:known") == digest("own_made:known")
        assert digest("own_changed:known") != digest("own_made:known")
    finally:
        for name in ("own_same", "own_changed"):
            sys.modules.pop(name, None)
