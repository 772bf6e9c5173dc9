"""The house of docs/architecture.md: imports go down only, and each room has its own third parties."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "pytest_clusterqual"

WORDS = frozenset({"", "model", "units", "errors"})  # "" is the package itself, which holds its version
ROOMS = frozenset({"read", "launch", "rank", "judge", "report", "folder", "channel", "probe", "own"})
BELOW_SESSION = WORDS | ROOMS - {"rank"}
BELOW_DOORS = BELOW_SESSION | {"session", "measure", "recorded", "options"}
# The two doors, and the rooms behind them, which are loaded only when a qualification test or a command is asked for.
PYTEST = frozenset({"plugin", "fixtures", "qualify", "run"})
COMMAND = frozenset({"cli", "commands"})
MAY_IMPORT: dict[str, frozenset[str]] = {
    **dict.fromkeys(WORDS | ROOMS, WORDS),
    "rank": WORDS | {"channel", "probe", "own"},
    "probe": frozenset({"", "errors"}),  # it is imported by scripts that know nothing of the rest
    "own": frozenset({""}),  # and this one by a factory
    "session": BELOW_SESSION,
    "measure": BELOW_SESSION | {"session"},
    "recorded": BELOW_SESSION,
    "options": WORDS,
    **dict.fromkeys(PYTEST, BELOW_DOORS | PYTEST),
    **dict.fromkeys(COMMAND, BELOW_DOORS | {"commands"}),
}
# Of a room, or of one module of it.
THIRD_PARTY: dict[str, set[str]] = {
    "read": {"yaml", "pydantic", "pydantic_core", "ClusterShell", "msgspec", "numpy"},
    "rank": {"torch", "numpy"},
    "judge": {"numpy", "scipy"},
    "report": {"rich", "junitparser"},
    **{door: {"pytest"} for door in PYTEST},
    "run.side_by_side": {"pytest", "xdist"},  # imported in a controller of xdist only
}
# Loaded inside a function only, because whoever imports the module must not pay for them.
ON_FIRST_USE: dict[str, set[str]] = {
    "units": {"pint"}, "channel": {"torch"}, "launch": {"pynvml"}, "folder": {"msgspec"},
    "report": {"matplotlib", "jinja2"},
    "cli": {"shtab"},
}  # fmt: skip
AS_WRITTEN = {"yaml": "PyYAML", "pydantic_core": "pydantic"}


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module, absolute; `deferred` when it stands inside a function."""

    name: str
    line: int
    deferred: bool


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[Import]:
    """All imports of a module's source but those that only type checkers see."""
    yield from _imports(ast.parse(source), module if is_package else module.rpartition(".")[0], deferred=False)


def _imports(node: ast.AST, package: str, *, deferred: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(name=alias.name, line=node.lineno, deferred=deferred)
    elif isinstance(node, ast.ImportFrom):
        above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
        base = ".".join(part for part in (above, node.module) if part)
        # `from package import name` may name a module: the longer path says which room is meant.
        whole = base.partition(".")[0] == PACKAGE
        for name in [f"{base}.{alias.name}" for alias in node.names] if whole else [base]:
            yield Import(name=name, line=node.lineno, deferred=deferred)
    elif isinstance(node, ast.If) and re.search(r"\bTYPE_CHECKING\b", ast.unparse(node.test)):
        for child in node.orelse:
            yield from _imports(child, package, deferred=deferred)
    else:
        inside = deferred or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, package, deferred=inside)


def room_of(module: str) -> str:
    """The room or file directly inside the package: ``read`` for ``pytest_clusterqual.read.project``."""
    inner = module.split(".")[1:2]
    return inner[0] if inner and inner[0] in MAY_IMPORT else ("" if len(module.split(".")) <= 2 else inner[0])


def faults(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What a module imports though its place in the house does not allow it."""
    room = module.split(".")[1] if "." in module else ""
    if room not in MAY_IMPORT:
        return [f"{module}: {room} has no place in docs/architecture.md"]
    inner = module.partition(".")[2]
    third = THIRD_PARTY.get(inner, THIRD_PARTY.get(room, set()))
    found = []
    for item in imports(source, module, is_package=is_package):
        top = item.name.partition(".")[0]
        at = f"{module}:{item.line}"
        if top == PACKAGE:
            target = room_of(item.name)
            if target not in MAY_IMPORT[room] | {room}:
                found.append(f"{at}: {room or PACKAGE} may not import {target}")
        elif top not in sys.stdlib_module_names:
            if top in ON_FIRST_USE.get(room, ()):
                if not item.deferred:
                    found.append(f"{at}: {room} may import {top} on first use only")
            elif top not in third:
                found.append(f"{at}: {room or PACKAGE} may not import {top}")
    return found


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    named = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_every_module_keeps_to_its_place(module: str) -> None:
    path = MODULES[module]
    assert faults(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py") == []


def loaded_with(module: str) -> tuple[set[str], dict[str, str]]:
    """Modules of the package that importing `module` loads, and third parties with who asks for them."""
    seen: set[str] = set()
    third: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        while name and name not in MODULES:  # an imported function or class: its module
            name = name.rpartition(".")[0]
        if not name or name in seen:
            continue
        seen.add(name)
        waiting.append(name.rpartition(".")[0])
        path = MODULES[name]
        for item in imports(path.read_text(encoding="utf-8"), name, is_package=path.name == "__init__.py"):
            top = item.name.partition(".")[0]
            if top == PACKAGE and not item.deferred:
                waiting.append(item.name)
            elif not item.deferred and top not in sys.stdlib_module_names:
                third.setdefault(top, name)
    return seen, third


def test_no_modules_import_each_other() -> None:
    below: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        found = imports(path.read_text(encoding="utf-8"), name, is_package=path.name == "__init__.py")
        at_once = (item.name for item in found if not item.deferred)
        targets = (name if name in MODULES else name.rpartition(".")[0] for name in at_once)
        below[name] = {target for target in targets if target in MODULES and target != name}
    assert below[f"{PACKAGE}.run.qualification"]
    while free := {name for name, targets in below.items() if not targets & below.keys()}:
        below = {name: targets for name, targets in below.items() if name not in free}
    assert not below, f"in a circle: {sorted(below)}"


@pytest.mark.parametrize("door", [name for name in ("plugin", "fixtures") if f"{PACKAGE}.{name}" in MODULES])
def test_importing_the_plugin_costs_nothing(door: str) -> None:
    _seen, third = loaded_with(f"{PACKAGE}.{door}")
    assert set(third) <= {"pytest"}, third


def test_the_closure_of_imports_is_followed_through_modules() -> None:
    seen, third = loaded_with(f"{PACKAGE}.read.project")
    assert {PACKAGE, f"{PACKAGE}.read.yaml_lines", f"{PACKAGE}.units"} <= seen
    # And not pint, which units loads on first use.
    assert set(third) == {"yaml", "pydantic", "pydantic_core", "ClusterShell"}


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("read.project", "import os, yaml, pydantic\nfrom pytest_clusterqual.model import project", []),
        ("read.project", "from pytest_clusterqual.read import checks\nfrom . import checks\nfrom .fields import x", []),
        ("read.project", "from pytest_clusterqual.judge import x", [":1: read may not import judge"]),
        ("read.project", "from pytest_clusterqual import units, judge", [":1: read may not import judge"]),
        ("read.project", "from .. import judge", [":1: read may not import judge"]),
        ("read.project", "from ..judge import x", [":1: read may not import judge"]),
        ("read.project", "\nimport pytest_clusterqual.session.world", [":2: read may not import session"]),
        ("read.project", "import torch.distributed", [":1: read may not import torch"]),
        ("read.project", "def late():\n    import torch", [":2: read may not import torch"]),
        ("read.project", "try:\n    import rich\nexcept ImportError:\n    rich = 1", [":2: read may not import rich"]),
        ("read.project", "if TYPE_CHECKING:\n    import torch\nelse:\n    import rich",
         [":4: read may not import rich"]),
        ("read.project", "import typing\nif typing.TYPE_CHECKING:\n    import torch", []),
        ("model.codec", "from pytest_clusterqual.read import x", [":1: model may not import read"]),
        ("model.codec", "import pydantic", [":1: model may not import pydantic"]),
        ("units", "import pint", [":1: units may import pint on first use only"]),
        ("units", "def parse():\n    import pint", []),
        ("units", "class A:\n    import pint", [":2: units may import pint on first use only"]),
        ("channel", "from torch.distributed import TCPStore", [":1: channel may import torch on first use only"]),
        ("channel", "def store():\n    from torch.distributed import TCPStore", []),
        ("probe", "import json\nfrom pytest_clusterqual.errors import x", []),
        ("probe", "from pytest_clusterqual.model import x", [":1: probe may not import model"]),
        ("own", "import torch", [":1: own may not import torch"]),
        ("own", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", []),
        ("probe", "def late():\n    import torch", [":2: probe may not import torch"]),
        ("rank.jobs", "import torch, numpy\nfrom pytest_clusterqual.channel import Channel", []),
        ("rank.jobs", "import pydantic, pytest, yaml", [f":1: rank may not import {name}" for name in
                                                        ("pydantic", "pytest", "yaml")]),
        ("rank.jobs", "from pytest_clusterqual.folder import runs", [":1: rank may not import folder"]),
        ("session.world", "from pytest_clusterqual import folder, launch, channel, judge", []),
        ("session.wire", "def f():\n    from pytest_clusterqual.rank import jobs", [":2: session may not import rank"]),
        ("session.world", "import pytest", [":1: session may not import pytest"]),
        ("session.world", "from pytest_clusterqual.measure import criteria", [":1: session may not import measure"]),
        ("measure.criteria", "from pytest_clusterqual import session, judge", []),
        ("measure.criteria", "from pytest_clusterqual import plugin", [":1: measure may not import plugin"]),
        ("plugin", "import pytest\nfrom pytest_clusterqual import measure, fixtures", []),
        ("plugin", "import pytest_clusterqual.rank.jobs", [":1: plugin may not import rank"]),
        ("plugin", "import rich", [":1: plugin may not import rich"]),
        ("run.ending", "import pytest, xdist", [":1: run may not import xdist"]),
        ("run.side_by_side", "import pytest, xdist", []),
        ("run.asked", "from pytest_clusterqual import plugin, options", []),
        ("run.asked", "from pytest_clusterqual.commands import x", [":1: run may not import commands"]),
        ("cli", "from pytest_clusterqual import commands, options", []),
        ("cli", "import pytest", [":1: cli may not import pytest"]),
        ("commands.arguments", "from pytest_clusterqual.run import x", [":1: commands may not import run"]),
        ("commands.arguments", "import pytest", [":1: commands may not import pytest"]),
        ("measure.fabric", "from pytest_clusterqual.options import x", [":1: measure may not import options"]),
        ("options", "from pytest_clusterqual.read import x", [":1: options may not import read"]),
        ("folder.leases", "from pytest_clusterqual import launch", [":1: folder may not import launch"]),
        ("report.html", "import rich\nfrom pytest_clusterqual.folder import x", [":2: report may not import folder"]),
        ("launch.local", "import torch", [":1: launch may not import torch"]),
        ("judge.fabric.verdict", "import numpy, scipy.stats, torch", [":1: judge may not import torch"]),
        ("helpers", "", [": helpers has no place in docs/architecture.md"]),
    ],
)  # fmt: skip
def test_what_is_out_of_place_is_found(module: str, source: str, expected: list[str]) -> None:
    name = f"{PACKAGE}.{module}"
    assert faults(source, name) == [name + text for text in expected]


def test_the_package_itself_imports_nothing_but_words() -> None:
    assert faults("from pytest_clusterqual import plugin", PACKAGE, is_package=True) == [
        "pytest_clusterqual:1: pytest_clusterqual may not import plugin"
    ]
    assert faults("from .judge import x", PACKAGE, is_package=True) == [
        "pytest_clusterqual:1: pytest_clusterqual may not import judge"
    ]


THIRD_PARTIES = (
    r"\b(?:PyYAML|pydantic|ClusterShell|msgspec|pint|torch|pynvml|numpy|scipy|rich|junitparser|matplotlib|jinja2|"
    r"pytest|shtab)\b"
)


def third_party_table() -> dict[str, str]:
    """The second table of the page: room -> the sentence about its third parties."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("| may import | third party |", 1)[1].split("\n\n", 1)[0]
    rows = (row.strip("|").split("|") for row in table.splitlines() if row.count("|") == 3 and "---" not in row)
    return {room: words for rooms, words in rows for room in re.findall(r"\w+", rooms)}


def test_the_page_and_this_test_say_the_same_about_third_parties() -> None:
    page = third_party_table()
    rooms = {
        "model", "errors", "probe", "own", "units", "folder", "read", "launch", "rank", "channel", "judge", "report",
        "options", "cli", "commands", *PYTEST,
    }  # fmt: skip
    assert rooms == set(page)
    for room, words in page.items():
        allowed = THIRD_PARTY.get(room, set()) | ON_FIRST_USE.get(room, set())
        names = {AS_WRITTEN.get(name, name) for name in allowed}
        said = words.split("never")[0].split(";")[0]
        assert set(re.findall(THIRD_PARTIES, said)) == names


def test_every_place_of_this_test_is_named_on_the_page() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    unnamed = {room for room in MAY_IMPORT if room and not re.search(rf"`{room}(?:/|\.py)?`", text)}
    assert not unnamed


def test_every_module_that_the_page_names_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", text)) - {"verdict.py"}  # the one of each criterion
    assert "measure/criteria.py" in named
    places = (ROOT, ROOT / PACKAGE, ROOT / PACKAGE / "launch", ROOT / PACKAGE / "report")
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()
