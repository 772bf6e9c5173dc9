"""The section `workload` of a project file whose job is a command of the user's own, and what goes with it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.command import LINE, RESTARTS, STEPS, WORDS, CommandJob
from pytest_clusterqual.model.full_run import FailureKind
from pytest_clusterqual.read.checks import NOTHING_LEFT
from pytest_clusterqual.read.fields import Fault, Identifier, Name, Positive, Seconds, Section
from pytest_clusterqual.read.log_pattern import reader
from pytest_clusterqual.read.messages import shown
from pytest_clusterqual.read.purchase import PurchaseSection
from pytest_clusterqual.read.schema import (
    FabricSection,
    FullRunSection,
    LauncherSection,
    MemorySection,
    ScalingSection,
)

# What can be done to a process that knows nothing of it.
_FROM_OUTSIDE: tuple[FailureKind, ...] = ("kill_rank", "hang_rank", "kill_node", "sigterm")
_PLACEHOLDER = re.compile(r"\{\w+\}")
_OWN = {"{step}", "{rank}", "{node}"}  # in names that the script itself fills, as others that are like none of ours


def _word(value: object) -> object:
    """A number that stands in a command is a word of it."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_word)]


class LogSection(Section):
    """How the output of the rank that logs is read: as a known trainer prints it, or by a pattern."""

    pattern: Name | None = None

    def faults(self) -> Iterator[Fault]:
        if self.pattern is None:
            return
        try:
            reader(self.pattern)
        except ReadError as error:
            yield ("pattern",), str(error).removeprefix("--pattern: ")


class CommandSection(Section):
    command: list[Text] = Field(min_length=1)
    name: Identifier = "own"
    environment: dict[str, Text] = Field(default_factory=dict)
    folder: Name = "."
    steps: Positive | None = None
    tokens_per_step: Positive | None = None
    sequences_per_step: Positive | None = None
    launcher_line: list[Text] = Field(default_factory=list)
    log: LogSection | None = None
    time_limit: Seconds | None = None

    def faults(self) -> Iterator[Fault]:
        first, *rest = self.command
        if first != "-m" and not first.endswith(".py"):
            yield ("command", 0), f"got {shown(first)}, want a Python script such as train.py, or -m and a module"
        elif first == "-m" and not rest:
            yield ("command",), "got -m alone, want the name of a module after it"
        yield from self._misspelt()
        for index, word in enumerate(self.launcher_line):
            for unknown in set(_PLACEHOLDER.findall(word)) - set(LINE):
                yield ("launcher_line", index), f"got {unknown}, want one of {', '.join(LINE)}"
        if self.takes_steps and self.steps is None:
            yield ("steps",), f"the command has {STEPS} in it, want the number of steps of the fixed work"
        for name in self.environment:
            if not name.isidentifier() or name.startswith("CLUSTERQUAL_"):
                yield ("environment", name), "want a name of letters, digits and _, and none that is CLUSTERQUAL_..."

    def _misspelt(self) -> Iterator[Fault]:
        texts: dict[tuple[str | int, ...], str] = {("command", index): word for index, word in enumerate(self.command)}
        texts |= {("environment", name): text for name, text in self.environment.items()}
        for place, text in texts.items():
            for unknown in set(_PLACEHOLDER.findall(text)) - set(WORDS) - _OWN:
                if meant := difflib.get_close_matches(unknown, WORDS, n=1, cutoff=0.7):
                    yield place, f"got {unknown}, want {meant[0]}; placeholders are {', '.join(WORDS)}"

    def job(self, folder: Path) -> CommandJob:
        """The words; `folder` is that of the project file."""
        return CommandJob(
            name=self.name, words=tuple(self.command), environment=self.environment,
            folder=os.path.abspath(folder / self.folder), steps=self.steps, tokens_per_step=self.tokens_per_step,
            sequences_per_step=self.sequences_per_step, launcher_line=tuple(self.launcher_line),
            log=self.log is not None, pattern=self.log.pattern if self.log else None, time_limit=self.time_limit,
        )  # fmt: skip

    @property
    def takes_steps(self) -> bool:
        return any(STEPS in word for word in (*self.command, *self.environment.values()))


def script_there(section: CommandSection, folder: Path) -> Iterator[Fault]:
    """The folder and the script are there; `folder` is that of the project file."""
    home = folder / section.folder
    if not home.is_dir():
        yield ("workload", "folder"), f"got {shown(section.folder)}, want a folder that exists beside the project file"
    elif section.command[0] != "-m" and not (home / section.command[0]).is_file():
        yield ("workload", "command", 0), f"got {shown(section.command[0])}, want a script that exists in {home}"


def not_asked(
    section: CommandSection,
    *,
    launcher: LauncherSection | None,
    memory: MemorySection | None,
    fabric: FabricSection | None,
    scaling: ScalingSection | None,
    full_run: FullRunSection | None,
    purchase: PurchaseSection | None,
) -> Iterator[Fault]:
    """What the file asks of a job that only a job of known shape, run by this package's own loop, can answer."""
    if launcher and launcher.rank_map != "block":
        yield ("launcher", "rank_map"), "torchrun itself seats the ranks of a command, want block"
    if memory:
        if memory.ladder:
            yield ("memory", "ladder"), "got true: a command can be cut in no other way than its own, want false"
        yield from _steps(section, ("memory", "steps"), "steps" in memory.model_fields_set)
    if fabric:
        if fabric.collectives is None:
            text = "which collectives a command calls is not known, want a list such as [all_reduce, all_gather]"
            yield ("fabric", "collectives"), text
        if fabric.synchronization:
            yield ("fabric", "synchronization"), "a command's step is seen from outside only, want no layouts here"
    if scaling and scaling.rank_maps:
        yield ("scaling", "rank_maps"), "torchrun itself seats the ranks of a command, want no rank maps"
    if full_run:
        yield from _full_run(section, full_run)
    if purchase and purchase.training:
        yield ("purchase", "training"), "the shape of a command's model is not known, want false"


def _full_run(section: CommandSection, full_run: FullRunSection) -> Iterator[Fault]:
    given = full_run.model_fields_set
    restarted = any(failure.kind in ("kill_rank", "hang_rank") for failure in full_run.failure or [])
    if restarted and section.launcher_line and not any(RESTARTS in word for word in section.launcher_line):
        text = f"nobody would start the ranks again: want {RESTARTS} in it, such as --max-restarts={RESTARTS}"
        yield ("workload", "launcher_line"), text
    if "checkpoint" in given:
        yield ("full_run", "checkpoint"), "a command saves by itself, as its own words say; want no such key"
    if full_run.minutes:
        yield ("full_run", "minutes"), "how long a command trains is in its own words, want steps or no such key"
    yield from _steps(section, ("full_run", "steps"), "steps" in given)
    for index, failure in enumerate(full_run.failure or []):
        where = ("full_run", "failure", index)
        if failure.kind not in _FROM_OUTSIDE:
            text = f"this is done by a job from inside itself; to a command can be done {', '.join(_FROM_OUTSIDE)}"
            yield (*where, failure.kind), text
        elif (steps := full_run.steps or section.steps) and failure.at_step > steps:
            text = f"want at most the {steps} steps of the run, else nothing ever fails"
            yield (*where, "at_step"), f"got {failure.at_step}, {text}"
        elif steps and failure.kind == "sigterm" and failure.at_step == steps:
            yield (*where, "at_step"), f"got {failure.at_step}, want at most {steps - 1}, or more steps: {NOTHING_LEFT}"
        elif failure.at_step < 2:
            yield (*where, "at_step"), "got 1, want 2 or more: a command is hurt once the step before is done"
        elif section.log:
            yield (*where, failure.kind), "from a log alone nobody knows the moment, want the probe and no workload.log"


def _steps(section: CommandSection, where: tuple[Literal["memory", "full_run"], str], given: bool) -> Iterator[Fault]:
    if given and not section.takes_steps:
        yield where, f"the command takes no number of steps, want {STEPS} among its words, or no such key"


def is_command(workload: Any) -> bool:
    """Whether the section `workload` is one of a command."""
    return isinstance(workload, dict) and "command" in workload
