"""Progress bars of tqdm as a log of steps, and the dictionaries that Hugging Face's Trainer prints between them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_clusterqual.model.log import LoggedStep, Moment
from pytest_clusterqual.read.log_lines import NUMBER, Line, number

# Of a bar the part behind its name, which is what stands before. Every repeat is bounded or ends at what follows it.
_BAR = re.compile(
    r"\b\d{1,3}%\|[^|]{0,1000}\| {0,20}(?P<done>\d{1,12})/(?P<all>\d{1,12}) "
    r"\[(?P<elapsed>(?:\d{1,6}:)?\d{1,6}:\d\d)<[\d:?]{1,20}(?P<rest>[^\]]{0,1000})\]"
)
_NO_NAME = re.compile(r"[|%{}\]]")
_LONGEST_NAME = 200
_RATE = re.compile(r"^, +(?P<rate>\d{1,9}(?:\.\d{0,9})?) ?(?:(?P<per_second>[a-z]+/s)|s/[a-z]+)")
_OF_BYTES = re.compile(r"^, +[\d.?]{1,20}(?: ?[kKMGT]?i?B/s|s/[kKMGT]?i?B)\b")  # a download is no training
_EPOCH = re.compile(r"\b[Ee]poch *(\d{1,9})\b")
_DICTIONARY = re.compile(r"\{['\"][\w/]+['\"]: [^{}]*\}")
_ENTRY = re.compile(rf"['\"]([\w/]+)['\"]: *['\"]?({NUMBER})\b")
_TIMING = re.compile(rf"\btrain_step_timing in s=({NUMBER})")
_LOSS = re.compile(rf"\b(?:reduced_)?(?:train_)?loss=({NUMBER})")
_OF_TRAINING = {"loss", "train_loss", "train_runtime"}
# A bar that begins in the middle of a resumed run has done so many steps at once that they are none of its own.
_JUMP = 5
_TICK = 1.0  # of the clock of a bar, in seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bar:
    line: Line
    name: str
    done: int
    all: int
    elapsed: float
    seconds_shown: float | None
    rest: str

    @property
    def kind(self) -> tuple[str, int]:
        return _EPOCH.sub("epoch", self.name), self.all


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """Numbers of one dictionary, and how many bars were drawn before it."""

    numbers: dict[str, float]
    bars: int


@dataclass(kw_only=True, slots=True)
class Bars:
    """All bars and dictionaries of a log, to be sorted when it is read: only then it is clear which bar counts."""

    drawn: list[_Bar] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)

    def take(self, line: Line, text: str) -> str | None:
        """What is left of the `text` of a line without its bars and dictionaries; None if there is none."""
        bars = [(match, None) for match in _BAR.finditer(text)] if "%|" in text else []
        told = _dictionaries(text) if "{" in text else []
        left, end = "", 0
        for match, numbers in sorted([*bars, *told], key=lambda each: each[0].start()):
            before = text[end : match.start()]
            if match.start() < end:
                continue
            if numbers is None:
                name = _NO_NAME.split(before[-_LONGEST_NAME:])[-1]
                if not _OF_BYTES.match(match["rest"]):
                    self.drawn.append(_bar(line, match, name.strip(" :")))
                before = before[: len(before) - len(name)]
            else:
                self.entries.append(_Entry(numbers=numbers, bars=len(self.drawn)))
            left, end = f"{left}{before} ", match.end()
        return left + text[end:] if end else None

    def steps(self, planned: int | None) -> list[LoggedStep]:
        """What the training bar counts, with the losses of the dictionaries behind it."""
        kind = self._training(planned)
        found: list[LoggedStep] = []
        losses = {entry.bars - 1: entry.numbers["loss"] for entry in self.entries if "loss" in entry.numbers}
        loss: float | None = None
        for place in reversed(range(len(self.drawn))):
            loss = losses.get(place, loss)
            bar = self.drawn[place]
            if bar.kind == kind:
                found.append(_step(bar, loss))
                loss = None
        return _own_steps(found[::-1])

    def took(self, planned: int | None) -> tuple[float, int] | None:
        """Seconds and steps of the whole by the log's own account: its last dictionary, or a bar that began at 0."""
        seconds = max((e.numbers["train_runtime"] for e in self.entries if "train_runtime" in e.numbers), default=None)
        kind = self._training(planned)
        mine = [bar for bar in self.drawn if bar.kind == kind and bar.done]
        if not mine or _EPOCH.search(mine[-1].name):
            return None
        last = max(mine, key=lambda bar: (bar.done, bar.elapsed))
        whole = last.elapsed if seconds is None else seconds
        # A bar that began in the middle has counted steps that took no time of it.
        began = bool(last.seconds_shown) and 0.5 < whole / last.done / (last.seconds_shown or 1.0) < 2
        return (whole, last.done) if began else None

    def tokens_per_step(self, planned: int | None) -> float | None:
        """From the tokens seen that dictionaries tell, at two of the steps they are printed behind."""
        kind, seen = self._training(planned), []
        for entry in self.entries:
            before = next((bar for bar in reversed(self.drawn[: entry.bars]) if bar.kind == kind), None)
            tokens = entry.numbers.get("num_input_tokens_seen", entry.numbers.get("num_tokens"))
            if before is not None and tokens:
                seen.append((before.done, tokens))
        if not seen or seen[-1][0] <= seen[0][0]:
            return None
        tokens_per_step = (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
        return tokens_per_step if 1 <= tokens_per_step < 1e15 else None

    @property
    def family(self) -> str:
        if self.entries:
            return "Hugging Face Trainer"
        return "Lightning" if any(_EPOCH.search(bar.name) for bar in self.drawn) else "progress bar"

    def _training(self, planned: int | None) -> tuple[str, int] | None:
        """The bar of the planned steps, of an epoch, or else the one that ran longest: others run inside it."""
        kinds: dict[tuple[str, int], float] = {}
        for bar in self.drawn:
            kinds[bar.kind] = max(kinds.get(bar.kind, 0.0), bar.elapsed)
        return max(
            kinds,
            key=lambda kind: (kind[1] == planned and not kind[0], "epoch" in kind[0].lower(), kinds[kind]),
            default=None,
        )


def _dictionaries(text: str) -> list[tuple[re.Match[str], dict[str, float]]]:
    """Those that are about training, with their numbers."""
    found = [
        (match, {name: number(value) for name, value in _ENTRY.findall(match[0])})
        for match in _DICTIONARY.finditer(text)
    ]
    return [(match, numbers) for match, numbers in found if numbers.keys() & _OF_TRAINING]


def _bar(line: Line, match: re.Match[str], name: str) -> _Bar:
    rate = _RATE.match(match["rest"])
    shown = number(rate["rate"]) if rate else 0.0
    return _Bar(
        line=line, name=name, done=int(match["done"]), all=int(match["all"]),
        elapsed=_clock(match["elapsed"]), rest=match["rest"],
        seconds_shown=(1 / shown if rate and rate["per_second"] else shown) if shown else None,
    )  # fmt: skip


def _clock(text: str) -> float:
    seconds = 0.0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds


def _step(bar: _Bar, loss: float | None) -> LoggedStep:
    epoch = _EPOCH.search(bar.name)
    first = int(epoch[1]) * bar.all if epoch else 0
    told, own = _TIMING.search(bar.rest), _LOSS.search(bar.rest)
    return LoggedStep(
        place=bar.line.place, step=first + bar.done, over=1 if bar.done else 0, printer=bar.line.printer,
        seconds=number(told[1]) if told else None, loss=number(own[1]) if own else loss,
        moment=Moment(clock=f"bar {bar.name}", at=bar.elapsed, tick=_TICK),
    )  # fmt: skip


def _own_steps(steps: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Without the beginning of a bar that jumped to where an earlier run had ended; that is where its steps began."""
    rising = [(a, b) for a, b in itertools.pairwise(steps) if a.over and a.step < b.step]
    usual = sorted(b.step - a.step for a, b in rising)
    most = _JUMP * usual[len(usual) // 2] if usual else None
    each = sorted((_elapsed(b) - _elapsed(a)) / (b.step - a.step) for a, b in rising if _elapsed(a) <= _elapsed(b))
    seconds = each[len(each) // 2] if each else 0.0
    return [
        replace(step, over=0) if _is_start(step, before, seconds) else step
        for before, step, following in zip([None, *steps], steps, [*steps[1:], None], strict=False)
        if not (step.over == 0 and most and following and following.step - step.step > most)
    ]


def _is_start(step: LoggedStep, before: LoggedStep | None, seconds: float) -> bool:
    """Whether a new bar begins with a count of steps that it cannot have done, of `seconds` each, so soon."""
    same = before is not None and _elapsed(before) <= _elapsed(step)
    if before is not None and before.over and same:
        return False
    counted = step.step - (before.step if before is not None and same else 0)
    return _elapsed(step) < seconds / 2 and _elapsed(step) + _TICK < counted * seconds


def _elapsed(step: LoggedStep) -> float:
    return step.moment.at if step.moment else 0.0
