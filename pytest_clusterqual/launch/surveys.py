"""Asking every node what it has and what its clock says, all side by side.

The program travels through the node's standard input: it needs nothing there but a Python.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_clusterqual.launch.plan import Launcher, NodePlan
from pytest_clusterqual.launch.process import Dialogue

_PROGRAM = Path(__file__).with_name("survey.py")
_RECEIVE = (
    "import sys; source = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())); "
    "exec(compile(source, 'survey', 'exec'), {'__name__': '__main__'})"
)
_CLOCK_LOOKS = 7
_AT_ONCE = 256  # commands of three descriptors each: below the usual limit of 1024, and what a login host can start
_PAUSE = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What a node answered: `text` as it came, or `problem`.

    `clock_offset` is the seconds its clock is ahead of ours, known to +- `clock_error`.
    """

    text: str = ""
    problem: str = ""
    clock_offset: float | None = None
    clock_error: float = 0.0


def survey(launcher: Launcher, nodes: Sequence[NodePlan], *, timeout: float) -> dict[str, Survey]:
    """Node -> its survey; a node that does not answer within `timeout` seconds has a `problem` instead.

    More than 256 nodes are asked in turns, each with that time.
    """
    answers: dict[str, Survey] = {}
    for first in range(0, len(nodes), _AT_ONCE):
        answers |= _side_by_side(launcher, nodes[first : first + _AT_ONCE], timeout)
    return answers


def _side_by_side(launcher: Launcher, nodes: Sequence[NodePlan], timeout: float) -> dict[str, Survey]:
    source = _PROGRAM.read_bytes()
    program = [launcher.python, "-c", _RECEIVE, "clock"]
    first = b"%d\n%s" % (len(source), source)
    dialogues: dict[str, Dialogue] = {}
    answers: dict[str, Survey | None] = {node.name: None for node in nodes}
    deadline = time.monotonic() + timeout
    try:
        for node in nodes:
            dialogues[node.name] = Dialogue(launcher.command(node, program), first)
        # All in turn and nobody for long: one that hangs must not keep back, nor crowd out, what others say.
        while waiting := [name for name, answer in answers.items() if answer is None]:
            late = time.monotonic() > deadline
            for name in waiting:
                answers[name] = _look(launcher, dialogues[name], late=late, timeout=timeout)
            time.sleep(_PAUSE)
    finally:
        for dialogue in dialogues.values():
            dialogue.end()
    return {name: answer for name, answer in answers.items() if answer is not None}


def _look(launcher: Launcher, dialogue: Dialogue, *, late: bool, timeout: float) -> Survey | None:
    """The survey of one node if its line is there, a problem if none will come any more, else None."""
    over = dialogue.over
    text = dialogue.line(0.0)
    while text is not None and not text.startswith("{"):
        text = dialogue.line(0.0)  # a login banner, say
    if text is not None:
        return _with_clock(text, dialogue)
    if not over and not late:
        return None
    _code, complained = dialogue.end()
    last = complained.strip().splitlines()[-1:] or ["it ended without a word"]
    silence = f"no answer within {timeout:g} s: it hangs or is overloaded, or needs longer (--timeout, survey_timeout)"
    return Survey(problem=launcher.explain(complained) or (last[0] if over else silence))


def _with_clock(text: str, dialogue: Dialogue) -> Survey:
    looks = []
    for _ in range(_CLOCK_LOOKS):
        sent = time.time()
        dialogue.send(b"?\n")
        answer = dialogue.line(time.monotonic() + 2.0)
        if answer is None:
            break
        received = time.time()
        looks.append(((received - sent) / 2, _time_in(answer) - (sent + received) / 2))
    error, offset = min(looks, default=(0.0, None))  # the fastest round trip says it best
    return Survey(text=text, clock_offset=offset, clock_error=error)


def _time_in(answer: str) -> float:
    import json

    return float(json.loads(answer)["time"])
