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
    """Node -> its survey; a node that does not answer within `timeout` seconds has a `problem` instead."""
    source = _PROGRAM.read_bytes()
    program = [launcher.python, "-c", _RECEIVE, "clock"]
    first = b"%d\n%s" % (len(source), source)
    dialogues = {node.name: Dialogue(launcher.command(node, program), first) for node in nodes}
    deadline = time.monotonic() + timeout
    try:
        return {name: _listen(launcher, dialogue, deadline, timeout) for name, dialogue in dialogues.items()}
    finally:
        for dialogue in dialogues.values():
            dialogue.end()


def _listen(launcher: Launcher, dialogue: Dialogue, deadline: float, timeout: float) -> Survey:
    text = dialogue.line(deadline)
    while text is not None and not text.startswith("{"):
        text = dialogue.line(deadline)  # a login banner, say
    if text is None:
        late = time.monotonic() > deadline
        _code, complained = dialogue.end()
        last = complained.strip().splitlines()[-1:] or ["it ended without a word"]
        return Survey(problem=launcher.explain(complained) or (f"no answer within {timeout:g} s" if late else last[0]))
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
