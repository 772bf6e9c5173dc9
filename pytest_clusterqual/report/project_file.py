"""The project file that `clusterqual init` writes: what was found, and no demand that is not the user's own."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pytest_clusterqual import units
from pytest_clusterqual.model.hardware import Nic, NodeHardware
from pytest_clusterqual.model.project import LauncherOptions
from pytest_clusterqual.report import text

T = TypeVar("T", int, float, str)
_COMMENT = 30  # column of the comments
# Stand-ins for the job: one that a laptop trains in seconds, one that keeps a GPU busy and fits any.
_ON_CPU = ("{layers: 2, hidden: 128, heads: 4, kv_heads: 2, ffn: 384, vocab: 256}", "fp32", 128, 8)
_ON_GPU = ("{layers: 12, hidden: 1024, heads: 16, kv_heads: 8, ffn: 4096, vocab: 256}", "bf16", 2048, 4)


def project_file(
    options: LauncherOptions, hardware: Sequence[NodeHardware], *, name: str, hosts: str, nodes: int
) -> str:
    """A project file for `nodes` nodes of this `hardware`, in which all NICs are those of the fabric.

    `hosts` is how the file names the hosts, empty for a launcher that takes none. A promise is what
    most nodes have. Every ``require`` is commented out: it shows the form, the figure is the user's.
    """
    found = _most(hardware, lambda node: len(node.gpus))
    # Simulated nodes share the GPUs of their machine.
    gpus = (found[0] if found else 0) // (nodes if options.kind == "local" else 1)
    sections = (
        _head(name, len(hardware), nodes),
        _launcher(options, hosts, gpus),
        _workload(nodes, gpus),
        _layouts(),
        _topology(hardware, gpus),
        _memory(),
        _fabric(hardware, nodes, gpus),
        _scaling(nodes),
        _full_run(),
        _decision(),
    )
    return "\n".join("".join(f"{line}\n" for line in section) for section in sections)


def _most(hardware: Sequence[NodeHardware], value: Callable[[NodeHardware], T | None]) -> tuple[T, str] | None:
    """What most nodes have, and where it was found; None if no node tells it."""
    known = [found for node in hardware if (found := value(node)) is not None]
    if not known:
        return None
    most, count = Counter(known).most_common(1)[0]
    return most, f"found on {count} of {len(hardware)}"


def _alike(values: Sequence[T | None]) -> T | None:
    """The value of all devices of a node, None if they differ."""
    return values[0] if len(set(values)) == 1 else None


def _linked(node: NodeHardware) -> list[Nic]:
    return [nic for nic in node.nics if nic.up is not False and not nic.virtual]


def _nic_rate(node: NodeHardware) -> float | None:
    return _alike([nic.rate for nic in _linked(node)])


def _bits(rate: float) -> str:
    return f"{rate * 8 / 1e9:g} Gbit/s"


def _line(text: str, comment: str, *, indent: str = "  ") -> str:
    return f"{indent}{text}".ljust(_COMMENT - 2) + f"  # {comment}"


def _demands(*demands: str) -> Iterator[str]:
    yield "  # require:"
    yield from (f"  #   - {demand}" for demand in demands)


def _head(name: str, hosts: int, nodes: int) -> Iterator[str]:
    told = f"{units.show_count(hosts, 'host')} told"
    yield f"# Written by `clusterqual init` from what {told}. Before you trust a verdict:"
    yield "# - put your own job in the place of `workload`, which is a stand-in,"
    yield "# - put what was ordered in the place of what was found in `topology` and `fabric.links`,"
    yield "# - look at the figures: as long as nothing is demanded they are MEASURED, never a PASS:"
    yield f"#       pytest qualification/ --nodes {nodes} --qual-keep-going"
    yield "# - uncomment each `require` and write thresholds of your own; those below only show the form."
    yield "version: 1"
    yield f"project: {json.dumps(text.visible(name), ensure_ascii=False)}"


def _launcher(options: LauncherOptions, hosts: str, gpus: int) -> Iterator[str]:
    yield "launcher:"
    yield _line(f"kind: {options.kind}", "local | ssh | slurm | mpi")
    if hosts:
        yield f"  hosts: {json.dumps(hosts)}"
    if options.python:
        yield _line(f"python: {json.dumps(options.python)}", "on the hosts")
    if options.kind == "slurm":
        yield _line("# slurm: {partition: gpu, time: 2 h}", "what to ask for outside an allocation")
    yield _line(f"nproc_per_node: {gpus or 1}", "ranks on each node" + (", one a GPU" if gpus else ""))
    yield _line("device: auto", "auto | cpu | cuda")


def _workload(nodes: int, gpus: int) -> Iterator[str]:
    """A job whose global batch can be shared by 1, 2 and all nodes."""
    model, precision, length, microbatch = _ON_GPU if gpus else _ON_CPU
    yield _line("workload:", "a stand-in: write the exact job that you want to run", indent="")
    yield f"  model: {model}"
    yield "  optimizer: {name: adamw, lr: 3.0e-4}"
    yield _line(f"precision: {precision}", "fp32 | bf16 | fp16")
    yield f"  sequence_length: {length}"
    yield _line(f"microbatch: {microbatch}", "sequences per rank and forward")
    batch = microbatch * (gpus or 1) * math.lcm(2, nodes)
    yield _line(f"global_batch: {batch}", "sequences per optimizer step, the same for any number of ranks")
    yield _line("steps: 10", "the fixed work: steps x global_batch x sequence_length tokens")
    yield "  seed: 1"


def _layouts() -> Iterator[str]:
    yield "layouts:"
    yield "  - {name: ddp}"
    yield "  - {name: fsdp, fsdp: full}"
    yield "  - {name: fsdp-ac, fsdp: full, activation_checkpointing: full}"


def _topology(hardware: Sequence[NodeHardware], gpus: int) -> Iterator[str]:
    """What was found as promises; what no node tells, or what a virtual NIC says of itself, is none."""
    lines: list[str] = []

    def promise(key: str, value: Callable[[NodeHardware], T | None], shown: Callable[[T], str]) -> None:
        if found := _most(hardware, value):
            lines.append(_line(f"{key}: {shown(found[0])}", found[1]))

    if gpus:
        promise("gpus_per_node", lambda node: gpus if node.gpus else None, str)
        promise("gpu", lambda node: _alike([gpu.model for gpu in node.gpus]), json.dumps)
        promise("gpu_memory", lambda node: _alike([gpu.memory for gpu in node.gpus]), lambda it: f'">= {it >> 30} GiB"')
    promise("nics_per_node", lambda node: len(_linked(node)) or None, str)
    promise("nic_rate", _nic_rate, lambda rate: f'">= {_bits(rate)}"')
    promise("mtu", lambda node: _alike([nic.mtu for nic in _linked(node)]), str)
    promise("cores_per_node", lambda node: node.cpu.cores, str)
    comment = "a promise of every node: what was found, to be replaced by what was ordered"
    yield _line("topology:" if lines else "topology: {}", comment, indent="")
    yield from lines


def _memory() -> Iterator[str]:
    yield "memory:"
    yield "  steps: 3"
    yield from _demands('{peak: "<= 70 GiB"}', '{headroom: ">= 10 %"}')


def _fabric(hardware: Sequence[NodeHardware], nodes: int, gpus: int) -> Iterator[str]:
    groups = ["intra_node", "inter_node", "rails", "world"] if gpus > 1 and nodes > 1 else ["world"]
    rate, count = _most(hardware, _nic_rate), _most(hardware, lambda node: len(_linked(node)) or None)
    links = f"{{nic: {_bits(rate[0])}, nics_per_node: {count[0]}}}" if rate and count and nodes > 1 else ""
    yield "fabric:"
    yield "  # Left out, those that the layouts need. A checkpoint or another job may need others."
    yield "  collectives: [all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, broadcast]"
    yield f"  groups: [{', '.join(groups)}]"
    if nodes > 2:
        yield _line("pairs: true", "every node with every other one")
    yield f"  sizes: {{from: 4 KiB, to: {'256 MiB' if gpus else '16 MiB'}, factor: 4}}"
    yield f"  links: {links}" if links else "  # links: {nic: 400 Gbit/s, nics_per_node: 8}"
    busbw = ">= 80 % of expected" if links else ">= 10 GB/s"
    yield from _demands(
        f'{{collective: all_reduce, group: world, from: 1 MiB, busbw: "{busbw}"}}',
        '{collective: send_recv, group: world, to: 4 KiB, latency: "<= 100 us"}',
    )


def _scaling(nodes: int) -> Iterator[str]:
    points = sorted({1, 2, nodes})
    yield "scaling:"
    yield _line(f"points: {points}", "numbers of nodes, the baseline first")
    yield from _demands(
        f'{{nodes: {points[-1]}, efficiency: ">= 0.8"}}', f'{{nodes: {points[-1]}, speedup: ">= {0.8 * points[-1]:g}"}}'
    )


def _full_run() -> Iterator[str]:
    yield "full_run:"
    yield "  layouts: [ddp]"
    yield _line("steps: 50", "or minutes: 30; a short run pays more for its start than a real one")
    yield _line("checkpoint:", "one, or a list of several to compare")
    yield "    every: 10"
    yield _line("  mode: async", "sync | async | async-process")
    yield _line("  # folder: /shared/checkpoints", "one that all nodes see; left out, the run folder must be one")
    yield _line("failure: {kill_rank: 0, at_step: 25}", "or a list: hang_rank, kill_node, sigterm, ...")
    yield from _demands(
        '{gain: ">= 1.3"}', '{goodput: ">= 90 %"}', '{checkpoint_blocking: "<= 5 s"}', '{recovery: "<= 5 min"}'
    )


def _decision() -> Iterator[str]:
    yield _line("decision: {}", "told only; {expect: performance} fails where another outcome comes out", indent="")
