"""The JSON that nccl-tests writes with -J. It holds the whole environment, of which only a part is kept."""

from __future__ import annotations

import json
import math
from typing import Any

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.variables import environment_variables
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.reported import Raw, nccl_version, program_in, sizes_asked
from pytest_clusterqual.read.reported_ranks import WIDTHS, Half, Row, factor_range

_DIGIT = 0.51e-6  # all figures are printed with six decimals


def read_json(text: str, source: str) -> Raw:
    """The run of one file.

    Raises:
        ReadError: it is cut, or of another form.
    """
    try:
        report = json.loads(text)
    except ValueError as error:
        raise ReadError(f"{source}: got JSON that ends early or is damaged ({error}); give the whole file") from None
    if not isinstance(report, dict) or not isinstance(report.get("results"), list):
        raise ReadError(f"{source}: got JSON without a list of results, want what nccl-tests writes with -J")
    config, args = _mapping(report.get("config")), report.get("args")
    raw = Raw(where=source, program=program_in(str(args[0])) if isinstance(args, list) and args else "")
    raw.sizes = _sizes(config)
    raw.members = _members(config)
    raw.variables = _variables(report.get("env"))
    if isinstance(report.get("nccl_version"), int):
        raw.versions["nccl"] = nccl_version(report["nccl_version"])
    wrong = _mapping(report.get("out_of_bounds")).get("count")
    raw.out_of_bounds = wrong if isinstance(wrong, int) else None
    for index, entry in enumerate(report["results"]):
        where = f"{source}: results[{index}]"
        try:
            raw.rows.append(_row(_mapping(entry), where))
        except ValueError as error:
            raw.problems.append(f"{where}: {error}")
    return raw


def _row(entry: dict[str, Any], where: str) -> Row:
    size = _whole(entry, "size")
    if not entry.get("out_of_place") and not entry.get("in_place"):
        raise ValueError(f"size {size} B has no figures, so it tells nothing")
    element, redop, root = (str(entry.get(key) or "").strip() for key in ("type", "redop", "root"))
    if element not in WIDTHS:
        raise ValueError(f"got the type {shown(element)}, want one of {', '.join(WIDTHS)}")
    return Row(
        where=where, bytes=size, count=_whole(entry, "count"), element=element, redop=redop,
        root=int(root) if root.isdecimal() else -1,
        halves=(_half(entry.get("out_of_place"), size), _half(entry.get("in_place"), size)),
    )  # fmt: skip


def _half(figures: Any, size: int) -> Half | None:
    if not figures:
        return None
    figures = _mapping(figures)
    us, busbw, wrong = _number(figures, "time"), _number(figures, "bus_bw"), figures.get("nwrong")
    if us <= 0:
        raise ValueError(f"got a time of {us} us, want one above 0")
    return Half(
        seconds=us / 1e6, busbw=f"{busbw:g} GB/s",
        factor=factor_range(busbw, _DIGIT, us, _DIGIT, size),
        wrong=None if wrong is None else int(_number(figures, "nwrong")),
    )  # fmt: skip


def _sizes(config: dict[str, Any]) -> int | None:
    step = config.get("step_factor", config.get("step_bytes"))
    least, most = config.get("minimum_bytes"), config.get("maximum_bytes")
    if not all(isinstance(value, int) for value in (least, most, step)):
        return None
    return sizes_asked(least, most, step, by_factor="step_factor" in config)  # type: ignore[arg-type]


def _members(config: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """Rank -> (host, device). Only the first rank of each process is listed; the others sit beside it."""
    each = [config.get(key) for key in ("nthreads", "ngpus")]
    ranks = math.prod(count if isinstance(count, int) else 1 for count in each)
    members: dict[int, tuple[str, str]] = {}
    devices = config.get("devices")
    for device in map(_mapping, devices if isinstance(devices, list) else []):
        first = device.get("rank")
        if isinstance(first, int):
            place = str(device.get("hostname", "")), str(device.get("device_info", ""))
            members |= {rank: place for rank in range(first, first + ranks) if rank not in members}
    return members


def _variables(env: Any) -> dict[str, str]:
    pairs = [str(entry).partition("=") for entry in env] if isinstance(env, list) else []
    return environment_variables({name: value for name, _, value in pairs})


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key}: got {shown(value)}, want a whole number")
    return value


def _number(entry: dict[str, Any], key: str) -> float:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{key}: got {shown(value)}, want a number")
    return float(value)
