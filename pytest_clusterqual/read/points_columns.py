"""What the columns of a table of scaling points say by their names, and its cells by their units.

``it/s`` is not ``s/it``, and a throughput is of all devices or of one: a name or a cell must say which.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pytest_clusterqual import units
from pytest_clusterqual.model.points import Work
from pytest_clusterqual.read.messages import shown

CONDITIONS: dict[str, tuple[str, ...]] = {
    "nodes": ("nodes", "num_nodes", "n_nodes", "nnodes"),
    "devices": ("ranks", "devices", "gpus", "num_gpus", "n_gpus", "world_size", "accelerators"),
    "devices_per_node": ("devices_per_node", "gpus_per_node", "ranks_per_node", "nproc_per_node"),
    "global_batch": ("global_batch", "global_batch_size", "gbs", "glob_bs"),
    "sequence_length": ("sequence_length", "seq_length", "seq_len"),
    "microbatches": (
        "grad_accum", "gradient_accumulation", "gradient_accumulation_steps", "gas", "microbatches", "pp_chunks",
    ),
    "samples_to_converge": ("samples_to_converge",),
    "run": ("run", "repeat", "trial"),
}  # fmt: skip
# Told, but neither a figure that is judged nor part of what makes two points the same job.
_BESIDE = re.compile(r"(?:peak_)?memory.*|loss|notes?|comment|remarks?|date|source|url|hosts?|node_?list")
CLEAR = (
    "tokens_per_second, tokens_per_second_per_device, samples_per_second, iterations_per_second (it/s), "
    "seconds_per_iteration (s/it), step_time_ms, epoch_time_s, tflops_per_device, mfu, time_to_train_min"
)

_WORKS: dict[str, Work] = {
    **dict.fromkeys(("tokens", "token", "tok", "toks"), "tokens"),
    **dict.fromkeys(("samples", "sample", "sequences", "sequence", "seqs", "seq", "images", "image", "img"), "samples"),
    **dict.fromkeys(("steps", "step", "iterations", "iteration", "iters", "iter", "its", "it"), "steps"),
    **dict.fromkeys(("epochs", "epoch"), "epochs"),
}
_TIMES = {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "min": 60.0,
          "minutes": 60.0, "h": 3600.0, "hours": 3600.0}  # fmt: skip
_FLOPS = {"gflop": 1e9, "tflop": 1e12, "pflop": 1e15}
_PER = r"(?:_per_|/)"  # not _: step_s is the seconds of a step
_WORK = "(?P<work>" + "|".join(_WORKS) + ")"
_DEVICE = "(?:gpu|device|rank|accelerator|chip)"
_TIME = "(?P<time>" + "|".join(sorted(_TIMES, key=len, reverse=True)) + ")"
_BEFORE = r"(?:(?:mean|median|average|avg|total)_)?(?:(?:throughput|speed)_)?"
_RATE = re.compile(rf"{_BEFORE}{_WORK}(?P<one>{_PER}{_DEVICE})?{_PER}(?:s|sec|second)(?P<each>{_PER}{_DEVICE})?")
_PLURAL_RATE = re.compile(rf"{_BEFORE}(?P<work>tokens|samples|sequences|images)_s(?P<each>_{_DEVICE})?")
_TPS = re.compile(rf"{_BEFORE}tps{_PER}{_DEVICE}")
_INVERSE = re.compile(rf"{_BEFORE}{_TIME}{_PER}{_WORK}")
_DURATION = re.compile(
    rf"{_BEFORE}(?P<what>step_time|iteration_time|time_per_step|time_per_iteration|epoch_time|time_per_epoch|"
    rf"time_to_train)(?:_{_TIME})?"
)
_COMPUTED = re.compile(rf"(?:model_)?(?P<flops>[gtp]flop)(?:/s|s|_s|_per_second)?{_PER}{_DEVICE}")
_VAGUE = re.compile(rf"{_BEFORE}(?:throughput|speed|performance|perf|rate|tps|qps|(?:model_)?[gtp]?flops?(?:/s)?)")
_VAGUE_TIME = re.compile(r"(?:time|duration|elapsed|latency|runtime|wall_?time)(?:_" + _TIME + ")?")
_NUMBER = re.compile(r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>(?:[A-Za-zµ%].*)?)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """How a cell becomes `work` a second: times `scale`, of one device or of all, or as the time that one takes.

    With `work` None it is a time to train. A figure with `unit` needs it in the cell, a share may be in percent.
    """

    work: Work | None
    per_device: bool = False
    inverse: bool = False
    scale: float = 1.0
    unit: str = ""


def plain_name(header: str) -> str:
    """``Tokens / s / GPU`` -> ``tokens/s/gpu``; all that is not a letter, a digit or a slash parts words."""
    return re.sub(r"_*/_*", "/", re.sub(r"[^a-z0-9/]+", "_", header.strip().lower())).strip("_")


def condition_of(name: str) -> str | None:
    return next((condition for condition, names in CONDITIONS.items() if name in names), None)


def is_beside(name: str) -> bool:
    return _BESIDE.fullmatch(name) is not None


def is_vague(name: str) -> bool:
    """True where a name promises a figure, but not which one."""
    return (_VAGUE.fullmatch(name) or _VAGUE_TIME.fullmatch(name)) is not None


def figure_of(name: str) -> Figure | None:
    """What a name, or the unit of a cell, says; None for anything but a clear figure."""
    if name == "mfu":
        return Figure(work="peaks", per_device=True, unit=units.RATIO)
    if _TPS.fullmatch(name):
        return Figure(work="tokens", per_device=True)
    if match := _RATE.fullmatch(name):
        return Figure(work=_WORKS[match["work"]], per_device=bool(match["one"] or match["each"]))
    if match := _PLURAL_RATE.fullmatch(name):
        return Figure(work=_WORKS[match["work"]], per_device=bool(match["each"]))
    if match := _INVERSE.fullmatch(name):
        return Figure(work=_WORKS[match["work"]], inverse=True, scale=_TIMES[match["time"]])
    if match := _COMPUTED.fullmatch(name):
        return Figure(work="FLOP", per_device=True, scale=_FLOPS[match["flops"]])
    if match := _DURATION.fullmatch(name):
        work: Work | None = None if match["what"] == "time_to_train" else "epochs" if "epoch" in name else "steps"
        unit = "" if match["time"] else units.SECONDS
        return Figure(work=work, inverse=True, scale=_TIMES.get(match["time"] or "s", 1.0), unit=unit)
    return None


def figure_in(cell: str, figure: Figure | None) -> tuple[Figure, float]:
    """The figure that a cell holds, and its value above 0 as `scale` has it; `figure` is what its column says.

    Raises:
        ValueError: the message says what was got and what is wanted.
    """
    match = _NUMBER.fullmatch(cell)
    if match is None:
        raise ValueError(f"got {shown(cell)}, want a number without separators of thousands")
    value, unit = float(match["number"]), match["unit"].strip()
    if figure is not None and figure.unit and not figure_of(plain_name(unit)):
        figure, value = replace(figure, scale=1.0), units.parse(cell, figure.unit)
    elif unit:
        figure = _said_twice(cell, unit, figure)
    elif figure is None:
        raise ValueError(f"got {shown(cell)}, and neither column nor cell says in which unit; clear are {CLEAR}")
    if not 0 < value < float("inf"):
        raise ValueError(f"got {shown(cell)}, want a figure above 0")
    if figure.unit == units.RATIO and value > 1:
        raise ValueError(f"got {shown(cell)}, want a share such as 47 % or 0.47")
    return figure, value


def _said_twice(cell: str, unit: str, figure: Figure | None) -> Figure:
    """The figure of a cell that names its unit, which must be what its column says."""
    found = figure_of(plain_name(unit))
    if figure is not None and figure.inverse and unit in _TIMES:
        return replace(figure, scale=_TIMES[unit])
    if found is None or found.unit:
        raise ValueError(f"got {shown(cell)}, want a unit such as tokens/s, samples/s, it/s or s/it; clear are {CLEAR}")
    if figure is not None and (found.work, found.per_device) != (figure.work, figure.per_device):
        raise ValueError(f"got {shown(cell)}, which is not what the name of the column says")
    return found
