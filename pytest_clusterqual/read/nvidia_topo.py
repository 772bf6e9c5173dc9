"""The matrix of `nvidia-smi topo -m`: which GPUs and NICs are joined by what.

All column layouts since 2017 are read, out of any text around them. The meaning of the link
classes is NVIDIA's, never that of a legend in the text. With MIG on, the matrix shows the parent
GPUs, whose links MIG devices cannot use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Gpu, Nic, NodeLinks, Path, PathClass
from pytest_clusterqual.read.captured import beginning, cpu_list, plain, whole_number
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.tables import Table, names, tables

_WHAT = "nvidia-smi topo -m"
_CLASSES: dict[str, PathClass] = {
    "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS",
    "SOC": "SYS",  # its name before 2018
}  # fmt: skip
_LANES = re.compile(r"NV([1-9][0-9]?)")
_GPU = re.compile(r"GPU(0|[1-9][0-9]{0,2})")
# NIC0, or the name of an RDMA device itself, which the kernel writes in small letters.
_NIC = re.compile(r"NIC[0-9]{1,4}|[a-z][a-z0-9_.-]*")
_NIC_LEGEND = re.compile(r"^[ \t]*(NIC[0-9]{1,4}):[ \t]*(\S+)[ \t]*$", re.MULTILINE)
_HIDDEN = re.compile(r"([0-9]{1,6}) NICs found[^\n]{0,60}only displaying ([0-9]{1,6})")
_TAIL = "CPU Affinity NUMA Affinity GPU NUMA ID"
_TAILS = ("", "CPU Affinity", "CPU Affinity NUMA Affinity", _TAIL)
_STATUSES = frozenset({"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"})


def read_topology_matrix(text: str) -> NodeLinks:
    """GPUs with their near CPUs and NUMA node, NICs by name, and all paths between them.

    NICs are labelled as in the header; paths name devices by these labels. A NUMA affinity that
    is a list of nodes gives no `numa`. NICs are not reported (None) where the header is not
    NVIDIA's and shows none.

    Raises:
        ReadError: the text holds no such matrix, or one whose columns cannot be told apart.
    """
    text = plain(text, _WHAT)
    found = [table for table in tables(text) if table.own == "X"]
    links = [table for table in found if not _is_p2p(table)]
    if not links:
        got = "the P2P status matrix of nvidia-smi topo -p2p, which names no link" if found else beginning(text)
        raise ReadError(f"{_WHAT}: got {got}, want the matrix of GPUs and NICs")
    table = links[0]
    problems = _problems_of_header(table)
    gpus = tuple(_gpus(table))
    if not gpus:
        raise ReadError(f"{_WHAT}: no GPU can be read: {'; '.join(problems)}")
    legend = dict(_NIC_LEGEND.findall(text))
    nics = tuple(
        Nic(name=legend.get(label, label), label=label, kind="rdma") for label in table.labels if _is_nic(label)
    )
    reported = bool(nics) or not problems
    cells, problems_of_rows = table.pairs(_link)
    if hidden := _HIDDEN.search(text):
        problems.append(f"the tool shows {hidden[2]} of {hidden[1]} NICs, the others are not known")
    if legend and (unnamed := [label for label in table.labels if label.startswith("NIC") and label not in legend]):
        problems.append(f"the NIC legend does not name {names(unnamed)}")
    if len(links) > 1:
        problems.append(f"{len(links)} matrices in the text, the first is read")
    return NodeLinks(
        gpus=gpus,
        nics=nics if reported else None,
        paths=tuple(_paths(cells)),
        problems=(*problems, *problems_of_rows),
    )


def read_p2p_matrix(text: str) -> dict[tuple[str, str], str]:
    """The status of each GPU's access to each other, as `nvidia-smi topo -p2p` prints it: ``OK``, ``CNS``.

    Raises:
        ReadError: the text holds no such matrix.
    """
    text = plain(text, "nvidia-smi topo -p2p")
    table = next((table for table in tables(text) if _is_p2p(table)), None)
    if table is None:
        raise ReadError(f"nvidia-smi topo -p2p: got {beginning(text)}, want the matrix of GPUs")
    return {
        (row.label, label): cell
        for row in table.rows
        if len(row.cells) == len(table.labels)
        for label, cell in zip(table.labels, row.cells, strict=True)
        if cell in _STATUSES
    }


def _is_p2p(table: Table) -> bool:
    cells = {cell for row in table.rows for cell in row.cells}
    return bool(cells & _STATUSES) and not any(_link(cell) for cell in cells)


def _is_nic(label: str) -> bool:
    return bool(_NIC.fullmatch(label))


def _problems_of_header(table: Table) -> list[str]:
    problems = []
    if strange := [label for label in table.labels if not _GPU.fullmatch(label) and not _is_nic(label)]:
        problems.append(f"the header names what is not one device: {names(strange)}; typed or invented by hand")
    if table.tail not in _TAILS:
        problems.append(f"the header ends in {shown(table.tail)}, not in {shown(_TAIL)}: typed by hand")
    if any(_link(cell) for row in table.rows for cell in row.rest):
        raise ReadError(f"{_WHAT}: rows have more cells than the header has columns: its lines were glued or wrapped")
    return problems


def _gpus(table: Table) -> Iterator[Gpu]:
    rest = {row.label: row.rest for row in table.rows}
    columns = _TAILS.index(table.tail) if table.tail in _TAILS else 0
    for label in table.labels:
        if number := _GPU.fullmatch(label):
            near = rest.get(label, ())
            # With fewer cells than columns one is empty or cut off, and which one is not known.
            cpus, numa = (*near, "", "")[:2] if len(near) >= columns else ("", "")
            yield Gpu(index=int(number[1]), cpus=cpu_list(cpus), numa=whole_number(numa))


def _link(cell: str) -> tuple[PathClass, int] | None:
    if lanes := _LANES.fullmatch(cell):
        return "NV", int(lanes[1])
    return (_CLASSES[cell], 0) if cell in _CLASSES else None


def _paths(cells: dict[tuple[str, str], str]) -> Iterator[Path]:
    for (one, other), cell in cells.items():
        link = _link(cell)
        if link and all(_GPU.fullmatch(label) or _is_nic(label) for label in (one, other)):
            yield Path(one=one, other=other, kind=link[0], lanes=link[1])
