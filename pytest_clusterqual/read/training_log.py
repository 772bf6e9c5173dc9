"""The log of a training job, as its trainer printed it, whatever else stands in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_clusterqual.errors import NoStepsError, ReadError
from pytest_clusterqual.model.log import LogEvent, LoggedStep, Place, TrainingLog, Unread
from pytest_clusterqual.read import log_facts, log_pattern
from pytest_clusterqual.read.log_attempts import attempts
from pytest_clusterqual.read.log_bars import Bars
from pytest_clusterqual.read.log_families import Family, families, json_step
from pytest_clusterqual.read.log_lines import Line, head, joined, pieces
from pytest_clusterqual.read.log_streams import name_of
from pytest_clusterqual.read.messages import shown

OPTION = "--pattern"  # what a user gives a pattern with, where no key of the project file does
KNOWN = "torchtitan, Megatron-LM, NeMo, Lightning, Hugging Face Trainer, litgpt, nanoGPT and llm.c"
_NOTES = {
    "Lightning": (
        "the bar counts the batches of an epoch; where gradients are accumulated, a step is several of them",
    ),
    "progress bar": ("whether what the bar counts are optimizer steps, it does not say",),
}
_MOST_BYTES = 1024 * 1024 * 1024
_LONGEST_RAW = 4 * 1024 * 1024  # a progress bar writes hours on one line
_MOST_WRAPPED = 10
_MOST_SHAPES, _MOST_SHOWN = 2000, 20
_OTHERS = "lines of other shapes"


@dataclass(kw_only=True, slots=True)
class _Reading:
    """What is found as the lines go by. Once a family is recognized, no other is looked for."""

    own: log_pattern.Reader | None
    families: tuple[Family, ...] = field(default_factory=families)
    family: str = ""
    steps: list[LoggedStep] = field(default_factory=list)
    bars: Bars = field(default_factory=Bars)
    facts: dict[str, list[int]] = field(default_factory=dict)
    events: list[LogEvent] = field(default_factory=list)
    restarts: list[Place] = field(default_factory=list)
    memory: float | None = None
    lines: int = 0
    unread: dict[str, Unread] = field(default_factory=dict)
    # Of a line that may go on in the next: what it is so far, wrapped at a width or between words, and its parts.
    open: tuple[Line, ...] = ()
    parts: list[Line] = field(default_factory=list)

    def take(self, line: Line) -> None:
        self.lines += 1
        if self.open:
            self._go_on(line)
        elif self.own is None and self._is_begun(line):
            self.open, self.parts = (line, line), [line]
        else:
            self._single(line)

    def end(self) -> None:
        """No more lines of this file: what was begun stays as it is."""
        parts, self.open, self.parts = self.parts, (), []
        for part in parts:
            self._single(part)

    def _go_on(self, line: Line) -> None:
        if any(family.begins.search(head(line.text)) for family in self.families):  # the line before was cut off
            self.end()
            self.lines -= 1
            self.take(line)
            return
        self.open = tuple(joined(known, line, space) for known, space in zip(self.open, ("", " "), strict=True))
        self.parts.append(line)
        if any(self._step(candidate) for candidate in self.open):
            self.open, self.parts = (), []
        elif len(self.parts) > _MOST_WRAPPED:
            self.end()

    def _is_begun(self, line: Line) -> bool:
        text = head(line.text)
        return any(f.begins.search(text) and not f.whole.search(text) for f in self.families)

    def _step(self, line: Line) -> bool:
        """Whether it is a line of a step; a microbatch is one that ends none."""
        for family in self.families:
            if match := family.whole.search(head(line.text)):
                if step := family.read(match, line):
                    begun = family.begins.search(line.text, 0, match.start())
                    self.steps.append(replace(step, moment=line.moment_at(match.start(), begun and begun.start())))
                if not self.family:
                    self.family, self.families = family.name, tuple(f for f in self.families if f.name == family.name)
                return True
        return False

    def _single(self, line: Line) -> None:
        if self.own is not None:
            step = self.own(line)
        elif self._step(line):
            return
        elif step := json_step(line):
            self.family = self.family or "NeMo"
        if step is not None:
            self.steps.append(step)
        elif not self._beside(line):
            self._not_read(line)

    def _beside(self, line: Line) -> bool:
        """Whether it tells of the job as a whole, of an event, or is a progress bar."""
        left = self.bars.take(line, line.text)
        text, known = head(line.text if left is None else left), left is not None
        for name, value in log_facts.facts(text).items():
            self.facts.setdefault(name, []).append(value)
            known = True
        if peaks := log_facts.peaks(text):
            self.memory, known = max([*peaks, self.memory or 0.0]), True
        if kind := log_facts.event(text):
            self.events.append(LogEvent(kind=kind, place=line.place))
            known = True
        if log_facts.is_restart(text):  # shown among what is not read: why it was is in there
            self.restarts.append(line.place)
        return known

    def _not_read(self, line: Line) -> None:
        example = line.text.strip()[:200]
        shape = re.sub(r"\d+", "0", example)[:60]
        if shape not in self.unread and len(self.unread) >= _MOST_SHAPES:
            shape = example = _OTHERS
        seen = self.unread.get(shape)
        self.unread[shape] = (
            replace(seen, count=seen.count + 1) if seen else Unread(place=line.place, example=example, count=1)
        )


def read_training_log(
    files: Sequence[Path], pattern: str | None = None, *, key: str = OPTION, one_rank: bool = False
) -> TrainingLog:
    """The log of one run, from one file or several: what came after a restart, or one of each rank.

    With `pattern`, a regular expression with named groups, no other line is taken for a step. `key` is the option or
    the key of the project file that it stands behind, or would. `one_rank` says that no other rank prints into a file.

    Raises:
        ReadError: a file cannot be read, no line tells of a step, or `pattern` is none that can be used; `one_rank`
            tells of a step in several ways.
    """
    reading = _read(files, log_pattern.reader(pattern, key) if pattern else None)
    if pattern and not reading.steps:  # lines may begin with a number of their own
        bare = _read(files, log_pattern.reader(pattern, key), numbered=True)
        reading = bare if bare.steps else reading
    planned = reading.facts.get("steps", [None])[-1]
    steps, family = reading.steps, key if pattern else reading.family
    if not steps and not pattern:
        steps, family = reading.bars.steps(planned), reading.bars.family
    if not any(step.over for step in steps):
        raise NoStepsError(_no_steps(files, reading, pattern, key))
    if (tokens := reading.bars.tokens_per_step(planned)) is not None:
        reading.facts.setdefault("tokens_per_step", [round(tokens)])
    told = log_facts.told(reading.facts, reading.bars.took(planned))
    peaks = [step.memory for step in steps if step.memory is not None]
    found = attempts(
        list(_counted(steps, told.global_batch, told.sequence_length)), reading.restarts, one_rank=one_rank
    )
    return TrainingLog(
        family=family, files=tuple(map(str, files)), told=told, events=tuple(reading.events), lines=reading.lines,
        attempts=found.steps,
        memory=max(peaks if reading.memory is None else [*peaks, reading.memory], default=None),
        unread=_commonest(reading.unread.values()),
        notes=(
            *log_facts.contradictions(reading.facts), *found.doubts, *_of_parts(found.steps, steps),
            *_NOTES.get(family, ()),
        ),
    )  # fmt: skip


def _read(files: Sequence[Path], own: log_pattern.Reader | None, *, numbered: bool = False) -> _Reading:
    reading = _Reading(own=own)
    for file in files:
        for line in _lines(file, numbered=numbered):
            reading.take(line)
        reading.end()
    return reading


def _of_parts(attempts: Sequence[Sequence[LoggedStep]], lines: Sequence[LoggedStep]) -> Iterator[str]:
    """What several lines about each step are, if no rank stands in them."""
    if len({name_of(line) for line in lines}) > 1:
        return
    copies, _count = Counter(step.copies for attempt in attempts for step in attempt).most_common(1)[0]
    if copies:
        yield (
            f"{copies + 1} lines tell of each step and not which rank printed them: the largest time counts, as of "
            f"{copies + 1} ranks; if each is a part of a step, such as a microbatch, a step takes their sum"
        )


def _commonest(unread: Iterable[Unread]) -> tuple[Unread, ...]:
    """By falling count; all shapes beyond the first are counted together."""
    ordered = sorted(unread, key=lambda each: -each.count)
    first, rest = ordered[:_MOST_SHOWN], ordered[_MOST_SHOWN:]
    if rest:
        first.append(replace(rest[0], example=_OTHERS, count=sum(each.count for each in rest)))
    return tuple(first)


def _lines(file: Path, *, numbered: bool) -> Iterator[Line]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ReadError(f"{file}: got {file.stat().st_size} bytes, at most {_MOST_BYTES} are read; cut it")
        with file.open(encoding="utf-8", errors="replace", newline="\n") as text:
            number, begun = 1, ""
            while raw := text.readline(_LONGEST_RAW):
                if number == 1 and "\0" in raw:
                    raise ReadError(f"{file}: got binary data, want the text that a trainer prints")
                raw, begun = begun + raw, ""
                ends = raw.endswith("\n")
                if not ends and "\r" in raw:  # what the next part goes on with
                    raw, _, begun = raw.rpartition("\r")
                yield from pieces(raw.rstrip("\n"), Place(file=str(file), line=number), numbered=numbered)
                number += ends
            yield from pieces(begun, Place(file=str(file), line=number), numbered=numbered)
    except OSError as error:
        raise ReadError(f"{file}: cannot be read: {error.strerror}") from None


def _counted(
    steps: Sequence[LoggedStep], global_batch: int | None, sequence_length: int | None
) -> Iterator[LoggedStep]:
    """MLPerf counts samples or tokens where others count steps."""
    a_step = next(
        (size for size in ((global_batch or 0) * (sequence_length or 0), global_batch or 0)
         if size > 1 and all(step.step % size == 0 and step.step for step in steps)), 1,
    )  # fmt: skip
    for step in steps:
        yield replace(step, step=step.step // a_step)


def _no_steps(files: Sequence[Path], reading: _Reading, pattern: str | None, key: str) -> str:
    names = ", ".join(map(str, files))
    if pattern:
        return f"{names}: {key} {shown(pattern)} is found in none of {reading.lines} lines"
    if reading.bars.entries:
        return (
            f"{names}: the lines of Hugging Face's Trainer name no step without its progress bar; want the log of a "
            f"run with disable_tqdm=False, or {key} with a group step for a line of your own"
        )
    return (
        f"{names}: no line of {reading.lines} tells of a step in the form of {KNOWN}. Those print one every so many "
        f"steps, some from the last rank only: want a log in which it is; lines of another form are told by {key}"
        r"{} 'step (?P<step>\d+) .* (?P<seconds>[\d.]+)s'".format("" if key == OPTION else ":")
    )
