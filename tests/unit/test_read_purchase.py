"""The section `purchase`: one good one read field by field, and what is said about every kind of bad one."""

from __future__ import annotations

from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.model.purchase import NodeType, PurchasePlan, ServedModel
from pytest_clusterqual.model.requirement import Requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.read.project import load_project

PURCHASE = """\
purchase:
  nodes:
    - name: eight
      devices: 8
      device_memory: 80 GB
      links: {intra_node: 450 GB/s, nic: 400 Gbit/s, nics_per_node: 8}
      counts: [1, 2]
      flops: 989 TFLOP/s
      compute_share: 40 %
      memory_rate: 3.35 TB/s
      price: 250000
    - {name: one, devices: 1, device_memory: 80 GiB}
  models:
    - {name: dense, parameters: 70e9, layers: 80, hidden: 8192, heads: 64, kv_heads: 8, context: 8192, sequences: 32}
    - name: sparse
      parameters: 671e9
      active: 37e9
      layers: 61
      hidden: 7168
      heads: 128
      latent: 576
      head_size: 192
      context: 4096
      rate: 2e3 tokens/s
      kv_cache: fp8
  weights: [fp8, int4]
  weights_share: "<= 70 %"
  training: false
"""
GOOD = SMALL + PURCHASE


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str) -> PurchasePlan:
    Path("clusterqual.yaml").write_text(text)
    plan = load_project(Path("clusterqual.yaml")).purchase
    assert plan is not None
    return plan


def test_a_good_section_is_read_field_by_field() -> None:
    assert load(GOOD) == PurchasePlan(
        nodes=(
            NodeType(
                name="eight", devices=8, device_memory=80e9, counts=(1, 2), flops=989e12, compute_share=0.4,
                links=Links(intra_node=450e9, nic=50e9, nics_per_node=8), memory_rate=3.35e12, price=250000.0,
            ),
            NodeType(name="one", devices=1, device_memory=80 * 2.0**30, links=Links()),
        ),
        models=(
            ServedModel(
                name="dense", parameters=70e9, active=70e9, layers=80, hidden=8192, heads=64, kv_heads=8, head_size=128,
                context=8192, sequences=32,
            ),
            ServedModel(
                name="sparse", parameters=671e9, active=37e9, layers=61, hidden=7168, heads=128, kv_heads=128,
                head_size=192, latent=576, context=4096, rate=2000.0, kv_cache="fp8",
            ),
        ),
        weights=("fp8", "int4"),
        weights_share=Requirement(
            criterion="own", quantity="weights_share", op="<=", value=pytest.approx(0.7), unit="1", text="<= 70 %",
            source="clusterqual.yaml:39",
        ),
        training=False,
    )  # fmt: skip


def test_the_default_share_is_marked_as_one() -> None:
    plan = load(SMALL + "purchase: {nodes: [{name: a, devices: 1, device_memory: 1 GB}]}\n")
    assert (plan.weights_share.text, plan.weights_share.value, plan.weights_share.source) == ("<= 65 %", 0.65, "")
    assert (plan.models, plan.weights, plan.training) == ((), ("bf16", "fp8", "int4"), True)
    assert load_project(Path("clusterqual.yaml"), nodes=2).purchase == plan


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("devices: 8", "devices: 0", "16: purchase.nodes[0].devices: got 0, want at least 1"),
        ("devices: 8", "devices: 8000", "16: purchase.nodes[0].devices: got 8000, want at most 4096"),
        ("device_memory: 80 GB\n", "device_memory: 80\n",
         "17: purchase.nodes[0].device_memory: got 80, want a size such as 64 MiB"),
        ("nic: 400 Gbit/s", "nic: 400 GB",
         '18: purchase.nodes[0].links.nic: got "400 GB", want a rate such as 300 GB/s'),
        ("counts: [1, 2]", "counts: [2, 1]",
         "19: purchase.nodes[0].counts[1]: got 1 after 2, want node counts in rising order"),
        ("counts: [1, 2]", "counts: [1, 513]",
         "19: purchase.nodes[0].counts[1]: got 513, want at most 4096 devices in all"),
        ("flops: 989 TFLOP/s", "flops: 989 TFLOPS",
         '20: purchase.nodes[0].flops: got "989 TFLOPS", want a rate such as 989 TFLOP/s'),
        ("      flops: 989 TFLOP/s\n", "",
         "20: purchase.nodes[0].compute_share: it is a share of flops, which is missing"),
        ("compute_share: 40 %", "compute_share: 400 %",
         "21: purchase.nodes[0].compute_share: got 400 %, want at most 100 %"),
        ("price: 250000", "price: cheap", '23: purchase.nodes[0].price: got "cheap", want a number'),
        ("name: one", "name: eight", '24: purchase.nodes[1].name: got "eight" again, want each once'),
        ("name: sparse", "name: dense", '27: purchase.models[1].name: got "dense" again, want each once'),
        ("layers: 80, ", "", "26: purchase.models[0].layers: the key is missing"),
        ("layers: 80", "layers: 80000", "26: purchase.models[0].layers: got 80000, want at most 10000"),
        ("parameters: 70e9", "parameters: 70e19", "26: purchase.models[0].parameters: got 7e+20, want at most 1e+15"),
        ("kv_heads: 8", "kv_heads: 7", "26: purchase.models[0].kv_heads: got 7, want a divisor of heads 64"),
        ("hidden: 8192", "hidden: 8191",
         "26: purchase.models[0].heads: got 64, want a divisor of hidden 8191, or head_size"),
        ("active: 37e9", "active: 672e9",
         "29: purchase.models[1].active: got 6.72e+11, want at most parameters 6.71e+11"),
        ("rate: 2e3 tokens/s", "rate: 2e3",
         "36: purchase.models[1].rate: got 2000.0, want a token rate such as 5e4 tokens/s"),
        ("kv_cache: fp8", "kv_cache: int8", '37: purchase.models[1].kv_cache: got "int8", want bf16 or fp8'),
        ("weights: [fp8, int4]", "weights: [fp4]", '38: purchase.weights[0]: got "fp4", want bf16, fp8 or int4'),
        ("weights: [fp8, int4]", "weights: [fp8, fp8]", '38: purchase.weights[1]: got "fp8" again, want each once'),
        ('"<= 70 %"', '">= 70 %"',
         '39: purchase.weights_share: got ">= 70 %", want the most of a device that weights may take: "<= 65 %"'),
        ('"<= 70 %"', '"<= 70"',
         '39: purchase.weights_share: got "<= 70", want the most of a device that weights may take: "<= 65 %"'),
        ('"<= 70 %"', "0.7", '39: purchase.weights_share: got 0.7, want "<op> <number> <unit>" with <=, >=, < or > and '
         "a share or ratio such as 80 % or 0.8"),
        ("training: false", "trainings: false",
         "40: purchase.trainings: unknown key; did you mean training? want one of nodes, models, "
         "weights, weights_share, training"),
    ],
)  # fmt: skip
def test_one_wrong_place_is_named_with_line_key_and_wish(old: str, new: str, told: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ProjectFileError) as caught:
        load(GOOD.replace(old, new))
    assert list(caught.value.problems) == [f"clusterqual.yaml:{told}"]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{nodes: []}", "13: purchase.nodes: got an empty list, want at least 1 item(s)"),
        ("null", "13: purchase: got null, want a mapping of keys to values"),
        ("{nodes: [{name: a, devices: 1, device_memory: 1 GB}], training: false}",
         "13: purchase.training: got false and no models, so there is nothing to look at; want models, or true"),
    ],
)  # fmt: skip
def test_a_section_with_nothing_to_look_at(section: str, told: str) -> None:
    with pytest.raises(ProjectFileError) as caught:
        load(f"{SMALL}purchase: {section}\n")
    assert list(caught.value.problems) == [f"clusterqual.yaml:{told}"]
