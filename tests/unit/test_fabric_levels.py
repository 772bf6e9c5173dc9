from __future__ import annotations

from pathlib import Path

import pytest
from project_files import SMALL

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.read.project import load_project

LINKS = "links: {nic: 400 Gbit/s, nics_per_node: 8, intra_node: 900 GB/s}"
NICS = "8 NICs x 400 Gbit/s = 400 GB/s each way (promised)"


def problems(folder: Path, demand: str, *, more: str = LINKS, nodes: int | None = 2, local: int = 8) -> str:
    """What is said of a requirement, without its place; nothing if it is accepted."""
    file = folder / "clusterqual.yaml"
    text = SMALL.replace("global_batch: 1", "global_batch: 1024")
    file.write_text(f"{text}fabric: {{{more}, require: [{demand}]}}\n", encoding="utf-8")
    try:
        load_project(file, nodes=nodes, nproc_per_node=local)
    except ProjectFileError as error:
        return "\n".join(line for line in str(error).splitlines() if "global_batch" not in line)
    return ""


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        ('{collective: all_reduce, group: world, busbw: ">= 401 GB/s"}',
         f'fabric.require[0].busbw: got ">= 401 GB/s", which is above what fabric.links give: ring all-reduce over '
         f"2 nodes x 8 ranks: bound by {NICS}; busbw <= 400 GB/s"),
        ('{collective: all_reduce, group: world, plateau: "> 500 GB/s"}', "busbw <= 400 GB/s"),
        ('{collective: all_reduce, group: world, algbw: ">= 220 GB/s"}', "algbw is busbw / 1.875"),
        ('{collective: all_reduce, group: rails, busbw: ">= 60 GB/s"}', "shared by 8 groups; busbw <= 50 GB/s"),
        # no group is named: it must be possible in each
        ('{collective: all_reduce, busbw: ">= 60 GB/s"}', "ring all-reduce in 8 groups at once"),
        ('{collective: all_to_all, group: world, busbw: ">= 100 GB/s"}', "busbw <= 93.8 GB/s"),
        ('{pair_busbw: ">= 401 GB/s"}', "send-recv over 2 nodes x 1 rank"),
        ('{collective: all_reduce, group: world, busbw: ">= 110 % of expected"}',
         'got ">= 110 % of expected", want at most 100 %'),
        ('{collective: all_reduce, from: 1 MiB, plateau: ">= 1 GB/s"}', "plateau is that of the whole sweep"),
        ('{to: 8 KiB, alpha: "<= 1 s"}', "require[0].to: alpha is that of the whole sweep"),
    ],
)  # fmt: skip
def test_what_no_fabric_can_meet_is_refused_with_the_arithmetic(tmp_path: Path, demand: str, said: str) -> None:
    assert said in problems(tmp_path, demand)


@pytest.mark.parametrize(
    "demand",
    [
        '{collective: all_reduce, group: world, busbw: ">= 400 GB/s"}',
        '{collective: all_reduce, group: world, busbw: "<= 900 GB/s"}',
        '{collective: all_reduce, group: intra_node, busbw: ">= 800 GB/s"}',
        '{collective: all_reduce, group: world, busbw: ">= 100 % of expected"}',
        '{collective: all_reduce, group: world, algbw: ">= 213 GB/s"}',
        '{pair_busbw: ">= 400 GB/s"}',
        # nobody says that an all-to-all is run at all
        '{group: world, busbw: ">= 300 GB/s"}',
        '{group: world, latency: "<= 1 s"}',
    ],
)
def test_what_links_allow_is_accepted(tmp_path: Path, demand: str) -> None:
    assert problems(tmp_path, demand) == ""


def test_the_algorithm_of_the_file_counts(tmp_path: Path) -> None:
    demand = '{collective: all_reduce, group: world, busbw: ">= 700 GB/s"}'
    assert "busbw <= 400 GB/s" in problems(tmp_path, demand)
    assert problems(tmp_path, demand, more=f"{LINKS}, algorithm: tree") == ""


def test_without_the_number_of_nodes_only_what_no_number_allows_is_refused(tmp_path: Path) -> None:
    demand = '{{collective: all_reduce, group: {}, busbw: ">= {} GB/s"}}'
    assert problems(tmp_path, demand.format("world", 600), nodes=None) == ""  # on one node
    assert "busbw <= 900 GB/s" in problems(tmp_path, demand.format("world", 950), nodes=None)
    assert "busbw <= 50 GB/s" in problems(tmp_path, demand.format("rails", 51), nodes=None)


def test_links_that_nobody_promised_allow_everything(tmp_path: Path) -> None:
    demand = '{collective: all_reduce, group: world, busbw: ">= 9000 GB/s"}'
    assert problems(tmp_path, demand, more="links: {intra_node: 900 GB/s}") == ""
    assert problems(tmp_path, demand, nodes=None, local=1 << 20) == ""
