"""The ways between GPUs and NICs as NCCL sees them, where a file tells it what the PCI bus does not.

In a virtual machine the bus is not the host's, so that `nvidia-smi topo -m` shows all NICs equally far. Who rents
such machines out puts a file beside NCCL, which takes the topology from it:
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-topo-file
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from pytest_clusterqual.model.hardware import Gpu, Nic, NodeHardware, NodeLinks, Path

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")


def with_paths_of(node: NodeHardware, file: NodeLinks) -> NodeHardware:
    """The node with the file's ways from GPUs to NICs in place of its own, and those between GPUs that it lacks.

    Devices are the same where their PCI address is, for a file may number GPUs otherwise and need not name NICs.
    """
    mine: dict[str, list[str]] = {}  # address -> names in the node's own paths; a card with two ports has two
    devices: tuple[Gpu | Nic, ...] = (*node.gpus, *node.nics)
    for device in devices:
        mine.setdefault(_address(device), []).append(_end(device))
    theirs: tuple[Gpu | Nic, ...] = (*(file.gpus or ()), *(file.nics or ()))
    same = {device.name: mine.get(_address(device), []) for device in theirs}
    gpus = {gpu.name for gpu in node.gpus}
    own = {frozenset((path.one, path.other)): path for path in node.paths}
    told: dict[frozenset[str], Path] = {}
    for path in file.paths:
        for one, other in itertools.product(same[path.one], same[path.other]):
            pair = frozenset((one, other))
            if not (pair in own and pair <= gpus):  # of GPUs the driver knows more: a file may leave NVLinks out
                told[pair] = replace(path, one=one, other=other)
    return replace(node, paths=tuple({**own, **told}.values()))


def _end(device: Gpu | Nic) -> str:
    return (device.label or device.name) if isinstance(device, Nic) else device.name


def _address(device: Gpu | Nic) -> str:
    """In one form: the driver writes domains with eight digits, sysfs with four. A device without one is its own."""
    found = _PCI.fullmatch((device.pci or "").lower())
    return f"{int(found[1] or '0', 16):x}:{found[2]}" if found else f"no address: {device.name}"
