"""What a log tells of the whole job, and lines that speak of checkpoints, evaluation and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from pytest_clusterqual.model.log import EventKind, Told
from pytest_clusterqual.read.log_families import json_facts
from pytest_clusterqual.read.log_lines import NUMBER, WHOLE, number

_WHOLE = rf"({WHOLE})"
# Field of Told -> the lines that tell it.
_FACTS: dict[str, tuple[re.Pattern[str], ...]] = {
    "global_batch": (
        re.compile(rf"\bglobal batch size {_WHOLE},"),
        re.compile(rf"\bTotal train batch size \(w\. parallel.*\) *= *{_WHOLE}"),
        re.compile(rf"^ *global_batch_size \.{{3,}} {_WHOLE}$"),
    ),
    "sequence_length": (
        re.compile(rf"\bsequence length {_WHOLE},"), re.compile(rf"^ *seq_length \.{{3,}} {_WHOLE}$"),
    ),
    "tokens_per_step": (
        re.compile(rf"\btokens per iteration will be: {_WHOLE}"), re.compile(rf"\btotal_batch_size={_WHOLE}"),
        re.compile(rf"\btotal desired batch size: {_WHOLE}"),
    ),
    "devices": (re.compile(rf"^ *world_size \.{{3,}} {_WHOLE}$"), re.compile(rf"^using world size: {_WHOLE},")),
    "steps": (
        re.compile(rf"\btotal steps {_WHOLE} \("), re.compile(rf"\bTotal optimization steps *= *{_WHOLE}"),
        re.compile(rf"^ *train_iters \.{{3,}} {_WHOLE}$"),
    ),
}  # fmt: skip
_MESH = re.compile(
    r"\bBuilding (?:\d-D device mesh with \[.*?\], \[([\d, ]+)\]"
    # Experts are spread over devices that the others count already.
    r"|device mesh with parallelism: (pp=\d+, dp_replicate=\d+, dp_shard=\d+, cp=\d+(?:, tp=\d+)?))"
)
# One of these is in every line that tells a fact: most lines need no closer look.
_HINT = re.compile(r"batch|seq|tokens per|world|steps|iters|mesh")
# The same facts in JSON, by the names of MLPerf and NeMo.
_NAMES = {
    "global_batch_size": "global_batch", "max_sequence_length": "sequence_length", "seq_length": "sequence_length",
    "encoder_seq_length": "sequence_length",
}  # fmt: skip
_PEAKS = re.compile(rf"\bmax allocated: ({NUMBER})")
_CHECKPOINT = re.compile(
    r"\bsav(?:e|ed|es|ing)\b.{0,80}\bcheckpoint|\bcheckpoint\b.{0,60}\bsav(?:e|ed|ing)\b|\basynchronous save\b",
    re.IGNORECASE,
)
_EVALUATION = re.compile(
    r"\bvalidat(?:e|ing|ion)\b|\bevaluat(?:e|ing|ion)\b|\bval[_ ]loss\b|['\"]eval_\w+['\"]|\"eval_st(?:art|op)\"",
    re.IGNORECASE,
)
# What trainers and launchers say where a run begins again; they say it at other times as well.
_RESTART = re.compile(
    r"\bTraceback \(most recent call last\)|\b(?<!not )(?:re)?load(?:ed|ing)?\b.{0,60}\b(?:checkpoint|ckpt|snapshot)"
    r"|\brestor(?:ed|ing)\b.{0,60}\b(?:checkpoint|ckpt|snapshot|states?)\b"
    r"|\b(?:resum(?:ed|ing)|continuing)\b.{0,60}\b(?:from|at)\b"
    r"|\brestart(?:ed|ing)?\b.{0,20}\bworkers?\b|\brestart_count=[1-9]|\bclosing signal SIG|\bfailed \(exitcode"
    r"|\b(?:srun|slurmstepd): error\b",
    re.IGNORECASE,
)


def facts(text: str) -> dict[str, int]:
    """Fields of Told that a line tells."""
    if text.startswith((":::MLLOG", "DLLL")):
        told = json_facts(text)
        return {_NAMES[name]: int(value) for name, value in told.items() if name in _NAMES and value >= 1}
    found: dict[str, int] = {}
    if not _HINT.search(text):
        return found
    for field, patterns in _FACTS.items():
        for pattern in patterns:
            if match := pattern.search(text):
                found[field] = int(number(match[1]))
    if mesh := _MESH.search(text):
        found["devices"] = math.prod(int(size) for size in re.findall(r"\d{1,9}", mesh[1] or mesh[2]))
    return {field: value for field, value in found.items() if value >= 1}


def peaks(text: str) -> list[float]:
    """Bytes that a line tells of the most a rank has allocated; several ranks may share a line."""
    return [number(value) * 1024.0**2 for value in _PEAKS.findall(text)] if " memory (MB) |" in text else []


def is_restart(text: str) -> bool:
    """Whether it may tell of a restart; that there was one, only steps that go back tell."""
    return not _is_option(text) and bool(_RESTART.search(text))


def event(text: str) -> EventKind | None:
    if _is_option(text):
        return None
    if _CHECKPOINT.search(text):
        return "checkpoint"
    return "evaluation" if _EVALUATION.search(text) else None


def _is_option(text: str) -> bool:
    """A table of options is not something that happened."""
    return "...." in text


def told(values: Mapping[str, list[int]], took: tuple[float, int] | None) -> Told:
    """Only what is told in one way: a job that went on with another batch has no single one."""
    known = {field: found[0] for field, found in values.items() if len(set(found)) == 1}
    return Told(**known, took=took[0] if took else None, done=took[1] if took else None)


def contradictions(values: Mapping[str, list[int]]) -> Iterator[str]:
    for field, found in values.items():
        if len(set(found)) > 1:
            each = " and ".join(map(str, dict.fromkeys(found)))
            yield f"the log tells {field.replace('_', ' ')} {each}: it is of more than one regime, so none is taken"
