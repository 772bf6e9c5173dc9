"""The lines that trainers print of a step, one form each; progress bars are in `log_bars`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from pytest_clusterqual.model.log import LoggedStep, Moment
from pytest_clusterqual.read.log_lines import NUMBER, SINCE_BEFORE, Line, number

# What lines tell beside their step and time.
_NAMED = {
    name: re.compile(rf"\b{name} ?[:=] *({NUMBER})")
    for name in (
        "loss", "global batch size", "global_batch_size", "train_step_timing in s", "reduced_train_loss",
        "tokens_per_sec_per_gpu", "(?:max_memory_allocated|peak_memory_usage)",
    )
}  # fmt: skip
_MEMORY = re.compile(rf"\bmemory: *({NUMBER})([KMG]i?B)\b")
_SKIPPED = re.compile(r"\bnumber of skipped iterations: *(\d{1,9})\b")
_LOSSES = re.compile(rf"\|\s*(?:(?:lm|total|mlm|mse) )?loss: *({NUMBER})")
_UNITS = {"B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "KB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """`begins` is how such a line starts, `whole` what must be there of it; between both it may be wrapped."""

    name: str
    begins: re.Pattern[str]
    whole: re.Pattern[str]
    read: Callable[[re.Match[str], Line], LoggedStep | None]


def _number(match: re.Match[str] | None, group: str | int = 1) -> float | None:
    return number(match[group]) if match and match[group] else None


def _seconds(text: str, unit: str) -> float:
    return number(text) / (1e3 if unit == "ms" else 1)


def _find(name: str, text: str) -> float | None:
    """The number after ``name:`` or ``name=``."""
    return _number(_NAMED[name].search(text))


def _made(line: Line, step: float | None, over: int = 1, **fields: Any) -> LoggedStep | None:
    """None where the number of the step is none."""
    if step is None or not 0 <= step < 1e15:
        return None
    return LoggedStep(
        place=line.place, step=int(step), over=over, printer=line.printer, **{"moment": line.moment, **fields}
    )


def _torchtitan(match: re.Match[str], line: Line) -> LoggedStep | None:
    memory = _MEMORY.search(match[0])
    return _made(
        line, number(match["step"]), SINCE_BEFORE, loss=_find("loss", match[0]), device_rate=number(match["rate"]),
        memory=number(memory[1]) * _UNITS[memory[2]] if memory else None,
    )  # fmt: skip


def _megatron(match: re.Match[str], line: Line) -> LoggedStep | None:
    text = match[0]
    skipped = _SKIPPED.search(text)
    return _made(
        line, number(match["step"]), SINCE_BEFORE, seconds=_seconds(match["time"], match["unit"]),
        loss=_number(_LOSSES.search(text)), samples=_find("global batch size", text),
        skipped=int(skipped[1]) if skipped else 0,
    )  # fmt: skip


def _nemo(match: re.Match[str], line: Line) -> LoggedStep | None:
    text = match[0]
    seconds = _find("train_step_timing in s", text)
    samples = _find("global_batch_size", text)
    return _made(
        line, number(match["step"]), seconds=seconds, loss=_find("reduced_train_loss", text), samples=samples,
        device_rate=_find("tokens_per_sec_per_gpu", text),
        memory=_find("(?:max_memory_allocated|peak_memory_usage)", text),
    )  # fmt: skip


def _nanogpt(match: re.Match[str], line: Line) -> LoggedStep | None:
    return _made(line, number(match["step"]), seconds=number(match["ms"]) / 1e3, loss=number(match["loss"]))


def _llmc(match: re.Match[str], line: Line) -> LoggedStep | None:
    seconds = number(match["ms"]) / 1e3
    told = match.groupdict()
    rate = told.get("rate") or told.get("other")
    return _made(
        line, number(match["step"]), seconds=seconds, loss=number(match["loss"]),
        tokens=number(rate) * seconds if rate else None,
    )  # fmt: skip


class _Microbatches:
    """litgpt times every microbatch. A step is all of them up to the one that says so, where all have a line."""

    def __init__(self) -> None:
        self._ended = {"": 0}  # printer -> the last microbatch of the step before
        self._since: dict[str, list[float]] = {}

    def read(self, match: re.Match[str], line: Line) -> LoggedStep | None:
        batch, step = int(match["iter"]), int(match["step"])
        since = self._since.setdefault(line.printer, [])
        since.append(_seconds(match["time"], match["unit"]))
        if not match["ends"] and batch != step:
            return None
        whole = batch == step or len(since) == batch - self._ended.get(line.printer, 0)
        made = _made(line, step, loss=number(match["loss"]), seconds=(since[-1] if batch == step else sum(since)))
        self._ended[line.printer] = batch
        since.clear()
        return made if whole or made is None else replace(made, seconds=None)


def json_step(line: Line) -> LoggedStep | None:
    """A step in JSON, of NeMo's DLLogger or of MLPerf; the step is as it stands there."""
    marker, brace, rest = line.text.partition("{")
    if not brace or not marker.strip().endswith(("DLLL", ":::MLLOG")):
        return None
    told = _object(brace + rest)
    if told.get("key") == "tracked_stats":
        value, place = told.get("value"), told.get("metadata")
        at, step = told.get("time_ms"), place.get("step") if isinstance(place, dict) else None
        moment = Moment(clock="date", at=float(at) / 1e3, tick=1e-3) if _is_number(at) else line.moment
    else:
        value, step, at = told.get("data"), told.get("step"), told.get("elapsedtime")
        moment = Moment(clock="DLLogger", at=number(at), tick=1e-3) if _is_decimal(at) else line.moment
    if not isinstance(value, dict) or not _is_number(step) or not _is_number(value.get("train_step_timing in s")):
        return None
    loss = value.get("reduced_train_loss")
    return _made(
        line, float(step), seconds=float(value["train_step_timing in s"]), moment=moment,
        loss=float(loss) if _is_number(loss) or isinstance(loss, float) else None,
    )  # fmt: skip


def json_facts(text: str) -> dict[str, float]:
    """Numbers of the job in a line of JSON: MLPerf's keys, NeMo's configuration without its ``cfg/``."""
    told = _object(text[text.find("{") :]) if "{" in text else {}
    if _is_number(told.get("value")):
        return {str(told.get("key")): float(told["value"])}
    data = told.get("data")
    named = data if isinstance(data, dict) and told.get("step") == "PARAMETER" else {}
    return {str(name).removeprefix("cfg/"): float(value) for name, value in named.items() if _is_number(value)}


def _object(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18


def _is_decimal(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(re.fullmatch(r"\d{1,15}(?:\.\d{1,12})?", value))


def families() -> tuple[Family, ...]:
    """One each, for one run: some remember the line before."""
    return (*_FAMILIES, replace(_LITGPT, read=_Microbatches().read))


def _up_to(begin: str) -> str:
    """What may stand between the beginning of a line and its time: no other beginning, as of a line cut in half."""
    return rf"(?:(?!{begin}).)*?"


_FAMILIES = (
    Family(
        name="torchtitan", begins=re.compile(r"(?<!validate )\bstep: *\d+ +loss:"),
        whole=re.compile(
            rf"(?<!validate )\bstep: *(?P<step>\d{{1,12}}) +loss:"
            rf"{_up_to('step:')}\b(?:tps|wps): *(?P<rate>{NUMBER})"
        ),
        read=_torchtitan,
    ),
    Family(
        name="Megatron-LM", begins=re.compile(r"\biteration +\d+/ *\d+ *\|"),
        whole=re.compile(
            rf"\biteration +(?P<step>\d{{1,12}})/ *\d+ *\|{_up_to('iteration +[0-9]')}"
            rf"\belapsed time per iteration \((?P<unit>m?s)\): *(?P<time>{NUMBER}) *\|.*\|\s*$"
        ),
        read=_megatron,
    ),
    Family(
        name="NeMo", begins=re.compile(r"\bTraining epoch \d+, iteration \d+/\d+ *\|"),
        whole=re.compile(
            rf"\bTraining epoch \d+, iteration \d+/\d+ *\|{_up_to('Training epoch ')}"
            r"\bglobal_step: *(?P<step>\d{1,12}).*train_step_timing in s: *\d.*"
        ),
        read=_nemo,
    ),
    Family(
        name="nanoGPT", begins=re.compile(r"\biter +\d+: loss\b"),
        whole=re.compile(rf"\biter +(?P<step>\d{{1,12}}): loss +(?P<loss>{NUMBER}), time +(?P<ms>{NUMBER}) ?ms"),
        read=_nanogpt,
    ),
    Family(
        name="llm.c", begins=re.compile(r"\bstep +\d+: train loss\b"),
        whole=re.compile(
            rf"\bstep +(?P<step>\d{{1,12}}): train loss +(?P<loss>{NUMBER}){_up_to('step +[0-9]')}"
            rf"\(took +(?P<ms>{NUMBER}) ms\)"
        ),
        read=_llmc,
    ),
    Family(
        name="llm.c", begins=re.compile(r"\bstep +\d+(?:/\d+)? *\| *(?:loss|train loss)\b"),
        whole=re.compile(
            rf"\bstep +(?P<step>\d{{1,12}})(?:/\d+)? *\| *(?:train )?loss:? *(?P<loss>{NUMBER})"
            rf"{_up_to('step +[0-9]')}(?:\| *|\bdt: *)(?P<ms>{NUMBER}) ?ms\b{_up_to('step +[0-9]')}"
            rf"(?:(?<![\d.,])(?P<rate>{NUMBER}) tok/s|tok/sec: *(?P<other>{NUMBER}))"
        ),
        read=_llmc,
    ),
)  # fmt: skip
_LITGPT = Family(
    name="litgpt", begins=re.compile(r"\bEpoch \d+ \| iter +\d+ step +\d+ \|"),
    whole=re.compile(
        rf"\bEpoch \d+ \| iter +(?P<iter>\d{{1,12}}) step +(?P<step>\d{{1,12}}) \| loss train: *(?P<loss>{NUMBER})"
        rf"{_up_to('Epoch [0-9]')}\biter time: *(?P<time>{NUMBER}) (?P<unit>m?s)\b(?P<ends> \(step\))?"
    ),
    read=lambda match, line: None,
)  # fmt: skip
