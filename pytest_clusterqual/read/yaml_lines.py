"""YAML as plain values, with the line of every key.

Only what a project file needs: mappings with text keys, lists, text, whole and decimal numbers,
true, false and null. Anchors, aliases and tags are refused, so a small file cannot expand into a
large one and nothing is ever constructed. ``yes``, ``1:30`` and dates stay text, ``3e-4`` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Where = tuple[str | int, ...]
MAX_DEPTH = 16
_CORE = "tag:yaml.org,2002:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something wrong at a place of the file; `where` is the path of keys and list positions."""

    line: int
    where: Where
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """`value` is None and `readable` false where the text is not plain YAML; `problems` says why."""

    value: Any = None
    readable: bool = True
    lines: dict[Where, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def line(self, where: Where) -> int:
        """The line, from 1, of the key at `where`, or of the nearest key above that is written."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        self.refused: list[Problem] = []
        self.depth = 0
        super().__init__(text)

    def compose_node(self, parent: Any, index: Any) -> Any:
        events: Any = self
        event: Any = events.peek_event()
        start, end = event.start_mark, event.end_mark
        if isinstance(event, yaml.AliasEvent):
            events.get_event()
            self._refuse(event, f"got the alias *{event.anchor}, want the value itself: aliases are not read here")
            return yaml.ScalarNode(f"{_CORE}null", "", start, end)
        if event.anchor is not None:
            self._refuse(event, f"got the anchor &{event.anchor}, want none: anchors are not read here")
            event.anchor = None
        if event.tag is not None:
            self._refuse(event, f"got the tag {event.tag}, want a plain value: tags are not read here")
            event.tag = None
        if self.depth == MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _refuse(self, event: Any, text: str) -> None:
        self.refused.append(Problem(line=event.start_mark.line + 1, where=(), text=text))


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's: `no` and 1:30 are not values here
# At most 18 digits: such a number is exact everywhere, and a longer one is a mistake that stays text.
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]{1,18}", list("-+0123456789")),
    ("float", r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][-+]?[0-9]{1,3})?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(_CORE + _name, re.compile(rf"(?:{_pattern})\Z"), _first)


def read_document(text: str) -> Document:
    """Read one YAML document. Never raises: what is wrong with it is in `problems`."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        return Document(readable=False, problems=(_syntax_problem(error, text),))
    except (ValueError, OverflowError):  # an escape such as "\UFFFFFFFF" names no character
        line = loader.line + 1 if loader else 1
        problem = Problem(line=line, where=(), text=r"not YAML: an escape such as \U names no character")
        return Document(readable=False, problems=(problem,))
    if loader.refused:
        return Document(readable=False, problems=tuple(loader.refused))
    lines: dict[Where, int] = {}
    problems: list[Problem] = []
    value = None if node is None else _plain(node, (), lines, problems)
    return Document(value=value, lines=lines, problems=tuple(problems))


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return Problem(line=mark.line + 1 if mark else 1, where=(), text=f"not YAML: {what}")
    position = getattr(error, "position", 0)
    where = f"not YAML: character {text[position : position + 1]!a} is not allowed"
    return Problem(line=text.count("\n", 0, position) + 1, where=(), text=where)


def _plain(node: yaml.Node, where: Where, lines: dict[Where, int], problems: list[Problem]) -> Any:
    lines.setdefault(where, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*where, index), lines, problems) for index, item in enumerate(node.value)]
    return dict(_entries(node, where, lines, problems))


def _entries(
    node: yaml.Node, where: Where, lines: dict[Where, int], problems: list[Problem]
) -> Iterator[tuple[str, Any]]:
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            kind = getattr(key_node, "value", "") if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
            problems.append(Problem(line=line, where=where, text=f"got {kind or 'null'} as a key, want a name"))
            continue
        here = (*where, key)
        if here in lines:
            text = f"the key is written twice, first in line {lines[here]}; want it once"
            problems.append(Problem(line=line, where=here, text=text))
            continue
        lines[here] = line
        yield key, _plain(value_node, here, lines, problems)


def _scalar(node: yaml.ScalarNode) -> Any:
    kind, text = node.tag.removeprefix(_CORE), node.value
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return {"int": int, "float": float}.get(kind, str)(text)
