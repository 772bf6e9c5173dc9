"""The pages piece by piece: their blocks, and which lines of them a reader would type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]

_SHELLS = ("bash", "console", "sh")
_INLINE = re.compile(r"`((?:pytest|clusterqual|make|python|sbatch) [^`]+)`")
_PIPELINES, _STEP = "docs/ci.md", re.compile(r"\b(?:pytest|clusterqual) [^'\n]+")
_ASSIGNED = re.compile(r"[A-Z_]+=\S*")
# How blocks begin that are indented and hold no commands.
_NO_COMMANDS = ("w/M x exp(", "note ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A part of a page that is shown as it is; its language is empty where it is only indented."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A line that a reader would type, or one of a `script`; `shown` only in the middle of a sentence."""

    page: str
    line: int
    text: str
    shown: bool = False
    script: bool = False

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def words(self) -> list[str]:
        """Without assignments in front of it, its comment, where its output goes, and what is left to the reader."""
        typed = re.sub(r"(?<=/)<\w+>", "RUN", self.text).partition(" > ")[0].partition(" >> ")[0]
        try:
            words = [word for word in shlex.split(typed, comments=True) if word not in ("exec", "...", "&")]
        except ValueError:  # a sentence with an apostrophe
            return typed.split()
        while words and _ASSIGNED.fullmatch(words[0]):
            words.pop(0)
        return words

    @property
    def program(self) -> str:
        return self.words[0] if self.words else ""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str | None = None) -> list[Block]:
    """All blocks of a page in their order, or those in one language."""
    return [block for block in _blocks(page) if language in (None, block.language)]


def commands(page: str) -> list[Command]:
    """All commands of a page: indented, in shell blocks, after a prompt, in pipelines of CI servers, in sentences."""
    return [*_typed(page), *_in_sentences(page)]


def _blocks(page: str) -> Iterator[Block]:
    language, began, held, api = "", 0, list[str](), False
    for number, line in enumerate([*text_of(page).splitlines(), ""], 1):
        fence = re.fullmatch(r"```(\w*)", line)
        api = line.startswith("::: ") or (api and line.startswith("    "))  # what follows are mkdocstrings' options
        if fence and language:
            yield Block(page=page, line=began, language=language, text="".join(f"{each}\n" for each in held))
            language, held = "", []
        elif fence:
            language, began = fence[1] or "text", number + 1
        elif language:
            held.append(line)
        elif line.startswith("    ") and not api:
            began, held = began if held else number, [*held, line[4:]]
        elif held:
            yield Block(page=page, line=began, language="", text="".join(f"{each}\n" for each in held))
            held = []


def _typed(page: str) -> Iterator[Command]:
    for block in _blocks(page):
        if not block.language and block.text.startswith(_NO_COMMANDS):
            continue
        script = block.text.startswith("#!")
        for number, line in enumerate(block.text.splitlines(), block.line):
            step = _STEP.search(line) if page == _PIPELINES and block.language in ("yaml", "groovy") else None
            text = step[0] if step else line.removeprefix("$ ").strip()
            command = Command(page=page, line=number, text=text, script=script)
            typed = step or line.startswith("$ ") or block.language in ("", *_SHELLS)
            if typed and command.program and (not script or command.program in ("pytest", "clusterqual")):
                yield command


def _in_sentences(page: str) -> Iterator[Command]:
    blocked = {n for block in _blocks(page) for n in range(block.line, block.line + block.text.count("\n"))}
    for number, line in enumerate(text_of(page).splitlines(), 1):
        for found in _INLINE.findall(line) if number not in blocked else ():
            yield Command(page=page, line=number, text=found, shown=True)
