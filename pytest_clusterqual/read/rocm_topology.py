"""The tables of `rocm-smi --showtopo`: how the GPUs of a node are joined. It says nothing about NICs."""

from __future__ import annotations

import re

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Gpu, NodeLinks, Path, PathClass
from pytest_clusterqual.read.captured import beginning, plain, whole_number
from pytest_clusterqual.read.tables import Table, tables

_WHAT = "rocm-smi --showtopo"
_CLASSES: dict[str, PathClass] = {"XGMI": "XGMI", "PCIE": "PCIE"}
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,2})")
_NUMA = re.compile(r"GPU\[([0-9]{1,3})\]\s*:\s*\(Topology\) Numa Node:\s*([0-9]{1,4})\b")


def read_rocm_topology(text: str) -> NodeLinks:
    """GPUs with their NUMA node, and the class, hops and weight of the path between each two.

    The tool does not say how near two GPUs are over PCIe: such a path is of class ``PCIE``.

    Raises:
        ReadError: the text holds no table of link types.
    """
    text = plain(text, _WHAT)
    found = [table for table in tables(text) if table.own == "0" and all(map(_GPU.fullmatch, table.labels))]
    types = next((table for table in found if _is_of(table, "Link Type", _CLASSES)), None)
    if types is None:
        raise ReadError(f"{_WHAT}: got {beginning(text)}, want the table of link types between GPUs")
    numa = {int(gpu): int(node) for gpu, node in _NUMA.findall(text)}
    hops, weights = (_numbers(found, title) for title in ("Hops", "Weight"))
    cells, problems = types.pairs(_CLASSES.get)
    return NodeLinks(
        gpus=tuple(Gpu(index=index, numa=numa.get(index)) for index in (int(label[3:]) for label in types.labels)),
        paths=tuple(
            Path(one=pair[0], other=pair[1], kind=_CLASSES[cell], hops=hops.get(pair), weight=weights.get(pair))
            for pair, cell in cells.items()
        ),
        problems=tuple(problems),
    )


def _is_of(table: Table, title: str, cells: dict[str, PathClass]) -> bool:
    return title in table.title or any(cell in cells for row in table.rows for cell in row.cells)


def _numbers(found: list[Table], title: str) -> dict[tuple[str, str], int | None]:
    table = next((table for table in found if title in table.title), None)
    return {pair: whole_number(cell) for pair, cell in table.pairs(str.isdigit)[0].items()} if table else {}
